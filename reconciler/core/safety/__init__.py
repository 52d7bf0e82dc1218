"""Sync safety: the impact of a revision, and if it is held for approval."""
