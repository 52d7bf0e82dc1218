"""Facts and services of the host that the rest of the agent uses."""
