"""Replays of workload traces, their results and plots."""
