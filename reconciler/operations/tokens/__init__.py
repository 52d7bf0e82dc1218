"""Token files: read by the controller, changed by ``muster token``."""
