"""Read-only endpoints of the API."""
