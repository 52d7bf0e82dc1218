"""What tasks can import: ``muster`` is copied to where every task of a node finds it."""
