"""Decides whether a commit may change what it changes: keys, signatures, roles."""
