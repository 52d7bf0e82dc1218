"""Accesses files as another user, in the calling thread alone.

A file system judges a thread by its own file-system ids, which root may change and change back.
Work done meanwhile can reach nothing that the user cannot. No process is started, and other threads
keep their rights. Not for starting programs: they would not run as the user.
"""

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

_LIBC: Any = ctypes.CDLL(None, use_errno=True)
#: The C library's function changes the groups of all threads; the system call does not.
_SETGROUPS = {"x86_64": 116, "ppc64le": 81, "s390x": 206}.get(os.uname().machine, 159)
_ASK = ctypes.c_uint(2**32 - 1)


class ActingUser(NamedTuple):
    """A user that files are accessed as, with the ids of all its groups."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


@contextlib.contextmanager
def acting_as(user: ActingUser | None) -> Iterator[int]:
    """Access files as a user until the context ends. Give the uid that new files get.

    Args:
        user: None for this process's own user.

    Raises:
        OSError: this process may not act as the user.
    """
    uid = os.geteuid()
    if user is None or user.uid == uid:
        yield uid
        return
    gid, groups = os.getegid(), os.getgroups()
    try:
        _set_groups(user.groups or (user.gid,))
        _set_ids(user.uid, user.gid)
        yield user.uid
    finally:
        # if this failed, the thread would keep fewer rights, not more
        _set_ids(uid, gid)
        _set_groups(groups)


def _set_groups(groups: "list[int] | tuple[int, ...]") -> None:
    array = (ctypes.c_uint32 * len(groups))(*groups)
    if _LIBC.syscall(_SETGROUPS, ctypes.c_size_t(len(groups)), array) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"groups of thread {threading.get_ident()}: {os.strerror(number)}")


def _set_ids(uid: int, gid: int) -> None:
    """Set the ids by which file systems judge this thread. The calls themselves report nothing."""
    _LIBC.setfsgid(ctypes.c_uint(gid))
    _LIBC.setfsuid(ctypes.c_uint(uid))
    found = _LIBC.setfsuid(_ASK), _LIBC.setfsgid(_ASK)
    if found != (uid, gid):
        raise PermissionError(1, f"this process may not access files as uid {uid}, gid {gid}")
