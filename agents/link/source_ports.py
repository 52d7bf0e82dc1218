"""Connects to the controller, also while tasks have taken all ports that connections begin at.

Any task can bind every port of ``net.ipv4.ip_local_port_range``, and no control group counts them.
Nobody on the node can connect then, who lets the kernel choose. Ports below 1024 are root's, so
that an agent that is root begins there.
"""

import errno
import os
import random
import socket

#: Where the kernel's NFS client begins, too.
ROOTS_PORTS = range(665, 1024)
#: Of them, those of well-known services, which may be about to start.
SERVICES = frozenset({749, 853, 873, 989, 990, 992, 993, 994, 995})
#: How many of them are tried for one address; other programs have few.
PORTS_TRIED_MAX = 24


def dial(host: str, port: int, timeout_s: float) -> socket.socket:
    """Return a connection to the first address of a host that takes one.

    Args:
        host: a name or an address.
        port: to connect to.
        timeout_s: for each address.

    Raises:
        OSError: none could be connected to.
    """
    problem: OSError | None = None
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, _, _, _, address in found:
        try:
            return _connect(family, address, timeout_s)
        except OSError as error:
            if problem is None or problem.errno == errno.EADDRNOTAVAIL:  # where it has no IPv6, too
                problem = error
    raise problem or OSError(f"{host} has no address")


def _connect(family: int, address: tuple[object, ...], timeout_s: float) -> socket.socket:
    """Return a connection from a port that the kernel chooses, or else from one of root's."""
    try:
        return _connect_from(None, family, address, timeout_s)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL or os.geteuid() != 0:
            raise
        problem = error
    for source in random.sample(
        [one for one in ROOTS_PORTS if one not in SERVICES], PORTS_TRIED_MAX
    ):
        try:
            return _connect_from(source, family, address, timeout_s)
        except OSError as error:
            if error.errno not in {errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.EACCES}:
                raise  # it was sent from there
    raise problem


def _connect_from(
    source: int | None, family: int, address: tuple[object, ...], timeout_s: float
) -> socket.socket:
    """Return a connection from a port; None: from one that the kernel chooses."""
    link = socket.socket(family, socket.SOCK_STREAM)
    try:
        link.settimeout(timeout_s)
        if source is not None:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # others may listen there
            link.bind(("", source))
        link.connect(address)
    except BaseException:
        link.close()
        raise
    return link
