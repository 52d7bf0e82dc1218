"""Addresses that a program may listen on: loopback, and others only if it asks for tokens."""

import ipaddress
from pathlib import Path

PORT_MAX = 65535


def is_loopback(host: str) -> bool:
    """Return True if a host, without a port, is a name or an address of loopback."""
    name = host.lower().removesuffix(".")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """Return the host that a ``Host`` header names, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def listening(
    listen: str,
    token_file: Path | None,
    *,
    option: str = "--listen",
    tokens: str = "--token-file",
    risk: str = "run anything",
) -> tuple[str, int]:
    """Return host and port of an option such as ``--listen``; ``risk`` is what anybody could do
    there.

    Raises:
        ValueError: the text is no address, or anybody could call there.
    """
    host, colon, port = listen.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= PORT_MAX
    if not (colon and host and is_port):
        raise ValueError(f"{option}: found {listen!r}, expected HOST:PORT")
    host = host.strip("[]")
    if token_file is None and not is_loopback(host):
        raise ValueError(
            f"{option} {listen} can be reached from elsewhere and there is no "
            f"{tokens}: anybody could {risk}; give one, or listen on 127.0.0.1"
        )
    return host, int(port)
