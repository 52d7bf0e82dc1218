"""Views of jobs, nodes, queues, quotas and sync for users."""
