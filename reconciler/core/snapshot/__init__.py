"""Builds the scheduler's snapshot from records and desired state."""
