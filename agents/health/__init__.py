"""Health checks of the node and of its volumes."""
