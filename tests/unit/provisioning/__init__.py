"""Tests of what runs provisioner scripts."""
