"""Packs of code that people send with their jobs: kept by content, given to nodes that run them."""
