"""Commands that inspect and operate the cluster."""
