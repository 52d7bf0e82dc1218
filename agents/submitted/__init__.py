"""What a task has from the place where its command was submitted: folder, Python, modules."""
