"""Values: quantities, times, host lists, names."""
