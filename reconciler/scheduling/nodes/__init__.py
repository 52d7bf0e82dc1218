"""Nodes in the scheduler: free resources, classes, scores, topology."""
