"""Parts of one cycle's context: jobs, nodes, reasons, events, orders to stop, wake-ups."""
