"""Network settings for NCCL and Gloo, from the node's ports and links. Jobs can override them.

RDMA ports slower than the fastest are left to storage.
"""

import psutil

from reconciler.model.observed.host_facts import Host
from reconciler.model.state.records import Inventory


def of_node(found: Inventory, interface: str = "") -> dict[str, str]:
    """Return the variables for a node with its current ports and links.

    Args:
        interface: has the node's address; empty to look for it among those of this machine.
    """
    return settings(found.host, interface or interface_of(found.address))


def settings(host: Host | None, interface: str) -> dict[str, str]:
    """Return the variables for a host. ``interface`` has the node's address; empty if unknown."""
    if host is None:
        return {}
    variables: dict[str, str] = {}
    active = [port for port in host.rdma if port.state == "ACTIVE"]
    fastest = max((port.rate_bits_per_s or 0 for port in active), default=0)
    chosen = [f"{p.device}:{p.port}" for p in active if (p.rate_bits_per_s or 0) == fastest]
    if chosen:
        variables["NCCL_IB_HCA"] = "=" + ",".join(chosen)
    else:
        variables["NCCL_IB_DISABLE"] = "1"
    if interface and interface != "lo":
        variables["NCCL_SOCKET_IFNAME"] = f"={interface}"
        variables["GLOO_SOCKET_IFNAME"] = interface
    return variables


def interface_of(address: str) -> str:
    """Return the interface that has an address; empty if none has."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address.partition("%")[0] == address for known in addresses):
            return str(name)
    return ""
