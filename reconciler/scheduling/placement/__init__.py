"""Placement of one gang."""
