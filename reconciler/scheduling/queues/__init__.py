"""Order of queues, and of jobs in a queue."""
