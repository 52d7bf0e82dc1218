"""Server process: connections, workers, batching."""
