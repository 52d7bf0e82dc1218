"""The connection from the agent to the controller."""
