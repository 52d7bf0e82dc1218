"""Scripts that make nodes: orders go in, their results go back to the loop."""
