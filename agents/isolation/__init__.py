"""Isolation of tasks: cgroups, mount and network namespaces, device access, CPU pinning."""
