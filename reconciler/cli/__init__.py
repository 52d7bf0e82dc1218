"""The ``muster`` command: one module a command group; it prints, and decides nothing."""
