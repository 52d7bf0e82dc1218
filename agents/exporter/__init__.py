"""The agent's own metrics port."""
