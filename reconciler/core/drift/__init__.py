"""Drift: detection and remediation."""
