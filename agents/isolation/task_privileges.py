"""Takes from a task what no job needs of the node: rights to gain, capabilities, system calls.

Everything here acts on the calling process for good, and on what it starts. The caller is a forked
child. Standard library only.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from agents.isolation import system_call_filter

#: The setting of a pool, and the word in an order, by which tasks are restricted.
RESTRICTED = "restricted"
#: What is taken, by the names in which a node reports it.
NO_GAINS, NO_CAPABILITIES, FILTER = "no-new-privileges", "capabilities", "system-calls"

_PRCTL: Any = ctypes.PyDLL(None, use_errno=True).prctl
#: Declared, because each start calls it some forty times.
_PRCTL.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
#: A set of capabilities has 64 bits, of which Linux 5.9 uses 41.
_CAPABILITIES_MAX = 64


class Privileges(NamedTuple):
    """The privileges that can be taken from tasks on this machine.

    Attributes:
        restricts: what is taken, by name.
        problems: why the rest is not.
    """

    restricts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def restrict_as_root(self) -> None:
        """Empty the capability bounding set, before this process becomes another user.

        Raises:
            OSError: the kernel refuses what it did not refuse before.
        """
        if NO_CAPABILITIES in self.restricts:
            drop_capabilities()

    def restrict_as_user(self) -> None:
        """Take the rest, as the task's user.

        Raises:
            OSError: the kernel refuses what it did not refuse before.
        """
        if NO_GAINS in self.restricts:
            forbid_gains()
        if FILTER in self.restricts:
            system_call_filter.install()


def drop_capabilities() -> None:
    """Empty the capability bounding set of this process; raise OSError if it cannot be done."""
    for number in range(_CAPABILITIES_MAX):
        try:
            _prctl(_PR_CAPBSET_DROP, number)
        except OSError as problem:
            if problem.errno == errno.EINVAL and number:  # the kernel knows no more
                return
            raise


def forbid_gains() -> None:
    """Let no program that this process starts have more rights than itself, such as by setuid."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _prctl(option: int, value: int) -> None:
    if _PRCTL(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def tried() -> Privileges:
    """Return what can be taken here, by having a child try it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, _outcome().encode())
        finally:
            os._exit(0)
    os.close(write)
    words = b""
    while piece := os.read(read, 4096):
        words += piece
    os.close(read)
    os.waitpid(pid, 0)
    taken, problems = [], []
    for line in words.decode(errors="replace").split("\n"):
        name, _, problem = line.partition(": ")
        if problem:
            problems.append(f"{name} of tasks: {problem}")
        elif name:
            taken.append(name)
    return Privileges(tuple(taken), tuple(problems))


def _outcome() -> str:
    """Try everything on this process. Return a line for each: its name, and why it failed."""
    steps: list[tuple[str, Callable[[], None]]] = [
        (NO_GAINS, forbid_gains),
        (FILTER, system_call_filter.install),
    ]
    if os.geteuid() == 0:
        steps.insert(0, (NO_CAPABILITIES, drop_capabilities))
    lines = []
    for name, step in steps:
        try:
            step()
        except OSError as problem:
            lines.append(f"{name}: {problem.strerror}")
        else:
            lines.append(name)
    return "\n".join(lines)
