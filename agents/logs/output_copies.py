"""Copies output of tasks to files of their users while they run.

Tasks write to their logs, as ever, and one thread for each task with such files copies what is new
there. So a file system that is full, slow or hangs delays neither tasks nor the agent. What a log
has lost in rotations before it was copied is named in the file. A note beside the log says how far
the copy is, for an agent that starts anew; what was copied just before one was killed may be
copied again.
"""

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from agents.host import acting_user
from agents.logs import log_file
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState

EVERY_S = 1.0
#: How long a file that can't be written is tried again after its task has ended.
AFTER_END_S = 60.0
#: Copies at the same time, those that hang included.
COPIES_MAX = 1000
#: How long the end of a task waits for its files at the most.
HOLD_S_MAX = 10.0
#: Suffix of notes.
NOTE = ".files"
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
Told = Callable[[AttemptReport], None]
_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class FilePlace(msgspec.Struct, frozen=True):
    """Where files of a user may be written.

    Attributes:
        user: None for this process's own.
        closed: folder of the agent, in which nothing may be written, except in ``open``.
    """

    user: acting_user.ActingUser | None
    closed: str
    open: str


class OutputCopy(msgspec.Struct):
    """The files of one task: a full path for each of its logs, and how much was copied of each.

    Attributes:
        paths: by the log, ``stdout`` or ``stderr``.
    """

    place: FilePlace
    paths: dict[str, str]
    offsets: dict[str, int] = {}


#: Made early: threads of an agent learn no types.
_DECODER = msgspec.json.Decoder(OutputCopy)


class OutputFileError(Exception):
    """A file that can't be written, and why."""


def open_file(path: str, place: FilePlace) -> int:
    """Return a handle that appends to a user's file, creating the file but no folder.

    Neither a link in place of the file is followed nor a file of somebody else written.

    Raises:
        OutputFileError: the file can't be opened.
    """
    parent, name = os.path.split(path)
    try:
        with acting_user.acting_as(place.user) as uid:
            folder = os.open(parent, _FOLDER_FLAGS)
            try:
                _check_folder(folder, path, place)
                handle = os.open(name, _FLAGS, 0o644, dir_fd=folder)
            finally:
                os.close(folder)
    except OSError as problem:
        raise OutputFileError(_refused(path, problem)) from None
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and found.st_uid == uid:
        return handle
    os.close(handle)
    what = (
        f"belongs to uid {found.st_uid}, not to the job's user"
        if stat.S_ISREG(found.st_mode)
        else "is no regular file"
    )
    raise OutputFileError(f"output file {path} {what}: name another one")


def _check_folder(folder: int, path: str, place: FilePlace) -> None:
    """Raise OutputFileError if a folder is one of the agent's."""
    real = str(Path(f"/proc/self/fd/{folder}").readlink())
    if _is_in(real, place.closed) and not _is_in(real, place.open):
        raise OutputFileError(f"output file {path} lies in the node's own folder: name another one")


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _refused(path: str, problem: OSError) -> str:
    """Return what is wrong with a file that could not be opened, and what to do."""
    parent = os.path.dirname(path)  # noqa: PTH120 - a path of a user, as it was written
    fix = {
        errno.ENOENT: f"; its folder must exist: mkdir -p {parent}",
        errno.ELOOP: "; it is a link: name the file itself",
    }.get(problem.errno or 0, "")
    return f"output file {path}: {os.strerror(problem.errno or 0)}{fix}"


