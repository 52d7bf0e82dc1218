"""Turns documents as written into desired state with all defaults."""
