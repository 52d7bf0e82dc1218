"""Memory that processes share by name: the IPC namespace and ``/dev/shm`` of a task.

Segments, semaphores and queues of System V, queues of POSIX, and files in ``/dev/shm`` stay until
somebody deletes them. In namespaces they go with the last process. Tasks of one gang share theirs
on a node, as MPI and NCCL need it. Standard library only.
"""

import ctypes
import os
from typing import Any

NEWIPC = 0x08000000
_FOLDER = b"/dev/shm"
_NOSUID, _NODEV, _REMOUNT = 2, 4, 32
#: The same numbers on every architecture. They need Linux 5.2.
_OPEN_TREE, _MOVE_MOUNT = 428, 429
_AT_FDCWD, _CLONE, _CLOEXEC, _FROM_HANDLE = -100, 1, os.O_CLOEXEC, 4


class MemorySpace:
    """The memory that the tasks of a gang share on this node.

    Attributes:
        members: attempts that use it.
        ipc: handle of the IPC namespace.
        tree: handle of a mount of ``/dev/shm`` for the next task; -1 if the kernel has none.
        size_bytes: size of ``/dev/shm``: the memory of all its tasks; 0 for the default.
    """

    __slots__ = ("ipc", "members", "size_bytes", "tree")

    def __init__(self, ipc: int, tree: int, size_bytes: int) -> None:
        self.members: set[str] = set()
        self.ipc = ipc
        self.tree = tree
        self.size_bytes = size_bytes

    def close(self) -> None:
        """Release the namespaces, which live on as long as processes in them."""
        for handle in (self.ipc, self.tree):
            if handle >= 0:
                os.close(handle)


class MemorySpaces:
    """The memory of the tasks of one supervisor. ``usable``: IPC namespaces can be made."""

    def __init__(self) -> None:
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self.usable = False
        self.problem = ""
        self._entered = False
        self._by_group: dict[str, MemorySpace] = {}
        try:
            self._home = os.open("/proc/self/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)
            self._unshare()
            self.leave()
            self.usable = True
        except OSError as problem:
            self.problem = f"IPC namespaces: {problem.strerror}"

    def enter(self, group: str | None, member: str, size_bytes: int | None) -> None:
        """Enter the memory of a task, in a mount namespace that is the task's already.

        Args:
            group: name of the gang that shares it on this node; empty for the task alone; None to
                stay in the host's IPC namespace.
            member: id of the attempt.
            size_bytes: what ``/dev/shm`` may hold for it, 0 for the default; None for the host's.

        Raises:
            OSError: it failed; :meth:`leave` goes back.
        """
        space = self._by_group.get(group) if group else None
        if space is None:
            if group is not None and self.usable:
                self._unshare()
            if size_bytes is not None:
                self._mount("tmpfs", _NOSUID | _NODEV, size_bytes)
            if group and self.usable:
                space = self._by_group[group] = MemorySpace(
                    os.open("/proc/self/ns/ipc", os.O_RDONLY | os.O_CLOEXEC),
                    -1 if size_bytes is None else self._copy(),
                    size_bytes or 0,
                )
        else:
            self._join(space, size_bytes)
        if space is not None:
            space.members.add(member)

    def leave(self) -> None:
        """Return to the original IPC namespace of this process."""
        if self._entered:
            self._check(self._libc.setns(self._home, NEWIPC), "the way back to the IPC namespace")
            self._entered = False

    def forget(self, member: str) -> None:
        """Forget an attempt that is over. The memory of its gang goes with the last one."""
        for group, space in list(self._by_group.items()):
            space.members.discard(member)
            if not space.members:
                space.close()
                del self._by_group[group]

    def _unshare(self) -> None:
        self._check(self._libc.unshare(NEWIPC), "an IPC namespace")
        self._entered = True

    def _join(self, space: MemorySpace, size_bytes: int | None) -> None:
        """Enter memory that another task of the gang has made."""
        self._check(self._libc.setns(space.ipc, NEWIPC), "the IPC namespace of its gang")
        self._entered = True
        if size_bytes is None:
            return
        if space.tree < 0:
            self._mount("tmpfs", _NOSUID | _NODEV, size_bytes)
            return
        found = self._libc.syscall(
            _MOVE_MOUNT, space.tree, b"", _AT_FDCWD, _FOLDER, ctypes.c_uint(_FROM_HANDLE)
        )
        self._check(found, "the shared memory of its gang")
        os.close(space.tree)
        space.tree = self._copy()
        if space.size_bytes and size_bytes:
            space.size_bytes += size_bytes
            self._mount("none", _REMOUNT | _NOSUID | _NODEV, space.size_bytes)

    def _copy(self) -> int:
        """Return a handle of another mount of ``/dev/shm``; -1 if the kernel makes none.

        Without one, the next task of the gang gets a folder of its own, and libraries communicate
        in other ways.
        """
        flags = ctypes.c_uint(_CLONE | _CLOEXEC)
        handle: int = self._libc.syscall(_OPEN_TREE, _AT_FDCWD, _FOLDER, flags)
        return handle

    def _mount(self, source: str, flags: int, size_bytes: int) -> None:
        size = f",size={size_bytes}" if size_bytes else ""
        found = self._libc.mount(
            source.encode(), _FOLDER, b"tmpfs", ctypes.c_ulong(flags), f"mode=1777{size}".encode()
        )
        self._check(found, _FOLDER.decode())

    @staticmethod
    def _check(found: int, what: str) -> None:
        if found != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")
