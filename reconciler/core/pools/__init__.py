"""Autoscaling and provisioning of node pools."""
