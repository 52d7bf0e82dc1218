"""The agent's own port for Prometheus."""
