"""Sessions of people in tasks: the agent's side, in a process of its own."""
