"""Forecasts of a cluster under a desired state."""
