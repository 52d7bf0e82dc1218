"""Addresses that a program may listen on: loopback, and others only if it asks for tokens."""

import ipaddress
from pathlib import Path

from reconciler.model.values import found_values

PORT_MAX = 65535
#: IPv6 addresses that a gateway translates to the IPv4 address at their end.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_loopback(host: str) -> bool:
    """Return True if a host, without a port, is a name or an address of loopback."""
    name = host.lower().removesuffix(".")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_public(text: str) -> bool:
    """Return True if an IP address is reached over the internet, and is one machine's.

    Addresses that stand for another one, as those of IPv4 in IPv6, are judged by the other one.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.sixtofour is not None or address.teredo is not None:
            return False  # they lead into a network that only their gateway knows
        inner = address.ipv4_mapped
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
    return address.is_global and not address.is_multicast and not address.is_reserved


def host_of(header: str) -> str:
    """Return the host that a ``Host`` header names, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def parse(listen: str, option: str = "--listen") -> tuple[str, int]:
    """Return host and port of an option such as ``--listen``.

    Raises:
        ValueError: the text is no address.
    """
    host, colon, port = listen.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= PORT_MAX
    if not (colon and host and is_port):
        raise ValueError(f"{option}: found {found_values.quote(listen)}, expected HOST:PORT")
    return host.strip("[]"), int(port)


def listening(
    listen: str, token_file: Path | None, *, option: str, tokens: str, risk: str
) -> tuple[str, int]:
    """Return host and port of an option; on loopback alone there need not be tokens.

    Args:
        listen: ``HOST:PORT``.
        token_file: holds the tokens that are asked for, if any are.
        option: its name.
        tokens: name of the option for the token file.
        risk: what anybody could do there.

    Raises:
        ValueError: the text is no address, or anybody could call there.
    """
    host, port = parse(listen, option)
    if token_file is None and not is_loopback(host):
        raise ValueError(
            f"{option} {listen} can be reached from elsewhere and there is no "
            f"{tokens}: anybody could {risk}; give one, or listen on 127.0.0.1"
        )
    return host, port
