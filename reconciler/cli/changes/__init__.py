"""Commands that change desired state."""
