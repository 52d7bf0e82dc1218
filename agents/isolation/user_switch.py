"""Makes a helper of the agent a process of a task's user, for which it works. Stdlib only."""

import ctypes
import os
import signal
from collections.abc import Sequence

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38


def begin(user: Sequence[str]) -> bool:
    """Become a user for good, and end with the parent. Return False if that is gone already.

    Args:
        user: uid, gid and groups with commas between them; empty: this process's own user.

    Raises:
        OSError: this process may not become that user; it must not go on.
    """
    parent = os.getppid()
    if user:
        become(*user)  # first of all: it cancels the signal below
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def become(uid: str, gid: str, groups: str) -> None:
    """Become a user for good, so that no process of that user can trace this one.

    Raises:
        OSError: this process may not; it must not go on.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    os.setgroups([int(group) for group in groups.split(",") if group])
    os.setgid(int(gid))
    os.setuid(int(uid))
    for option, value in ((_PR_SET_DUMPABLE, 0), (_PR_SET_NO_NEW_PRIVS, 1)):
        if prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
