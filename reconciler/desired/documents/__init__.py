"""Reads YAML into documents, and explains what is wrong with one."""
