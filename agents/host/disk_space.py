"""Explains why a file cannot be created or written: what the file system lacks, and how to
fix it.
"""

import errno
import os
import pwd
import re
from pathlib import Path

from reconciler.model.values import quantities

#: Errors that the state of the file system can explain.
EXPLAINED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
#: How programs say that a disk is full, and that their user may have no more of it.
_FULL = re.compile(r"no space (is )?left on", re.IGNORECASE)
_OVER_QUOTA = re.compile(r"disk quota exceeded", re.IGNORECASE)
#: What is wrong if what runs as a job's user may write no more: the node has nothing to do with it.
OVER_QUOTA = (
    "the disk quota of the job's user is used up there. To fix: delete files of yours, or have the "
    "quota raised (quota -s shows it)"
)
_DO = "make room there, or give the agent another folder with --root"


class FullDiskError(Exception):
    """A lack of room on this node, which is not the fault of the task that met it."""


def is_lack(problem: OSError) -> bool:
    """Return True if an error says that a file system takes nothing more."""
    return problem.errno in EXPLAINED


def says_full(text: str) -> bool:
    """Return True if a program's message says that a disk of this node is full."""
    return _FULL.search(text) is not None


def says_over_quota(text: str) -> bool:
    """Return True if a program's message says that its user's quota is used up."""
    return _OVER_QUOTA.search(text) is not None


def explained(problem: OSError, root: Path) -> str:
    """Return the text of an error, with what the file system lacks.

    Args:
        problem: the system's error. If it names no file, the text is about ``root``.
        root: the node's folder, which need not exist.
    """
    name = os.fsdecode(problem.filename) if isinstance(problem.filename, str | bytes) else ""
    what = f"{name}: {problem.strerror}" if name and problem.strerror else str(problem)
    if problem.errno not in EXPLAINED:
        return what
    return f"{what}: {lacking(Path(name or root), problem.errno)}"


def is_short(path: Path) -> bool:
    """Return True if nothing more can be created or written on the file system of a path."""
    try:
        found = os.statvfs(_mounted_at(path))
    except OSError:
        return False
    return not found.f_bavail or bool(found.f_files and not found.f_favail)


def lacking(path: Path, number: int | None = errno.ENOSPC) -> str:
    """Return what the file system of a path lacks, given the error with which it refuses writes."""
    place = _mounted_at(path)
    if number == errno.EROFS:
        return (
            f"the file system at {place} is mounted read-only, as the kernel does after errors of "
            f"a disk: see dmesg, and mount -o remount,rw {place}, or choose another --root"
        )
    if number == errno.EDQUOT:
        user = _user()
        return (
            f"the quota of {user} on the file system at {place} is used up: delete some of its "
            f"files or raise the quota (quota -s {user}), or choose another --root"
        )
    try:
        found = os.statvfs(place)
    except OSError as problem:
        return f"the file system at {place} can't be asked: {problem.strerror}"
    size = amount(found.f_blocks * found.f_frsize)
    if found.f_files and not found.f_favail:
        return (
            f"the file system at {place} has none of its {found.f_files} files (inodes) left, "
            f"whatever room it has: see df -i {place}, and {_DO}"
        )
    if not found.f_bavail:
        reserved_bytes = found.f_bfree * found.f_frsize
        more = f" but what is kept for root, {amount(reserved_bytes)}" if reserved_bytes else ""
        return f"the file system at {place} has none of its {size} free{more}: {_DO}"
    free, files = amount(found.f_bavail * found.f_frsize), found.f_favail
    return (
        f"the file system at {place} has {free} of {size} and {files} files free by now; it was "
        f"full a moment ago, or a quota is: {_DO}"
    )


def _mounted_at(path: Path) -> Path:
    """Return the mount point of the file system of a path that need not exist."""
    place = path.absolute()
    while not place.exists() or not place.is_mount():
        if place == place.parent:
            break
        place = place.parent
    return place


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def amount(size_bytes: int) -> str:
    """Format an amount in the largest unit of which it has at least one."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        scale = quantities.MEMORY_SUFFIXES[unit]
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f}".removesuffix(".0") + unit
    return f"{size_bytes} bytes"
