"""Connects to a port on which a task listens, in a child of the supervisor. Standard library only.

On a machine without ``--isolate`` loopback is everybody's: a port counts only while a process of
the task's own control groups holds the socket that listens there.
"""

import os
import signal
import socket

from agents.host import processes
from agents.isolation import cgroups
from agents.supervisor import orders

#: How long a look and a connection may take.
DIAL_S = 10
_LISTENS = "0A"
_LOCAL = {
    socket.AF_INET: {"00000000": "127.0.0.1", "0100007F": "127.0.0.1"},
    socket.AF_INET6: {
        "0" * 32: "::1",
        "0" * 24 + "01000000": "::1",
        "0000000000000000FFFF00000100007F": "127.0.0.1",
    },
}
_TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}


class NoListenerError(Exception):
    """A port on which nothing of the task listens."""


def listeners(port: int, table: str, family: socket.AddressFamily) -> list[tuple[int, str]]:
    """Return inode and address of the sockets that listen on a port of this machine.

    Args:
        port: its number.
        table: text of the kernel's table of the family.
        family: of the addresses in the table.
    """
    found = []
    for line in table.split("\n")[1:]:
        words = line.split()
        if len(words) < 10 or words[3] != _LISTENS:
            continue
        address, _, number = words[1].rpartition(":")
        local = _LOCAL[family].get(address)
        if local is not None and int(number, 16) == port:
            found.append((int(words[9]), local))
    return found


def _addresses(port: int, pids: set[int]) -> list[str]:
    """Return the addresses on which one of the processes listens, the likelier one first."""
    found = []
    for family, path in _TABLES.items():
        try:
            with open(path, encoding="ascii") as stream:  # noqa: PTH123 - pathlib costs memory
                table = stream.read()
        except OSError:
            continue
        found += listeners(port, table, family)
    if not found:
        return []
    held = _sockets(pids)
    return [address for inode, address in found if f"socket:[{inode}]" in held]


def _sockets(pids: set[int]) -> set[str]:
    """Return what the files of processes are that are sockets."""
    found = set()
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - pathlib costs memory
        except OSError:
            continue
        for name in names:
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115
            except OSError:
                continue
            if target.startswith("socket:"):
                found.add(target)
    return found


def task_processes(pid: int, group: str) -> set[int]:
    """Return the processes of a task: of its control group, or its descendants without one."""
    if group:
        return cgroups.members(group)
    return {pid} | processes.descendants({pid}, processes.processes())


def dial(port: int, pid: int, group: str, user: orders.UserIds | None) -> socket.socket:
    """Return a connection to a port of a task, made as its user.

    Args:
        port: on which the task listens.
        pid: its first process.
        group: folder of its control group; empty without one.
        user: the task's; None: this process's own.

    Raises:
        NoListenerError: nothing of the task listens there.
        OSError: it does not take the connection.
    """
    for address in _addresses(port, task_processes(pid, group)):
        link = _connect(address, port, user)
        # whoever listens could have changed in between
        if address in _addresses(port, task_processes(pid, group)):
            return link
        link.close()
    raise NoListenerError(
        f"nothing of this task listens on port {port} of loopback. To fix: have the program listen "
        f"on 127.0.0.1:{port}, and see whether it has begun (muster logs)"
    )


def _connect(address: str, port: int, user: orders.UserIds | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if user is not None:
        os.setegid(user.gid)
        os.seteuid(user.uid)
    try:
        link = socket.socket(family, socket.SOCK_STREAM)
        link.settimeout(DIAL_S)
        link.connect((address, port))
        link.setblocking(False)
    finally:
        if user is not None:
            os.seteuid(0)
            os.setegid(0)
    return link


def give_up_after(seconds: int) -> None:
    """End this process after so many seconds, whatever it does."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
