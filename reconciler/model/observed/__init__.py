"""What nodes and tasks report."""
