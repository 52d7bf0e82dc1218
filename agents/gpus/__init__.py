"""GPUs of the node: inventory, samples, MIG, MPS, and who uses which device."""
