"""Working clones of the desired repository: files, commits, locks, pushes."""
