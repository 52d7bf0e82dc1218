"""Commits written to the desired repository on behalf of users."""
