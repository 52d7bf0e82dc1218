"""Past decisions: replay and explanation."""
