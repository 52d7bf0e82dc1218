"""The client of the controller's API."""
