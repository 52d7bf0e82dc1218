"""Starts of tasks: orders, containers, frameworks, images."""
