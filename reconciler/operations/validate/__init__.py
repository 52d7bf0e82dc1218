"""Validation of a folder, and the formats that its findings are printed in."""
