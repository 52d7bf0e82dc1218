"""Records that the store keeps: jobs, attempts, nodes, events, reasons."""
