"""Reports of nodes and tasks."""
