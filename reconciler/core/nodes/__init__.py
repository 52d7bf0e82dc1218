"""Phases of the cycle that take in reports and decide about nodes."""
