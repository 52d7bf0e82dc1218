"""Scenario documents: schema, runner, expectations."""
