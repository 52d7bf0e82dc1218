"""Packs of code on this node, by what they hold and whose they are: fetched once, kept while there
is room.

Only the agent reads and writes here. What a pack holds is read as the job's user alone, from an
open file (see ``code_worker``).
"""

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from agents.host import disk_space
from agents.link import http_client
from agents.tasks.node_context import UnstartableError
from reconciler.model.observed import job_code
from reconciler.model.state.states import EndReason

#: The most bytes that are kept, and the most of the file system.
CACHE_BYTES_MAX, CACHE_RATIO_MAX = 4 * 2**30, 0.05
#: How long one answer, and all of a pack with its repetitions, may take.
ANSWER_S, FETCH_S = 60.0, 600.0
#: How long to wait before the controller is asked again.
PAUSE_S, PAUSE_S_MAX = 0.5, 10.0
#: How often a waiting start looks if it is still wanted.
LOOK_S = 0.25
_READ_BYTES = 2**20

IsWanted = Callable[[], bool]


class CodeUnwantedError(Exception):
    """Error: nobody needs the code any more."""


class WantedPack(NamedTuple):
    """A pack, the attempt that is given it, its job's owner, and whether it still waits."""

    digest: str
    attempt: str
    owner: str
    is_wanted: IsWanted

    @property
    def name(self) -> str:
        """Name of its file. Who knows a digest has no right to what another has sent, so that each
        owner's are apart.
        """
        owner = hashlib.sha256(self.owner.encode()).hexdigest()
        return f"{self.digest.removeprefix(job_code.DIGEST_PREFIX)}-{owner}"


class PackCache:
    """The packs of one node. Any thread may use it.

    Args:
        folder: of the packs.
        node: name of this node.
        target: the controller.
        limit_bytes: the most that is kept; 0 for a part of the file system.
    """

    def __init__(
        self, folder: Path, node: str, target: http_client.ControllerTarget, limit_bytes: int = 0
    ) -> None:
        self._folder = folder
        self._node = node
        self._target = target
        folder.mkdir(mode=0o700, exist_ok=True)
        for part in folder.glob("*.part"):
            part.unlink()
        space = os.statvfs(folder)
        share = int(space.f_blocks * space.f_frsize * CACHE_RATIO_MAX)
        self._limit_bytes = limit_bytes or min(CACHE_BYTES_MAX, share)
        self._lock = threading.Lock()
        #: Packs that are being fetched or read, each by one thread.
        self._busy: set[str] = set()

    @contextlib.contextmanager
    def opened(self, wanted: WantedPack) -> Iterator[int]:
        """Give a handle of a pack, which is fetched first unless it is here.

        Raises:
            UnstartableError: it can't be had, or is not what its digest says.
            FullDiskError: this node has no room for it.
            CodeUnwantedError: nobody waits for it any more.
        """
        path = self._folder / wanted.name
        with self._alone(wanted):
            handle = _open_whole(path, wanted.digest)
            if handle < 0:
                try:
                    self._fetch(path, wanted)
                    self._remove_surplus(path)
                    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as problem:
                    if disk_space.is_lack(problem):
                        raise disk_space.FullDiskError(f"code: {problem}") from None
                    raise UnstartableError(f"code: {problem}", EndReason.STAGE_FAILED) from None
        try:
            yield handle
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def _alone(self, wanted: WantedPack) -> Iterator[None]:
        """Wait until no other start fetches the same pack."""
        while True:
            with self._lock:
                if wanted.name not in self._busy:
                    self._busy.add(wanted.name)
                    break
            if not wanted.is_wanted():
                raise CodeUnwantedError
            time.sleep(LOOK_S)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(wanted.name)

    def _fetch(self, path: Path, wanted: WantedPack) -> None:
        """Write a pack under its name once it is whole."""
        part = path.with_suffix(".part")
        try:
            with open(part, "xb", opener=_open_private) as file:
                found = hashlib.sha256()
                for piece in self._pieces(wanted):
                    file.write(piece)
                    found.update(piece)
                if job_code.DIGEST_PREFIX + found.hexdigest() != wanted.digest:
                    raise UnstartableError(
                        f"code: found a pack with the SHA-256 {found.hexdigest()}, expected "
                        f"{wanted.digest}: it was changed on the controller's disk or on its way. "
                        "To fix: submit the job again with --code"
                    )
                file.flush()
                os.fsync(file.fileno())
            part.rename(path)
        finally:
            part.unlink(missing_ok=True)

    def _pieces(self, wanted: WantedPack) -> Iterator[bytes]:
        """Yield a pack piece by piece, as the controller sends it."""
        ends_at = time.monotonic() + FETCH_S
        offset, pause_s, last = 0, PAUSE_S, ""
        connection = http_client.Connection(self._target)
        try:
            while time.monotonic() < ends_at:
                if not wanted.is_wanted():
                    raise CodeUnwantedError
                where = f"/v1/nodes/{self._node}/code/{wanted.attempt}/{offset}"
                try:
                    status, answer = connection.get(where, ANSWER_S)
                except http_client.LinkError as problem:
                    status, answer, last = 0, b"", str(problem)
                if status == 200:
                    offset, pause_s = offset + len(answer), PAUSE_S
                    if offset > job_code.PACK_BYTES_MAX:
                        raise UnstartableError(
                            f"code: the pack is larger than {job_code.PACK_BYTES_MAX} bytes"
                        )
                    yield answer
                    if len(answer) < job_code.PIECE_BYTES_MAX:
                        return
                    continue
                if status:
                    last = f"{status} {http_client.message_of(answer)}"
                if status == 404:
                    raise UnstartableError(f"code: {http_client.message_of(answer)}")
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
        finally:
            connection.close()
        raise UnstartableError(
            f"code: the controller did not give all of it in {FETCH_S:g} s; last: {last}",
            EndReason.STAGE_FAILED,
        )

    def _remove_surplus(self, kept: Path) -> None:
        """Remove packs that were not used for longest until the rest is within the limit."""
        found = []
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                facts = path.stat()
                found.append((path == kept, facts.st_mtime_ns, facts.st_size, path))
        total = sum(size for _, _, size, _ in found)
        for is_kept, _, size, path in sorted(found):
            if total <= self._limit_bytes or is_kept:
                return
            path.unlink(missing_ok=True)  # who reads it has it open
            total -= size


def _open_whole(path: Path, digest: str) -> int:
    """Return a handle of a pack that is here and is what its digest says; -1 if there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return -1
    try:
        found = hashlib.sha256()
        while piece := os.read(handle, _READ_BYTES):
            found.update(piece)
        if job_code.DIGEST_PREFIX + found.hexdigest() == digest:
            os.lseek(handle, 0, os.SEEK_SET)
            os.utime(handle)  # the last use
            return handle
    except OSError:  # a disk with errors: fetched again
        pass
    os.close(handle)
    path.unlink(missing_ok=True)
    return -1


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
