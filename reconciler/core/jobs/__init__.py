"""Phases of the cycle that decide about jobs and their attempts."""
