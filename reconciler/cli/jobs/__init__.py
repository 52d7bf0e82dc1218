"""Commands that run and inspect jobs."""
