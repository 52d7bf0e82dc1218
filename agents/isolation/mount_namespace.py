"""A task's own view of some folders, in a mount namespace. Standard library only.

The single-threaded supervisor enters a new namespace, mounts what the task shall see, starts the
task and returns. The namespace lives as long as one of its processes, so no crash leaves a mount
behind.
"""

# ruff: noqa: PTH110, PTH112

import ctypes
import os
from typing import Any

from agents.isolation import memory_spaces

_NEWNS = 0x00020000
_NOSUID, _NODEV, _NOEXEC, _BIND, _REC, _SLAVE = 2, 4, 8, 4096, 16384, 1 << 19
#: What a folder that is kept in memory may hold, in MiB.
KEPT_MIB = 4
#: Kernel version since which each mount of ``/proc`` has its own options.
_OWN_PROC = (5, 8)


class SandboxError(OSError):
    """A view that could not be created."""


class Sandbox:
    """Mount namespaces for tasks. ``usable`` is True if this process may create them.

    Attributes:
        memory: the memory that processes of a task share by name.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.usable = False
        self.problem = ""
        self.memory: memory_spaces.MemorySpaces | None = None
        self.hides_processes = _kernel() >= _OWN_PROC
        try:
            self._home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            self.enter({})
        except OSError as problem:
            self.problem = f"mount namespaces: {problem.strerror or problem}"
            return
        self.leave()
        self.usable = True
        self.memory = memory_spaces.MemorySpaces()
        self.problem = self.memory.problem

    def enter(self, view: dict[str, Any], attempt: str = "") -> None:
        """Enter a new namespace and mount what ``view`` contains.

        Args:
            attempt: id of the attempt that the view is of.
            view: ``binds``: pairs of a folder, no link, and where to show it. ``shm_bytes``: size
                of an empty ``/dev/shm``, 0 for the default; missing for the host's. ``ipc``: name
                of the gang that shares this memory and its IPC namespace, empty for the task alone;
                missing for the host's namespace. ``masks``: files to replace by ``/dev/null``.
                ``hides``: folders to show empty. ``memory``: folder to keep in memory.
                ``own_processes``: show only the user's own processes in ``/proc``.

        Raises:
            SandboxError: it failed; this process is where it was.
        """
        self._check(self._libc.unshare(_NEWNS), "a mount namespace")
        try:
            self._mount("none", "/", "", _SLAVE | _REC, "")
            for source, target in view.get("binds", ()):
                self._bind(source, target)
            if self.memory is not None and ("shm_bytes" in view or "ipc" in view):
                self.memory.enter(view.get("ipc"), attempt, view.get("shm_bytes"))
            if "memory" in view:
                self._keep_in_memory(view["memory"])
            for path in view.get("hides", ()):
                if os.path.isdir(path):
                    flags = _NOSUID | _NODEV | _NOEXEC
                    self._mount("tmpfs", path, "tmpfs", flags, "mode=0755,size=4k")
            for path in view.get("masks", ()):
                if os.path.exists(path):
                    self._mount("/dev/null", path, "", _BIND, "")
            if view.get("own_processes") and self.hides_processes:
                self._mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC, "hidepid=2")
        except OSError:
            self.leave()
            raise

    def leave(self) -> None:
        """Return to the original namespaces of this process."""
        if self.memory is not None:
            self.memory.leave()
        self._check(self._libc.setns(self._home, _NEWNS), "the way back")

    def _bind(self, source: str, target: str) -> None:
        """Show a folder elsewhere, unless somebody has replaced it by a link."""
        handle = _itself(source, target)
        try:
            self._mount(f"/proc/self/fd/{handle}", target, "", _BIND, "")
        finally:
            os.close(handle)

    def _keep_in_memory(self, folder: str) -> None:
        """Mount an empty file system in memory over a folder, which must not be a link."""
        handle = _itself(folder, folder)
        try:
            self._mount("tmpfs", f"/proc/self/fd/{handle}", "tmpfs", _NOSUID | _NODEV | _NOEXEC,
                        f"mode=0755,size={KEPT_MIB}m")  # fmt: skip
        finally:
            os.close(handle)

    def _mount(self, source: str, target: str, kind: str, flags: int, data: str) -> None:
        found = self._libc.mount(
            os.fsencode(source), os.fsencode(target), kind.encode() or None,
            ctypes.c_ulong(flags), data.encode() or None,
        )  # fmt: skip
        self._check(found, target)

    def _check(self, found: int, what: str) -> None:
        if found != 0:
            number = ctypes.get_errno()
            raise SandboxError(number, f"{what}: {os.strerror(number)}")


def _itself(path: str, what: str) -> int:
    """Return a handle of a folder that is no link, in the present namespace."""
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as problem:
        number = problem.errno or 0
        raise SandboxError(number, f"{what}: {path}: {os.strerror(number)}") from None


def _kernel() -> tuple[int, ...]:
    """Return the kernel's version numbers."""
    words = os.uname().release.split("-")[0].split(".")
    return tuple(int(word) for word in words[:2] if word.isdigit())
