"""Rules that several parts apply in the same way."""
