"""The node as a whole: inventory, monitoring, remediation, cleanup."""
