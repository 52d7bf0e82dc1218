"""Endpoints that change something."""
