"""Opens the node's metrics port, and explains who has it if that fails.

Wrong options prevent the agent from starting (``PortError``). A port that is only in use now is
retried (``TakenError``), because no other program may keep a node from its tasks.
"""

import contextlib
import errno
import socket
from pathlib import Path

import msgspec
import psutil

from agents.host import process_memory, processes
from agents.settings import Listen
from reconciler.model.values import addresses

#: Connections that wait in the kernel's queue.
BACKLOG = 128
#: Characters of a command line that are shown.
COMMAND_CHARACTERS = 80
#: Errors that pass without a change of options: the port is in use, or a name server or the kernel
#: has a temporary problem.
_PASSING = frozenset(
    {errno.EADDRINUSE, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EINTR}
)
_EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - told apart, not listened at


class PortError(OSError):
    """A port that cannot be opened; names the port, its user and a fix."""


class TakenError(PortError):
    """A port that cannot be opened now, but may be later.

    Attributes:
        brief: text for people elsewhere, without command lines, which may hold secrets.
        pid: process that has the port; None if unknown.
    """

    def __init__(self, text: str, brief: str, pid: int | None = None) -> None:
        super().__init__(text)
        self.brief = brief
        self.pid = pid


class Holder(msgspec.Struct, frozen=True):
    """The process that listens on a port, with its shortened command line."""

    pid: int
    name: str
    user: str
    command: str


def bind(listen: Listen) -> socket.socket:
    """Return a listening socket.

    Raises:
        TakenError: the port cannot be opened now.
        PortError: it cannot be opened with these options, or not safely.
    """
    try:
        found = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as problem:
        text = f"--metrics-listen {listen.shown}: {listen.host} is no address of this machine: "
        text += str(problem.strerror)
        if problem.errno == socket.EAI_AGAIN:
            brief = f"the port {listen.shown} of its page can't be opened: {problem.strerror}"
            raise TakenError(text, brief) from None
        raise PortError(text) from None
    family, kind, protocol, _, address = found[0]
    if listen.token_file is None and not addresses.is_loopback(str(address[0])):
        raise PortError(
            f"--metrics-listen {listen.shown}: {listen.host} is {address[0]}, which can be reached "
            "from elsewhere, and there is no --metrics-token-file; give one, or listen on 127.0.0.1"
        )
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as problem:
        listener.close()
        raise _refusal(listen, str(address[0]), problem) from None
    return listener


def _refusal(listen: Listen, host: str, problem: OSError) -> PortError:
    """Return the error for a port that could not be opened."""
    start = f"--metrics-listen {listen.shown}: {problem.strerror}"
    if problem.errno not in _PASSING:
        return PortError(f"{start}; name an address of this machine, and a port that it may open")
    brief = f"the port {listen.shown} of its page can't be opened: {problem.strerror}"
    if problem.errno != errno.EADDRINUSE:
        return TakenError(start, brief)
    do = "end what listens there, or name another port"
    holder = holder_of(host, listen.port)
    if holder is None:
        return TakenError(f"{start}: an unknown process has it; {do}", brief)
    return TakenError(
        f"{start}: process {holder.pid} of {holder.user} has it ({holder.command}); {do}",
        f"{brief}: process {holder.pid} ({holder.name}) of {holder.user} has it",
        holder.pid,
    )


def holder_of(host: str, port: int) -> Holder | None:
    """Return the process that listens on a port of an address; None if unknown."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if (
                connection.status != psutil.CONN_LISTEN
                or not connection.laddr
                or connection.laddr.port != port
            ):
                continue
            if connection.pid and (
                connection.laddr.ip == host or _EVERYWHERE & {connection.laddr.ip, host}
            ):
                return _told_of(psutil.Process(connection.pid))
    return None


def _told_of(process: psutil.Process) -> Holder:
    """Return what there is to tell of a process, which can't make the agent wait for an answer."""
    pid = process.pid
    name = processes.read_file(f"/proc/{pid}/comm", 64).decode(errors="replace").strip()
    text = process_memory.read([pid], ()).get(pid)
    command = " ".join(text.words if text else ()) or name
    if len(command) > COMMAND_CHARACTERS:
        command = f"{command[: COMMAND_CHARACTERS - 1]}…"
    return Holder(pid, _printable(name), process.username(), _printable(command))


def _printable(text: str) -> str:
    """Return text without terminal control characters, because the other process has chosen it."""
    return "".join(character if character.isprintable() else "?" for character in text)


def has_open(pid: int, path: Path) -> bool:
    """Return True if a process has a file open; False if unknown."""
    with contextlib.suppress(OSError):
        wanted = path.stat()
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found = handle.stat()
                if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                    return True
    return False
