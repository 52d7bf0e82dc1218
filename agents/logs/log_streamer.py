"""Output of tasks: limits the size of log files, and sends logs to the controller for readers.

A log is rotated by copying and truncating it, because the task has it open; what is written in
between is lost. Logs outlive their attempt's folder until age or size limits delete them.
"""

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from agents.link.http_client import Connection, ControllerTarget, LinkError
from agents.logs import log_file, log_shares, timestamps
from agents.state import ATTEMPT_PATTERN
from reconciler.model.protocol.agent_messages import LogChunk, LogRequest

#: The controller asks for less at a time; those that nobody reads any more end some seconds later.
FOLLOWERS_MAX = 80
LIFETIME_S = 3600.0
LOOK_EVERY_S = 0.2
#: A log of more than this many times its limit is checked again soon.
HURRIED_TIMES = 2
#: Space that a file system may reserve for a growing log, beside twice its limit.
RESERVED_BYTES_MAX = 2**20
#: How often a silent log is sent anyway, to learn if anybody still reads.
ALIVE_EVERY_S = 15.0
#: Log files of ended tasks, however small, because listing them takes memory and time.
FILES_MAX = 20_000
REMEMBERED_MAX = 1024
#: Problems of one round that are told.
PROBLEMS_MAX = 8
POST_TIMEOUT_S = 30.0
#: Other readable streams: the history of a task's metrics, which limits itself.
READABLE = (*timestamps.STREAMS, "metrics")


class Rotation(NamedTuple):
    """Space that logs take on disk, if one has grown far beyond its limit since the last check, and
    what went wrong with single logs.
    """

    total: int
    hurried: bool
    problems: tuple[str, ...] = ()


def rotate(folder: Path, attempts: Iterable[str], limit: int) -> Rotation:
    """Rotate logs that are larger than ``limit`` bytes, or hold far more space than that.

    Whatever goes wrong with one log keeps no other from being rotated.
    """
    total, hurried = 0, False
    problems: list[str] = []
    for attempt in attempts:
        for stream in timestamps.STREAMS:
            path = folder / f"{attempt}.{stream}"
            try:
                used, grew = _rotate(path, limit)
                total += used
                hurried = hurried or grew
            except Exception as problem:  # a task writes it: nothing of it may stop the others
                if len(problems) < PROBLEMS_MAX:
                    problems.append(f"log {path} can't be rotated: {problem!r}")
    return Rotation(total, hurried, tuple(problems))


def _rotate(path: Path, limit: int) -> tuple[int, bool]:
    """Rotate a log if it must be. Return the space that it takes, and if it grows fast."""
    total, hurried = 0, False
    with contextlib.suppress(OSError):
        found = path.stat()
        used = log_shares.disk_bytes(found)
        if found.st_size > limit or used > HURRIED_TIMES * limit + RESERVED_BYTES_MAX:
            hurried = found.st_size > HURRIED_TIMES * limit
            with contextlib.suppress(BlockingIOError):  # its owner holds it: next time
                log_file.turn_over(path, limit)
                used = 0
        total += used
        total += log_shares.disk_bytes(log_file.copy_of(path).stat())
    return total, hurried


def prune(folder: Path, keep: set[str], bytes_max: int, age_s_max: float) -> int:
    """Delete logs of attempts not in ``keep`` until the limits hold, the oldest of each user first.

    Args:
        folder: where all logs are.
        keep: running attempts. Their logs count, but are not deleted.
        bytes_max: space on disk for all logs.
        age_s_max: age at which logs are deleted in any case.

    Returns:
        Space that logs of other attempts still take.
    """
    own = os.geteuid()
    files: list[tuple[float, int, str]] = []  # names only: thousands of paths take megabytes
    owners: dict[str, int] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                files.append((found.st_mtime, log_shares.disk_bytes(found), entry.name))
                if found.st_uid != own:  # the agent's own files beside a log are its user's, too
                    owners[_attempt_of(entry.name)] = found.st_uid
    ended: list[log_shares.KeptLog] = []
    running: dict[int, int] = {}
    for changed_at, used, name in files:
        attempt = _attempt_of(name)
        uid = owners.get(attempt, own)
        if attempt in keep:
            running[uid] = running.get(uid, 0) + used
        else:
            ended.append(log_shares.KeptLog(changed_at, used, name, uid))
    surplus = log_shares.choose(ended, running, bytes_max, FILES_MAX, time.time() - age_s_max)
    for name in surplus.names:
        with contextlib.suppress(OSError):  # one that can't be deleted keeps no other from it
            (folder / name).unlink()
    return surplus.left_bytes


