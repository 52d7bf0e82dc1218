"""Commands about what tasks write: logs of one task and of many."""
