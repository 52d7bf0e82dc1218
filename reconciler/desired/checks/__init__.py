"""Checks across documents: references, feasibility, policies."""
