"""By which address the other nodes reach this one, where nobody says so on the command line.

The name of a machine often leads back to itself: Debian and Ubuntu write ``127.0.1.1`` behind it in
``/etc/hosts``. A gang would then look for its first task on each of its nodes alike. What the
kernel takes to reach the controller leads here from wherever the controller can be reached.
"""

import contextlib
import socket

from agents.link.http_client import ControllerTarget, LinkError
from agents.settings import AgentSettings
from reconciler.model.values import addresses

LOOPBACK = "127.0.0.1"


def address_of(settings: AgentSettings) -> str:
    """What is said on the command line, else what the machine's name means to itself, else the
    address from which the controller is reached; ``LOOPBACK`` where none of these is one that
    others could use. It may ask a name server."""
    if settings.address:
        return settings.address
    if settings.virtual:
        return LOOPBACK
    found = LOOPBACK
    with contextlib.suppress(OSError):
        found = socket.gethostbyname(socket.gethostname())
    return toward(settings.server) or found if addresses.is_loopback(found) else found


def toward(server: str) -> str:
    """The address from which this machine reaches a controller; empty where it is the machine's
    own alone, or can't be told. Nothing is sent."""
    try:
        _, host, port, _ = ControllerTarget(server).parts()
        # of version 4, as what frameworks are told of an address is followed by a colon and a port
        where = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_DGRAM)[0][4]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            link.connect(where)
            found = str(link.getsockname()[0])
    except (OSError, LinkError, UnicodeError):
        return ""
    return "" if addresses.is_loopback(found) else found
