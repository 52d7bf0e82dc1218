"""The agent's GPU side over the real binding: ctypes, structures, error codes, versions."""
