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
#: With this right a thread may take space that is kept for root, and more than a quota allows.
_CAP_SYS_RESOURCE = 24
_CAPABILITY_VERSION = 0x20080522


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
    rights = _rights()
    try:
        _set_rights([rights[0] & ~(1 << _CAP_SYS_RESOURCE), *rights[1:]])
        _set_groups(user.groups or (user.gid,))
        _set_ids(user.uid, user.gid)
        yield user.uid
    finally:
        # if this failed, the thread would keep fewer rights, not more
        _set_ids(uid, gid)
        _set_groups(groups)
        _set_rights(rights)


def _rights() -> list[int]:
    """Return the capabilities of this thread: effective, permitted and inheritable, in two parts
    of 32 each.
    """
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _check_call(_LIBC.capget(header, data))
    return list(data)


def _set_rights(rights: list[int]) -> None:
    """Set the capabilities of this thread alone, as the system call does."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _check_call(_LIBC.capset(header, (ctypes.c_uint32 * 6)(*rights)))


def _check_call(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capabilities: {os.strerror(number)}")


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
