"""The scheduling engine over columns: it stands beside ``scheduling.cycle`` until it covers all."""
