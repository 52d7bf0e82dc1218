"""Backups of a controller's folder: the store and what belongs to it, in one folder with a list."""
