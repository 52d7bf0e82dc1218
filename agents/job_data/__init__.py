"""Data that jobs report in their own files: metrics and checkpoints."""
