"""Where work runs: engines turn what the core decided into what nodes are told."""
