"""Situations of a cluster as documents, and what must become of them."""
