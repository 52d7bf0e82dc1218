"""Logs: of tasks (rotation, streaming, timestamps) and of the agent."""
