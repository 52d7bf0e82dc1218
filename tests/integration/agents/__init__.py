"""Tests of the node agent with real processes and a real HTTP server."""
