"""Guarantees, limits, lending and fair share."""
