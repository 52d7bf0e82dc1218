"""Chooses which logs of ended tasks are deleted, so that no user takes the room of another.

The files of a folder of logs go in, the names of those to delete come out. A file counts with the
space that it takes on disk, because a task can give its log any size. Nothing is deleted here.
"""

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

#: What ``st_blocks`` counts in, on every file system.
BLOCK_BYTES = 512


class KeptLog(NamedTuple):
    """A file in the folder of logs, in the order of which is newer."""

    changed_at: float
    disk_bytes: int
    name: str
    uid: int


class LogSurplus(NamedTuple):
    """Names of files to delete, and the bytes that the other ones of ended tasks take."""

    names: list[str]
    left_bytes: int


def disk_bytes(found: os.stat_result) -> int:
    """Return the space that a file takes on disk."""
    return found.st_blocks * BLOCK_BYTES


def choose(
    ended: Iterable[KeptLog],
    running_bytes: dict[int, int],
    bytes_max: int,
    files_max: int,
    oldest: float,
) -> LogSurplus:
    """Choose files of ended tasks to delete until the limits hold.

    The oldest of the user who has most go first. A user whose logs take no more than an equal part
    of ``bytes_max`` loses none for their size, even if running tasks of others take the rest.

    Args:
        ended: files of ended tasks.
        running_bytes: space that logs of running tasks take, by uid.
        bytes_max: space for all logs.
        files_max: number of files of ended tasks.
        oldest: time before which files are too old.
    """
    names: list[str] = []
    queues: defaultdict[int, list[KeptLog]] = defaultdict(list)
    used = defaultdict(int, running_bytes)
    for log in sorted(ended, reverse=True):
        if log.changed_at < oldest:
            names.append(log.name)
        else:
            queues[log.uid].append(log)
            used[log.uid] += log.disk_bytes
    share = bytes_max / max(1, len(used))
    total, count = sum(used.values()), sum(map(len, queues.values()))

    def delete_oldest_of(uid: int) -> int:
        log = queues[uid].pop()
        if not queues[uid]:
            del queues[uid]
        names.append(log.name)
        used[log.uid] -= log.disk_bytes
        return log.disk_bytes

    while count > files_max:
        total -= delete_oldest_of(max(queues, key=lambda uid: len(queues[uid])))
        count -= 1
    while total > bytes_max:
        above = [uid for uid in queues if used[uid] > share]
        if not above:
            break
        total -= delete_oldest_of(max(above, key=lambda uid: used[uid]))
    return LogSurplus(names, sum(log.disk_bytes for logs in queues.values() for log in logs))
