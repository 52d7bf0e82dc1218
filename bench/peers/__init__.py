"""Peers that benchmarks bring by themselves, each started on loopback and ended by process id."""
