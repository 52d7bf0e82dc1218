"""A stand-in for NVIDIA's library, so that the real binding and the agent's real code are run."""
