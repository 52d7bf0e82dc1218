"""Gives this thread, and what it starts, a session keyring of its own. Standard library only.

A process inherits the session keyring of its parent, with the right to read and search all that is
in it. Tasks and helpers of different users would share the tickets and passwords that one of them
has put there. A keyring goes with its last process.
"""

import ctypes
import errno
import os
from typing import Any

_NUMBERS = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
_KEYCTL = _NUMBERS.get(os.uname().machine)
_JOIN_SESSION_KEYRING = 1
#: A kernel without keyrings, or a filter of system calls that leaves nothing to share either.
_UNAVAILABLE = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES})
#: Keeps the interpreter's lock: the caller may be a forked child.
_SYSCALL: Any = ctypes.PyDLL(None, use_errno=True).syscall


def join_new() -> bool:
    """Leave the session keyring of this thread for a new one. Return False if there are none.

    Only this thread changes. Call it before a switch of user, because the keyring counts against
    the quota of the one who joins: a user's is 200 keys, root's a million.

    Raises:
        OSError: the kernel has keyrings, but refuses another one.
    """
    if _KEYCTL is None:
        return False
    if _SYSCALL(ctypes.c_long(_KEYCTL), ctypes.c_long(_JOIN_SESSION_KEYRING), None) >= 0:
        return True
    number = ctypes.get_errno()
    if number in _UNAVAILABLE:
        return False
    raise OSError(number, f"a new session keyring: {os.strerror(number)}")
