"""Estimated start times of pending jobs."""
