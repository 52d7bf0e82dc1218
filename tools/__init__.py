"""Programs for people who work on Muster; no part of what is installed."""
