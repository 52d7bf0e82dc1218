"""A folder's files, packed for the nodes that run a job."""
