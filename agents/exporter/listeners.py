"""Taking a port for the node's page, and telling who has it where that can't be.

What is wrong with the options is told apart from what is only so now (``TakenError``): with the
first an agent does not begin, the second it waits out beside its work, since no program of
somebody else's may keep a node from its tasks.
"""

import contextlib
import errno
import socket
from pathlib import Path

import msgspec
import psutil

from agents.settings import Listen
from reconciler.model.values import addresses

#: How many callers wait in the kernel's queue until they are taken in.
BACKLOG = 128
#: So much of a command line is shown.
COMMAND_CHARACTERS = 80
#: What passes without anybody changing the options: others have the port, a name server or the
#: kernel has nothing to give now.
_PASSING = frozenset(
    {errno.EADDRINUSE, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EINTR}
)
_EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - told apart, not listened at


class PortError(OSError):
    """The port can't be had; says which, who has it, and what to do."""


class TakenError(PortError):
    """The port can't be had now, and may be later.

    Attributes:
        brief: the same for people elsewhere: without command lines, which may hold secrets.
        pid: the process that has it; None: none that can be told.
    """

    def __init__(self, text: str, brief: str, pid: int | None = None) -> None:
        super().__init__(text)
        self.brief = brief
        self.pid = pid


class Holder(msgspec.Struct, frozen=True):
    """The process that listens at a port. ``command`` is its command line, shortened."""

    pid: int
    name: str
    user: str
    command: str


def bind(listen: Listen) -> socket.socket:
    """Listen there.

    Raises:
        TakenError: that is not possible now.
        PortError: that is not possible by these options, or not safe.
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
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError as problem:
        made.close()
        raise _refusal(listen, str(address[0]), problem) from None
    return made


def _refusal(listen: Listen, host: str, problem: OSError) -> PortError:
    """What is to be told of a port that could not be had."""
    start = f"--metrics-listen {listen.shown}: {problem.strerror}"
    if problem.errno not in _PASSING:
        return PortError(f"{start}; name an address of this machine, and a port that it may open")
    brief = f"the port {listen.shown} of its page can't be opened: {problem.strerror}"
    if problem.errno != errno.EADDRINUSE:
        return TakenError(start, brief)
    do = "end what listens there, or name another port"
    holder = holder_of(host, listen.port)
    if holder is None:
        return TakenError(f"{start}: a process that can't be told has it; {do}", brief)
    return TakenError(
        f"{start}: process {holder.pid} of {holder.user} has it ({holder.command}); {do}",
        f"{brief}: process {holder.pid} ({holder.name}) of {holder.user} has it",
        holder.pid,
    )


def holder_of(host: str, port: int) -> Holder | None:
    """Who listens at a port of an address; None where that can't be told."""
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status != psutil.CONN_LISTEN or not one.laddr or one.laddr.port != port:
                continue
            if one.pid and (one.laddr.ip == host or _EVERYWHERE & {one.laddr.ip, host}):
                return _told_of(psutil.Process(one.pid))
    return None


def _told_of(process: psutil.Process) -> Holder:
    command = " ".join(process.cmdline()) or process.name()
    if len(command) > COMMAND_CHARACTERS:
        command = f"{command[: COMMAND_CHARACTERS - 1]}…"
    return Holder(process.pid, _printable(process.name()), process.username(), _printable(command))


def _printable(text: str) -> str:
    """Without what a terminal would act upon: who holds a port chose these words."""
    return "".join(one if one.isprintable() else "?" for one in text)


def has_open(pid: int, path: Path) -> bool:
    """Whether a process has a file open; not where that can't be told."""
    with contextlib.suppress(OSError):
        wanted = path.stat()
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found = handle.stat()
                if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                    return True
    return False
