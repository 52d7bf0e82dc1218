"""Authorizes the changes of commits: keys, signatures, roles."""
