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
from agents.logs import log_file, timestamps
from agents.state import ATTEMPT_PATTERN
from reconciler.model.protocol.agent_messages import LogChunk, LogRequest

FOLLOWERS_MAX = 32
LIFETIME_S = 3600.0
LOOK_EVERY_S = 0.2
#: A log of more than this many times its limit is checked again soon.
HURRIED_TIMES = 2
#: How often a silent log is sent anyway, to learn if anybody still reads.
ALIVE_EVERY_S = 15.0
#: Log files of ended tasks, however small, because listing them takes memory and time.
FILES_MAX = 20_000
REMEMBERED_MAX = 1024
POST_TIMEOUT_S = 30.0
#: Other readable streams: the history of a task's metrics, which limits itself.
READABLE = (*timestamps.STREAMS, "metrics")


class Rotation(NamedTuple):
    """Bytes that logs use, and if one has grown far beyond its limit since the last check."""

    total: int
    hurried: bool


def rotate(folder: Path, attempts: Iterable[str], limit: int) -> Rotation:
    """Rotate logs that are larger than ``limit`` bytes."""
    total, hurried = 0, False
    for attempt in attempts:
        for stream in timestamps.STREAMS:
            path = folder / f"{attempt}.{stream}"
            copy = log_file.copy_of(path)
            try:
                size = path.stat().st_size
                if size > limit:
                    hurried = hurried or size > HURRIED_TIMES * limit
                    log_file.turn_over(path, limit)
                    size = 0
                total += min(size, limit)
                total += copy.stat().st_size
            except OSError:
                continue
    return Rotation(total, hurried)


def prune(folder: Path, keep: set[str], bytes_max: int, age_s_max: float) -> int:
    """Delete the oldest logs of attempts not in ``keep`` until the limits hold. Return what is
    left.
    """
    old: list[tuple[float, int, str]] = []  # names only: thousands of paths take megabytes
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name.removesuffix(log_file.CUT).removesuffix(timestamps.TIMES)
            attempt = name.removesuffix(".1").rpartition(".")[0]
            if attempt not in keep:
                with contextlib.suppress(FileNotFoundError):
                    found = entry.stat()
                    old.append((found.st_mtime, found.st_size, entry.name))
    old.sort(reverse=True)
    total = left = 0
    oldest = time.time() - age_s_max
    for position, (changed_at, size, name) in enumerate(old):
        total += size
        if position >= FILES_MAX or total > bytes_max or changed_at < oldest:
            (folder / name).unlink(missing_ok=True)
        else:
            left += size
    return left


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
                post.send(LogChunk(offset=request.offset, end=True, error=error))
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
