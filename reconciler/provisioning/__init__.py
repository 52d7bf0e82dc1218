"""Runs the scripts that make nodes: orders go in, what came of them goes back to the loop."""
