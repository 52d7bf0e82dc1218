"""Decides if a path leads only over file systems that the supervisor itself depends on.

Starting a program in the supervisor's own process is fast, but blocks it for as long as a file
system does not answer. So it is done only for paths on the system's own disk. Nothing here accesses
another file system. Standard library only.
"""

# No pathlib here: it would cost the supervisor memory.
# ruff: noqa: PTH112, PTH115, PTH118

import os
import re
import select
import stat
import struct
import time
from collections.abc import Iterable

MOUNTS = "/proc/self/mountinfo"
#: File systems without a server or disk, besides the system's own.
OF_MEMORY = frozenset({"tmpfs", "ramfs"})
LINKS_MAX = 40
#: Interpreters of interpreters that the kernel allows.
DEPTH_MAX = 5
#: How long a result for a program is used, unless something is mounted.
KNOWN_S = 1.0
KNOWN_MAX = 64
_HEAD_BYTES = 4096
#: Fields at the start of a 64-bit ELF file: offset, entry size and number of program headers; and
#: of a header: type, offset and size.
_PARTS_AT, _PART_AT, _INTERPRETER = struct.Struct("<32xQ14xHH"), struct.Struct("<I4xQ16xQ"), 3
_ESCAPED = re.compile(r"\\([0-7]{3})")


def far_mounts(table: str, own: Iterable[str]) -> frozenset[str]:
    """Return mount points of file systems that may hang while the system works.

    Args:
        table: contents of ``mountinfo``.
        own: paths that this process needs anyway, whose file systems do not count.
    """
    devices: dict[str, tuple[str, bool]] = {}
    for line in table.split("\n"):
        told, _, kind = line.partition(" - ")
        words = told.split(" ")
        if len(words) > 4:
            point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), words[4])
            devices[point] = words[2], kind.split(" ")[0] in OF_MEMORY  # the last one is on top
    near = set()
    for path in own:
        while path not in devices and path not in {"/", ""}:
            path = os.path.dirname(path)  # noqa: PLW2901, PTH120 - up to where it is mounted
        near.add(devices.get(path, ("", False))[0])
    return frozenset(
        point for point, (device, memory) in devices.items() if not memory and device not in near
    )


def leads_astray(path: str, far: frozenset[str], start: str = "") -> bool:
    """Return True if following an absolute path leads to a far file system.

    A path that leads nowhere does not, because that is known at once. ``start`` is a folder at its
    beginning that is near and no link.
    """
    here = start if start and path.startswith(f"{start}/") else ""
    left = path[len(here) :].split("/")[::-1]
    links = 0
    while left:
        part = left.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            here = here.rpartition("/")[0]
            continue
        here = f"{here}/{part}"
        if here in far:
            return True
        try:
            if not stat.S_ISLNK(os.lstat(here).st_mode):
                continue
            target = os.readlink(here)
        except (OSError, ValueError):
            return False
        links += 1
        if links > LINKS_MAX:
            return False
        here = "" if target.startswith("/") else here.rpartition("/")[0]
        left += target.split("/")[::-1]
    return False


def interpreter_of(path: str) -> str | None:
    """Return the file that the kernel reads besides a program.

    The result is empty if there is no such file, and None if that is unknown.
    """
    try:
        # whatever it is, never wait for a remote system
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as problem:
        return "" if isinstance(problem, FileNotFoundError) else None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return ""
        return _interpreter_in(os.read(handle, _HEAD_BYTES))
    except OSError:
        return None
    finally:
        os.close(handle)


def _interpreter_in(head: bytes) -> str | None:
    """Return the interpreter named in the first bytes of a program."""
    if head.startswith(b"#!"):
        words = head[2:].partition(b"\n")[0].split()
        return os.fsdecode(words[0]) if words else ""
    if not head.startswith(b"\x7fELF\x02\x01"):
        return None
    try:
        at, size, count = _PARTS_AT.unpack_from(head)
        for number in range(count):
            kind, begins, length = _PART_AT.unpack_from(head, at + number * size)
            if kind == _INTERPRETER:
                name = head[begins : begins + length]
                return os.fsdecode(name.rstrip(b"\0")) if len(name) == length else None
    except (struct.error, OverflowError):  # further back than any linker would write it
        return None
    return ""


class LocalPaths:
    """The paths that are near, according to the present mounts."""

    def __init__(self, root: str, own: Iterable[str]) -> None:
        self._root = f"{root}/attempts"
        self._own = ["/", root, *map(os.path.realpath, own)]
        self._far: frozenset[str] = frozenset()
        self._known: dict[str, float] = {}
        self._changes = select.poll()
        try:
            self._table = os.open(MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._table = -1
            return
        self._changes.register(self._table, select.POLLPRI | select.POLLERR)
        self._look()

    def _look(self) -> None:
        os.lseek(self._table, 0, os.SEEK_SET)
        parts = []
        while part := os.read(self._table, 2**16):
            parts.append(part)
        self._far = far_mounts(os.fsdecode(b"".join(parts)), self._own)
        self._known = {}

    def has(self, attempt: str, cwd: str, command: str, path: str) -> bool:
        """Return True if everything that a start accesses is near.

        Args:
            attempt: its id.
            cwd: its working directory.
            command: its program, as it was ordered.
            path: folders in which the program is searched.
        """
        if self._table < 0:
            return False
        if self._changes.poll(0):
            self._look()
        # most lead to the folder just created for the attempt
        if cwd != f"{self._root}/{attempt}/work" and (not cwd.startswith("/") or self._strays(cwd)):
            return False
        if "/" in command:
            return self._runs(command if command.startswith("/") else os.path.join(cwd, command))
        for folder in path.split(":"):
            candidate = os.path.join(cwd, folder, command)
            if candidate in self._known and self._runs(candidate):
                return True
            if self._strays(candidate):
                return False
            if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
                return self._runs(candidate)
        return True  # it does not exist, which is known at once

    def _strays(self, path: str) -> bool:
        return leads_astray(path, self._far, self._root)

    def _runs(self, program: str, depth: int = DEPTH_MAX) -> bool:
        """Return True if everything that is read to run a program is near."""
        now = time.monotonic()
        if self._known.get(program, -KNOWN_S) + KNOWN_S > now:
            return True
        if depth == 0 or self._strays(program):
            return False
        needed = interpreter_of(program)
        if needed is None or (needed and not needed.startswith("/")):
            return False
        if needed and not self._runs(needed, depth - 1):
            return False
        if not program.startswith(f"{self._root}/"):  # another attempt has another file
            if len(self._known) >= KNOWN_MAX:
                self._known = {}
            self._known[program] = now
        return True
