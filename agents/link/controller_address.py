"""Finds the address by which other nodes reach this one, if the command line does not give it.

The name of a machine often resolves to itself: Debian and Ubuntu put ``127.0.1.1`` into
``/etc/hosts``. Then the source address of the route to the controller is used.
"""

import contextlib
import socket

from agents.link.http_client import ControllerTarget, LinkError
from agents.settings import AgentSettings
from reconciler.model.values import addresses

LOOPBACK = "127.0.0.1"


def address_of(settings: AgentSettings) -> str:
    """Return the address given on the command line, else what the machine's name resolves to, else
    the source address of the route to the controller.

    The result is ``LOOPBACK`` if none of these can be used by other nodes. A name server may be
    asked.
    """
    if settings.address:
        return settings.address
    if settings.virtual:
        return LOOPBACK
    found = LOOPBACK
    with contextlib.suppress(OSError):
        found = socket.gethostbyname(socket.gethostname())
    return toward(settings.server) or found if addresses.is_loopback(found) else found


def toward(server: str) -> str:
    """Return the source address of the route to a controller; empty if unknown or loopback.

    Nothing is sent.
    """
    try:
        _, host, port, _ = ControllerTarget(server).parts()
        # IPv4 only, because frameworks append a colon and a port
        where = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_DGRAM)[0][4]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            link.connect(where)
            found = str(link.getsockname()[0])
    except (OSError, LinkError, UnicodeError):
        return ""
    return "" if addresses.is_loopback(found) else found