def _attempt_of(name: str) -> str:
    """Return the attempt that a file in the folder of logs belongs to."""
    name = name.removesuffix(log_file.CUT).removesuffix(timestamps.TIMES)
    return name.removesuffix(".1").rpartition(".")[0]


class LogStreams:
    """Threads that send logs; their number and time are limited."""

    def __init__(
        self,
        folder: Path,
        node: str,
        target: ControllerTarget,
        has_ended: Callable[[str], bool],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder = folder
        self._node = node
        self._target = target
        self._has_ended = has_ended
        self._pause = pause
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._active = 0
        self._lock = threading.Lock()

    def add(self, request: LogRequest) -> None:
        """Serve a request. Repeated requests are served once."""
        with self._lock:
            if request.id in self._seen:
                return
            self._seen[request.id] = None
            while len(self._seen) > REMEMBERED_MAX:
                self._seen.popitem(last=False)
            if self._active >= 2 * FOLLOWERS_MAX:
                del self._seen[request.id]
                return
            full = self._active >= FOLLOWERS_MAX
            self._active += 1
        threading.Thread(target=self._serve, args=(request, full), daemon=True).start()

    def _serve(self, request: LogRequest, full: bool) -> None:  # noqa: FBT001
        post = LogConnection(self._target, f"/v1/nodes/{self._node}/logs/{request.id}")
        try:
            if full:
                error = f"node {self._node} already sends {FOLLOWERS_MAX} logs; try again later"
                post.send(LogChunk(offset=request.offset, end=True, error=error, full=True))
            else:
                self._follow(request, post)
        except (LinkError, OSError) as problem:
            error = f"its {request.stream} was cut off: {problem}"
            # If the controller can't be reached, the reader's connection just ends.
            with contextlib.suppress(LinkError):
                post.send(LogChunk(offset=request.offset, end=True, error=error))
        finally:
            post.close()
            with self._lock:
                self._active -= 1

    def _follow(self, request: LogRequest, post: "LogConnection") -> None:
        name = f"{request.attempt}.{request.stream}"
        if request.stream not in READABLE or not ATTEMPT_PATTERN.fullmatch(request.attempt):
            post.send(LogChunk(end=True, error=f"there is no log {name!r}: stdout and stderr are"))
            return
        path, offset = self._folder / name, request.offset
        give_up = time.monotonic() + LIFETIME_S
        posted_at = time.monotonic()
        while True:
            last = not request.follow or self._has_ended(request.attempt)
            piece = log_file.read(path, offset, times=request.times)
            data, offset = piece.data, piece.offset
            if data is None and last:
                error = f"node {self._node} keeps no {request.stream} of this try"
                post.send(LogChunk(offset=offset, end=True, error=error))
                return
            if data:
                if not post.send(LogChunk(data=data, offset=offset, marks=piece.marks)):
                    return
                offset, posted_at = offset + len(data), time.monotonic()
                continue
            if (last and not piece.turning) or time.monotonic() > give_up:
                post.send(LogChunk(offset=offset, end=True))
                return
            if time.monotonic() > posted_at + ALIVE_EVERY_S:
                posted_at = time.monotonic()
                if not post.send(LogChunk(offset=offset)):
                    return
            self._pause(LOOK_EVERY_S)


class LogConnection:
    """The connection by which pieces of one log are sent."""

    def __init__(self, target: ControllerTarget, path: str) -> None:
        self._connection = Connection(target)
        self._path = path

    def send(self, chunk: LogChunk) -> bool:
        """Send a piece. Return False if nobody reads any more."""
        body = msgspec.msgpack.encode(chunk)
        status, answer = self._connection.post(self._path, body, POST_TIMEOUT_S)
        if 200 <= status < 300:
            return True
        if status in {404, 410}:
            return False
        raise LinkError(f"the controller answered {status} {answer[:200]!r}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
