"""Quotas of projects, by which the file system bounds what a task's folders take. Stdlib only.

XFS and ext4 have them, where they are mounted with ``prjquota``. Each attempt's folders become a
project of their own, whose number comes from the folder's inode: nobody has to remember it, and as
long as the folder is there no other one has it.
"""

# No pathlib or contextlib here: they would cost the supervisor memory.
# ruff: noqa: PTH102, PTH106, PTH116, PTH123

import ctypes
import errno
import fcntl
import os
import struct
from typing import Any, NamedTuple

#: ``struct fsxattr``: flags, extent size, extents, project, extent size of copies, padding.
_ATTRIBUTES = struct.Struct("=IIIII8x")
_GET_ATTRIBUTES, _SET_ATTRIBUTES = 0x801C_581F, 0x401C_5820
#: What is made in a folder belongs to its project.
_INHERIT = 0x200
#: ``struct if_dqblk``: hard and soft limit of blocks, space, the same of inodes, two times, and
#: which of these count. Limits are in blocks of 1 KiB on every file system.
LIMITS = struct.Struct("=QQQQQQQQI4x")
_BLOCK_BYTES, _BLOCK_LIMITS_COUNT = 1024, 1
#: Commands of ``quotactl`` for projects; the call that takes a descriptor is of Linux 5.14, and has
#: the same number on every architecture.
_GET_QUOTA, _SET_QUOTA, _QUOTACTL_FD = 0x8000_0702, 0x8000_0802, 443
#: Projects of tasks have numbers from here on; sites number their own from 1.
FIRST_PROJECT = 2**31
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SYSCALL: Any = ctypes.PyDLL(None, use_errno=True).syscall


class Kernel:
    """The calls of the kernel that quotas take."""

    def ioctl(self, handle: int, code: int, argument: bytes) -> bytes:
        """Call ``ioctl``. Return what it wrote over its argument."""
        return fcntl.ioctl(handle, code, argument)

    def quotactl(self, handle: int, command: int, project: int, limits: bytes) -> bytes:
        """Call ``quotactl_fd``. Return what it wrote over the limits.

        Raises:
            OSError: ENOSYS before Linux 5.14, ESRCH without quotas.
        """
        block = ctypes.create_string_buffer(limits, len(limits))
        numbers = (_QUOTACTL_FD, handle, command, project)
        if _SYSCALL(*map(ctypes.c_long, numbers), block) != 0:
            problem = ctypes.get_errno()
            raise OSError(problem, os.strerror(problem))
        return block.raw


class Offer(NamedTuple):
    """Availability of quotas of projects; ``problem`` says why there are none."""

    usable: bool
    problem: str = ""


_KERNEL = Kernel()


def offer(
    root: str, kernel: Kernel = _KERNEL, mounts: str = "/proc/self/mountinfo", uid: int = -1
) -> Offer:
    """Find out if tasks below a node's folder can have quotas.

    Args:
        root: the node's folder, which is there.
        kernel: makes the calls.
        mounts: file with the mounted file systems.
        uid: who sets quotas; this process's user if it is negative.
    """
    if (os.geteuid() if uid < 0 else uid) != 0:
        return Offer(False, "only root sets quotas")
    try:
        kind, options = _mounted(os.stat(root).st_dev, mounts)
        if "prjquota" not in options:
            return Offer(False, f"the file system ({kind}) is not mounted with prjquota")
        handle = os.open(root, _FOLDER)
        try:
            kernel.quotactl(handle, _GET_QUOTA, FIRST_PROJECT, bytes(LIMITS.size))
        finally:
            os.close(handle)
    except OSError as problem:
        if problem.errno == errno.ENOSYS:
            return Offer(False, "the kernel is older than 5.14")
        if problem.errno != errno.ENOENT:  # the quotas are on, and nobody has this one yet
            return Offer(False, f"quotas can't be asked for: {problem.strerror}")
    return Offer(True)


def _mounted(device: int, mounts: str) -> tuple[str, list[str]]:
    """Return type and options of a mounted file system, by its device."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with open(mounts, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            head, _, tail = line.partition(" - ")
            if head.split()[2:3] == [number]:
                kind, _, options = tail.split()[:3]
                return kind, options.split(",")
    return "unknown", []


def project_of(inode: int) -> int:
    """Return the number of the project of an attempt's folder."""
    return FIRST_PROJECT + inode % (FIRST_PROJECT - 1)  # the last number is nobody's


def limit(folder: str, limit_bytes: int, kernel: Kernel = _KERNEL) -> None:
    """Bound what an attempt's fresh folder, ``work`` and ``tmp`` in it, and all below may take.

    Raises:
        OSError: the file system refuses.
    """
    outer = os.open(folder, _FOLDER)
    try:
        project = project_of(os.fstat(outer).st_ino)
        blocks = max(1, limit_bytes // _BLOCK_BYTES)
        wanted = LIMITS.pack(blocks, 0, 0, 0, 0, 0, 0, 0, _BLOCK_LIMITS_COUNT)
        kernel.quotactl(outer, _SET_QUOTA, project, wanted)
        _assign(outer, project, kernel)
        for name in ("work", "tmp"):
            inner = os.open(name, _FOLDER, dir_fd=outer)
            try:
                _assign(inner, project, kernel)
            finally:
                os.close(inner)
    finally:
        os.close(outer)


def rehearse(root: str, kernel: Kernel = _KERNEL) -> str:
    """Set the quota of a folder below a node's folder as of a task, and remove that folder again.

    Return why it can't be set, or an empty text.
    """
    folder = f"{root}/.quota-{os.getpid()}"
    made = []
    try:
        for path in ("", "/work", "/tmp"):  # noqa: S108 - below the folder
            os.mkdir(folder + path, 0o700)
            made.append(folder + path)
        limit(folder, _BLOCK_BYTES, kernel)
    except OSError as problem:
        return problem.strerror or str(problem)
    finally:
        for path in reversed(made):
            os.rmdir(path)
    return ""


def _assign(handle: int, project: int, kernel: Kernel) -> None:
    """Make a folder, and what is made in it later, part of a project."""
    found = kernel.ioctl(handle, _GET_ATTRIBUTES, bytes(_ATTRIBUTES.size))
    flags, extent, _, _, copies = _ATTRIBUTES.unpack(found)
    wanted = _ATTRIBUTES.pack(flags | _INHERIT, extent, 0, project, copies)
    kernel.ioctl(handle, _SET_ATTRIBUTES, wanted)
