"""What jobs report from their own files: metrics and checkpoints."""
