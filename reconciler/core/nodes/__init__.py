"""Phases of the cycle that read reports and decide about nodes."""
