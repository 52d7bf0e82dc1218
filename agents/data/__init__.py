"""Copies data of jobs to and from the node, and caches it. Secrets of jobs."""
