"""Changes that users make to desired state."""
