"""Reasons of pending jobs."""
