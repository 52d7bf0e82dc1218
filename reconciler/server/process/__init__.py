"""The server as a process: connections, workers, batching."""
