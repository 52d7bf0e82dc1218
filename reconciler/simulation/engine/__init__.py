"""Virtual time, virtual nodes and faults."""
