"""The loop of the control plane. To come."""
