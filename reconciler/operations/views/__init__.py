"""What users see of jobs, nodes, queues, quotas and sync."""
