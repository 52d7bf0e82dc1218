"""Simulations of traces and scenarios."""
