"""Deletion of what users leave on a node, in bounded steps; files of others stay."""
