"""Deletes what nobody needs any more, in bounded steps and without what belongs to others."""
