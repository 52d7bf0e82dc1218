"""A cluster on one machine: controller, virtual nodes, starter repository."""