class OutputCopies:
    """The copies of one node.

    Args:
        folder: where all logs are.
        every_s: seconds between two looks at a log.
    """

    def __init__(self, folder: Path, every_s: float = EVERY_S) -> None:
        self._folder = folder
        self._every_s = every_s
        self._lock = threading.Lock()
        #: Copies that are made, with what wakes each.
        self._running: dict[str, threading.Event] = {}
        #: Ends that are held back until all is copied, and what to do with them then.
        self._held: dict[str, tuple[AttemptReport, Told]] = {}
        self._ended: set[str] = set()
        #: Why files can't be written now, by attempt.
        self._problems: dict[str, str] = {}
        self._has_ended: Callable[[str], bool] = lambda _: False

    def begin(
        self, attempt: str, copy: OutputCopy, *, empties: bool, late_at: float | None = None
    ) -> None:
        """Open the files of an attempt, and copy its output from now on.

        Args:
            empties: True to empty them first.
            late_at: monotonic time from which on nobody waits for it any more.

        Raises:
            OutputFileError: one of them can't be written.
        """
        if len(self._running) >= COPIES_MAX:
            raise OutputFileError(
                f"{COPIES_MAX} tasks of this node copy their output to files: the storage hangs"
            )
        for path in dict.fromkeys(copy.paths.values()):
            handle = open_file(path, copy.place)
            try:
                if late_at is not None and time.monotonic() > late_at:
                    return  # another try may write it by now
                if empties:
                    os.ftruncate(handle, 0)
            except OSError as problem:
                raise OutputFileError(_refused(path, problem)) from None
            finally:
                os.close(handle)
        self._keep(attempt, copy)
        self._start(attempt, copy)

    def resume(self, has_ended: Callable[[str], bool]) -> None:
        """Go on with the copies of an earlier agent. Not before it is known what runs.

        Args:
            has_ended: returns True if nothing more can come from an attempt.
        """
        self._has_ended = has_ended
        for path in self._folder.glob(f"*{NOTE}"):
            attempt = path.name.removesuffix(NOTE)
            try:
                copy = _DECODER.decode(path.read_bytes())
            except (OSError, msgspec.DecodeError):  # nobody else writes it: its disk has lost it
                path.unlink(missing_ok=True)
                continue
            self._start(attempt, copy)

    def hold(self, reports: list[AttemptReport], told: Told) -> list[AttemptReport]:
        """Return reports without the ends of attempts whose output is still copied.

        ``told`` is called with each of those once it is, from another thread, or after a while, and
        then with why it is not.
        """
        passed: list[AttemptReport] = []
        with self._lock:
            for report in reports:
                wake = self._running.get(report.id)
                if report.state is not AttemptState.ENDED or wake is None:
                    passed.append(report)
                    continue
                self._held[report.id] = report, told
                self._ended.add(report.id)
                wake.set()
                timer = threading.Timer(HOLD_S_MAX, self._let_go, (report.id,))
                timer.daemon = True
                timer.start()
        return passed

    def _let_go(self, attempt: str) -> None:
        """Pass the end of an attempt on, if it is held back."""
        with self._lock:
            held = self._held.pop(attempt, None)
            problem = self._problems.get(attempt, "")
        if held is not None:
            report, told = held
            message = "; ".join(filter(None, (report.message, problem)))
            report = msgspec.structs.replace(report, message=message)
            told(report)

    def _start(self, attempt: str, copy: OutputCopy) -> None:
        with self._lock:
            if attempt in self._running:
                return
            self._running[attempt] = threading.Event()
        threading.Thread(target=self._copy, args=(attempt, copy), daemon=True).start()

    def _keep(self, attempt: str, copy: OutputCopy) -> None:
        """Note how far a copy is."""
        path = self._folder / f"{attempt}{NOTE}"
        part = path.with_name(f"{path.name}.part")
        with contextlib.suppress(OSError):  # without it, another agent would copy some again
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "wb") as stream:
                stream.write(msgspec.json.encode(copy))
            part.replace(path)

    def _copy(self, attempt: str, copy: OutputCopy) -> None:
        try:
            self._follow(attempt, copy)
        finally:
            with contextlib.suppress(OSError):
                (self._folder / f"{attempt}{NOTE}").unlink(missing_ok=True)
            with self._lock:
                self._running.pop(attempt, None)
                self._ended.discard(attempt)
            self._let_go(attempt)
            self._problems.pop(attempt, None)

    def _follow(self, attempt: str, copy: OutputCopy) -> None:
        """Copy until the attempt has ended and all is copied."""
        give_up: float | None = None
        wake = self._running[attempt]
        while True:
            last = attempt in self._ended or self._has_ended(attempt)
            try:
                moved, more = self._round(attempt, copy, last=last)
            except (OSError, OutputFileError) as problem:
                self._problems[attempt] = f"output is not whole in its file: {problem}"
                if last:
                    give_up = give_up or time.monotonic() + AFTER_END_S
                    if time.monotonic() > give_up:
                        return
                moved, more = False, True
            else:
                self._problems.pop(attempt, None)
            if moved:
                self._keep(attempt, copy)
            elif last and not more:
                return
            if not (moved and last):
                wake.wait(self._every_s)
                wake.clear()

    def _round(self, attempt: str, copy: OutputCopy, *, last: bool) -> tuple[bool, bool]:
        """Copy a piece of each log. Return if anything was copied, and if there may be more now."""
        moved = more = False
        shared = len(set(copy.paths.values())) < len(copy.paths)
        for stream, path in copy.paths.items():
            begun = copy.offsets.get(stream, 0)
            piece = log_file.read(self._folder / f"{attempt}.{stream}", begun)
            more = more or piece.turning
            data = piece.data or b""
            if shared and not last and len(data) < log_file.CHUNK_BYTES_MAX:
                # streams of one file take turns by lines; a bar of progress ends with \r
                data = data[: 1 + max(data.rfind(b"\n"), data.rfind(b"\r"))]
            if not data:
                continue
            lost = piece.offset - begun
            head = b"[%d bytes of %s are missing here]\n" % (lost, stream.encode()) if lost else b""
            handle = open_file(path, copy.place)
            try:
                _write(handle, head)
                copy.offsets[stream] = piece.offset
                copy.offsets[stream] += _write(handle, data)
            finally:
                os.close(handle)  # each time, so that readers at other machines see it
            moved = True
        return moved, more


def _write(handle: int, data: bytes) -> int:
    """Write bytes, and return how many there is room for.

    Raises:
        OSError: there is no room for any.
    """
    done = 0
    while done < len(data):
        try:
            done += os.write(handle, data[done:])
        except OSError:
            if not done:
                raise
            break
    return done
