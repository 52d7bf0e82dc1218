"""Waiting for jobs, for commands that submit them and commands that do not."""
