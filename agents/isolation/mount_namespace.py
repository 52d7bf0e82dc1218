"""A task's own view of some folders, in a mount namespace: standard library only.

The supervisor, which has one thread, goes into a new namespace, mounts what the task is to see
there, starts it and comes back. The namespace lives as long as a process in it does: no mount is
ever left behind, whoever crashes.
"""

# ruff: noqa: PTH110

import ctypes
import os
from typing import Any

_NEWNS = 0x00020000
_NOSUID, _NODEV, _NOEXEC, _BIND, _REC, _SLAVE = 2, 4, 8, 4096, 16384, 1 << 19
#: From here on a mount of ``/proc`` has options of its own.
_OWN_PROC = (5, 8)


class SandboxError(OSError):
    """A view that could not be made, and of what."""


class Sandbox:
    """Namespaces for tasks. ``usable`` tells whether this process may make any."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.usable = False
        self.problem = ""
        self.hides_processes = _kernel() >= _OWN_PROC
        try:
            self._home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            self.enter({})
        except OSError as problem:
            self.problem = f"mount namespaces: {problem.strerror or problem}"
            return
        self.leave()
        self.usable = True

    def enter(self, view: dict[str, Any]) -> None:
        """Go into a new namespace and mount there what ``view`` says.

        ``binds``: pairs of a folder, which must not be a link, and where it is to be seen.
        ``shm_bytes``: an empty ``/dev/shm`` of so much, 0 for the kernel's default; missing: the
        host's.
        ``masks``: files, of devices for the most part, that are to be as ``/dev/null``.
        ``memory``: a folder that is to be in memory, and gone with the namespace.
        ``own_processes``: whether ``/proc`` shows those of the task's own user only.

        Raises:
            SandboxError: it could not be done; this process is where it was.
        """
        self._check(self._libc.unshare(_NEWNS), "a mount namespace")
        try:
            self._mount("none", "/", "", _SLAVE | _REC, "")
            for source, target in view.get("binds", ()):
                self._bind(source, target)
            if "shm_bytes" in view:
                size = f",size={view['shm_bytes']}" if view["shm_bytes"] else ""
                self._mount("tmpfs", "/dev/shm", "tmpfs", _NOSUID | _NODEV, f"mode=1777{size}")  # noqa: S108 - the task's own
            if "memory" in view:
                self._keep_in_memory(view["memory"])
            for path in view.get("masks", ()):
                if os.path.exists(path):
                    self._mount("/dev/null", path, "", _BIND, "")
            if view.get("own_processes") and self.hides_processes:
                self._mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC, "hidepid=2")
        except OSError:
            self.leave()
            raise

    def leave(self) -> None:
        """Come back to the namespace that this process came from."""
        self._check(self._libc.setns(self._home, _NEWNS), "the way back")

    def _bind(self, source: str, target: str) -> None:
        """Have a folder seen elsewhere; the folder is no link, whoever may have made one of it."""
        handle = _itself(source, target)
        try:
            self._mount(f"/proc/self/fd/{handle}", target, "", _BIND, "")
        finally:
            os.close(handle)

    def _keep_in_memory(self, folder: str) -> None:
        """Lay an empty file system in memory over a folder, which is no link either."""
        handle = _itself(folder, folder)
        try:
            self._mount("tmpfs", f"/proc/self/fd/{handle}", "tmpfs", _NOSUID | _NODEV | _NOEXEC,
                        "mode=0755,size=4m")  # fmt: skip
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
    """A handle of a folder that is no link, in the namespace that this process is in now."""
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as problem:
        number = problem.errno or 0
        raise SandboxError(number, f"{what}: {path}: {os.strerror(number)}") from None


def _kernel() -> tuple[int, ...]:
    """The kernel's version, as far as it is numbers."""
    words = os.uname().release.split("-")[0].split(".")
    return tuple(int(word) for word in words[:2] if word.isdigit())
