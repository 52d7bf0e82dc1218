"""Benchmarks, each beside a peer: ``python -m bench NAME [--json FILE]``."""
