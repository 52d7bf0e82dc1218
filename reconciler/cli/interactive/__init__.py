"""Commands in tasks that run, and what they share: the terminal here and the connection there."""
