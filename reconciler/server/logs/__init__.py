"""Endpoints that stream logs of tasks."""
