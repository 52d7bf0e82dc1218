"""A day of a node's life in minutes: thousands of tasks of every kind, and nothing left of them."""
