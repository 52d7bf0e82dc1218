"""Sync safety: the impact of a revision, and whether it is held for approval."""
