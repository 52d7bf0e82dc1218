"""Sessions of agents, and what they bring."""
