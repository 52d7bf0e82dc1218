"""Where a controller may listen: on loopback, and elsewhere only where tokens are asked for."""

import ipaddress
from pathlib import Path

PORT_MAX = 65535


def is_loopback(host: str) -> bool:
    """Whether a host, without a port, is a name or an address of loopback."""
    name = host.lower().removesuffix(".")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def listening(listen: str, token_file: Path | None) -> tuple[str, int]:
    """Host and port of ``--listen``.

    Raises:
        ValueError: it is none, or anybody could call there.
    """
    host, colon, port = listen.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= PORT_MAX
    if not (colon and host and is_port):
        raise ValueError(f"--listen: found {listen!r}, expected HOST:PORT")
    host = host.strip("[]")
    if token_file is None and not is_loopback(host):
        raise ValueError(
            f"--listen {listen} can be reached from elsewhere and there is no "
            "--token-file: anybody could run anything; give one, or listen on 127.0.0.1"
        )
    return host, int(port)
