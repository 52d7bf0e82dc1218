"""Baseline schedulers that simulations compare with."""
