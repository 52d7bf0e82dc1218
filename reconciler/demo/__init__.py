"""The demo: a story told on a real cluster by commits and public commands alone."""
