"""The snapshot that a cycle decides from."""
