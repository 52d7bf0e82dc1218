"""Ports of loopback that the kernel gives to no connection before they are listened on.

A port that the kernel chose may be given to the next connection of any program, once it is free
again. So ports come from outside of ``net.ipv4.ip_local_port_range``.
"""

import random
import socket
from pathlib import Path

#: The first and the last port that the kernel chooses from.
KERNEL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: Below are those of well-known services.
_LOWEST, _HIGHEST = 10_000, 65_535
_TRIES_MAX = 64


def free_port(kernel_ports: Path = KERNEL_PORTS) -> int:
    """Return a port of loopback that is free now.

    It is drawn, so that programs that ask at once get different ones. Where the kernel keeps all
    ports for connections, or those drawn are in use, the kernel chooses.

    Raises:
        OSError: no port is free.
    """
    for port in [*_drawn(kernel_ports), 0]:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise OSError("no port of 127.0.0.1 is free. To fix: end programs that listen there")


def _drawn(kernel_ports: Path) -> list[int]:
    """Ports in random order that connections do not begin at."""
    try:
        first, last = map(int, kernel_ports.read_text().split())
    except (OSError, ValueError):
        return []
    ports = [port for port in range(_LOWEST, _HIGHEST + 1) if not first <= port <= last]
    return random.sample(ports, min(_TRIES_MAX, len(ports)))
