"""Keeps the loop going when a job or a document raises an internal error."""
