"""``muster agent --check``: what this host can offer, what is missing, and how to fix it."""
