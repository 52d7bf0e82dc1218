"""Tables of the kernel that the whole machine shares, and what of them one task may take.

No control group counts asynchronous I/O, terminals and the like, so that a task can take all there
are. Of processes it is held to a part. Not here is what the kernel counts by user (``user.max_*``,
``fs.inotify.max_*``, ``fs.epoll.max_user_watches``, keys), or by IPC namespace, which tasks have of
their own.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

#: A task may have one part of so many of all processes that the machine may have.
PIDS_PARTS = 4
#: Fewer than this are too few for a program with many threads, whatever the machine may have.
PIDS_MIN = 4096


class KernelTable(msgspec.Struct, frozen=True):
    """A table by its sysctl: what it counts, how many a task may want, and the most it may have."""

    sysctl: str
    counts: str
    task_wants: int
    most: int

    def wanted(self, tasks: int) -> int:
        """Return how many are enough for so many tasks."""
        return min(max(1, tasks) * self.task_wants, self.most)

    def found(self, top: Path = Path("/")) -> int | None:
        """Return how many there may be now; None if the kernel does not tell."""
        try:
            return int((top / "proc/sys" / self.sysctl.replace(".", "/")).read_text())
        except (OSError, ValueError):
            return None


#: ``task_wants`` are an agent's default limit, what the kernel allows all tasks, and what a program
#: that is meant well may use.
PIDS = KernelTable("kernel.pid_max", "processes", 32_768, 2**22)
THREADS = KernelTable("kernel.threads-max", "threads", 32_768, 2**22)
TABLES = (
    PIDS,
    THREADS,
    KernelTable("fs.aio-max-nr", "requests of asynchronous I/O", 2**16, 2**30),
    KernelTable("kernel.pty.max", "terminals", 1024, 2**20),
    KernelTable("fs.file-max", "open files", 2**20, 2**40),
)


def pids_max(wanted: int, top: Path = Path("/")) -> int:
    """Return how many processes and threads a task may have: what is wanted, or a part of all.

    Args:
        wanted: by the agent's options; 0 for no limit, which stays none.
        top: folder that contains ``/proc``.
    """
    if not wanted:
        return 0
    found = [number for table in (PIDS, THREADS) if (number := table.found(top)) is not None]
    return min([wanted, *(max(PIDS_MIN, number // PIDS_PARTS) for number in found)])


def too_small(tasks: int, top: Path = Path("/")) -> Iterator[tuple[KernelTable, int]]:
    """Yield each table that is too small for so many tasks, with how many it has."""
    for table in TABLES:
        found = table.found(top)
        if found is not None and found < table.wanted(tasks):
            yield table, found
