"""Ties of the controller to its machine: the clock, the disk, the collector of garbage."""
