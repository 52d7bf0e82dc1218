"""Messages between agents, server and loop."""
