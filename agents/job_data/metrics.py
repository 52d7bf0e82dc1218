"""Reads what tasks write to ``$MUSTER_METRICS``: newest values for reports, history for plots.

The file belongs to its task, so it is opened without following links and must be a regular file of
the task's user. The amount read at a time is limited; of faster tasks the middle is skipped and
reported. The history is kept with the logs as ``ATTEMPT.metrics``; if it grows, every second point
is dropped.
"""

import contextlib
import json
import os
import shutil
import stat
import threading
import time
from pathlib import Path

import msgspec

from agents.job_data import metric_lines
from agents.logs import rotation
from agents.tasklib import muster
from reconciler.model.observed import task_reports
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState

EVERY_S = 5.0
READ_BYTES_MAX = 128 * 1024
#: Bytes that a task may be ahead before some are skipped.
BEHIND_BYTES_MAX = 4 * 2**20
#: Bytes read after its end, in pieces: its end is reported afterwards.
LAST_BYTES_MAX = 2**20
#: Rows of one attempt's history.
ROWS_MAX = 4000
#: Kinds of rows, by their series, that are thinned out separately.
SORTS_MAX = 64
FILE = "metrics"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def install(root: Path) -> None:
    """Install the module that tasks may import, if there is room.

    An agent must start on a full disk, or nothing there would ever be deleted.
    """
    folder, source = root / "lib", Path(muster.__file__)
    folder.mkdir(mode=0o755, exist_ok=True)
    folder.chmod(0o755)
    part = folder / "muster.py.part"
    with contextlib.suppress(OSError):
        shutil.copyfile(source, part)
        part.chmod(0o644)
        part.replace(folder / "muster.py")


class ReadPosition(msgspec.Struct):
    """How far a file was read, and what is kept of its history. ``sorts`` are (seen,
    stride, kept).
    """

    inode: int = 0
    offset: int = 0
    skipping: bool = False
    sorts: dict[str, tuple[int, int, int]] = {}


_DECODE_PLACE = msgspec.json.Decoder(ReadPosition).decode


class MetricsReader:
    """Reads metrics for one agent. Different threads may use it.

    Files are read under one lock and results are passed on under another, so reports never wait for
    a disk.
    """

    def __init__(self, root: Path) -> None:
        self._attempts = root / "attempts"
        self._logs = root / "logs"
        self._places = root / "metrics"
        self._places.mkdir(mode=0o700, exist_ok=True)
        for place in self._places.iterdir():
            if not (self._attempts / place.name).exists():
                place.unlink(missing_ok=True)  # an agent that was killed had just dropped it
        self._reading = threading.Lock()
        self._words: dict[str, metric_lines.ParsedMetrics] = {}
        self._known: dict[str, ReadPosition] = {}
        #: What was read, under a lock that is never held for long.
        self._telling = threading.Lock()
        self._told: dict[str, task_reports.TaskMetrics] = {}
        self._saved: dict[str, task_reports.Saved] = {}
        self._news: dict[str, None] = {}
        #: Ended tasks whose data must still be dropped.
        self._over: set[str] = set()

    # For reports -----------------------------------------------------------------------------

    def news(self) -> tuple[task_reports.TaskMetrics, ...] | None:
        """Return metrics that have changed since the last call, of a limited number of tasks.

        The result is None if nothing has changed.
        """
        with self._telling:
            chosen = list(self._news)[: task_reports.TASKS_MAX]
            for name in chosen:
                del self._news[name]
            return tuple(self._told[name] for name in chosen if name in self._told) or None

    def newest(self) -> dict[str, task_reports.TaskMetrics]:
        """Return the newest metrics of every task that has written some, by attempt."""
        with self._telling:
            return dict(self._told)

    def again(self, told: tuple[task_reports.TaskMetrics, ...] | None = None) -> None:
        """Report these metrics again, or all, because they were not delivered."""
        with self._telling:
            names = self._told if told is None else [task.attempt for task in told]
            self._news |= {name: None for name in names if name in self._told}

    def with_saved(self, report: AttemptReport) -> AttemptReport:
        """Return a report with the checkpoint that its task has named."""
        with self._telling:
            saved = self._saved.get(report.id)
        if saved is None:
            return report
        return msgspec.structs.replace(report, checkpoint=newer(report.checkpoint, saved))

    # Reading ---------------------------------------------------------------------------------

    def look(self, running: list[str]) -> None:
        """Read what tasks have written since the last time."""
        with self._reading:
            self._give_up()
        for name in running:
            with self._reading:
                self._read(name, last=False)

    def heard(self, reports: list[AttemptReport]) -> None:
        """Read the last metrics of ended tasks, before their end is reported."""
        for report in reports:
            if report.state is AttemptState.ENDED:
                with self._reading:
                    self._read(report.id, last=True)

    def forget(self, attempts: tuple[str, ...]) -> None:
        """Forget tasks whose end the controller knows."""
        with self._telling:
            for name in attempts:
                self._told.pop(name, None)
                self._saved.pop(name, None)
                self._news.pop(name, None)
            self._over.update(attempts)
        if self._reading.acquire(blocking=False):  # else whoever reads now does it next
            try:
                self._give_up()
            finally:
                self._reading.release()

    def _give_up(self) -> None:
        """Drop what is known of ended tasks, while nobody reads."""
        with self._telling:
            over, self._over = self._over, set()
        for name in over:
            self._words.pop(name, None)
            self._known.pop(name, None)
            # it may have been written by an earlier agent
            (self._places / name).unlink(missing_ok=True)

    def _read(self, name: str, *, last: bool) -> None:
        """Read a task's file once. Errors of the file system are left for the next time."""
        try:
            handle = _open(self._attempts / name)
        except OSError:
            return
        try:
            place = self._place(name)
            before = (place.inode, place.offset)
            found = os.fstat(handle)
            if found.st_ino != place.inode or found.st_size < place.offset:
                place.inode, place.offset, place.skipping = found.st_ino, 0, False
            words = self._words.get(name)
            if words is None:
                words = self._words[name] = metric_lines.ParsedMetrics(name)
            now = time.time()
            size = found.st_size
            _skip(place, words, size, last=last)
            while True:
                offset = place.offset
                final = last and size - offset <= READ_BYTES_MAX
                rows = _rows(handle, place, words, now=now, last=final)
                if (place.inode, place.offset) != before:
                    self._tell(name, words)
                    with contextlib.suppress(OSError):
                        self._keep(name, place, rows)
                if not last or final or place.offset <= offset:
                    break
        finally:
            os.close(handle)

    def _tell(self, name: str, words: metric_lines.ParsedMetrics) -> None:
        """Include what was read in the next report."""
        values = words.told()
        with self._telling:
            if name in self._over:
                return
            self._told[name] = values
            if words.checkpoint is not None:
                self._saved[name] = words.checkpoint
            self._news[name] = None

    def _place(self, name: str) -> ReadPosition:
        place = self._known.get(name)
        if place is None:
            place = ReadPosition()
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                place = _DECODE_PLACE((self._places / name).read_bytes())
            self._known[name] = place
        return place

    def _keep(self, name: str, place: ReadPosition, rows: list[dict[str, float]]) -> None:
        """Add to the history, and thin it out if it is too long."""
        path = self._logs / f"{name}.{FILE}"
        series = []
        for row in rows:
            sort = _sort_of(row, place)
            seen, stride, count = place.sorts.get(sort, (0, 1, 0))
            if seen % stride == 0:
                series.append(json.dumps(row, separators=(",", ":")) + "\n")
                count += 1
            place.sorts[sort] = seen + 1, stride, count
        if series:
            with os.fdopen(rotation.append_private(path), "a", encoding="utf-8") as stream:
                stream.writelines(series)
        while sum(count for _, _, count in place.sorts.values()) > ROWS_MAX:
            _thin(path, place)
        (self._places / name).write_bytes(msgspec.json.encode(place))


def newer(
    one: task_reports.Saved | None, other: task_reports.Saved | None
) -> task_reports.Saved | None:
    """Return the newer of two checkpoints."""
    if one is None or (other is not None and other.at >= one.at):
        return other
    return one


def _open(folder: Path) -> int:
    """Return a handle of a task's file, if it is a regular file of the folder's owner."""
    parent = os.open(folder, _FOLDER)
    try:
        handle = os.open(FILE, _PLAIN, dir_fd=parent)
        owner = os.fstat(parent).st_uid
    finally:
        os.close(parent)
    found = os.fstat(handle)
    # a link to another user's file must not be read
    if stat.S_ISREG(found.st_mode) and found.st_uid == owner and found.st_nlink == 1:
        return handle
    os.close(handle)
    raise OSError(f"{folder}/{FILE} is not a file of its task's own")


def _skip(place: ReadPosition, words: metric_lines.ParsedMetrics, size: int, *, last: bool) -> None:
    """Skip the middle of what a task has written faster than it is read."""
    most, kept = (LAST_BYTES_MAX,) * 2 if last else (BEHIND_BYTES_MAX, READ_BYTES_MAX)
    if size - place.offset > most:
        words.skipped_bytes += size - kept - place.offset
        place.offset, place.skipping = size - kept, True


def _rows(
    handle: int, place: ReadPosition, words: metric_lines.ParsedMetrics, *, now: float, last: bool
) -> list[dict[str, float]]:
    """Continue to read a file. Return the rows of values. ``last``: nothing more is written."""
    data = os.pread(handle, READ_BYTES_MAX, place.offset)
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    rows: list[dict[str, float]] = []
    together: dict[str, float] = {}
    for line in filter(None, lines):
        whole = line.endswith(b"\n")
        if not whole and not last and len(line) <= metric_lines.LINE_BYTES_MAX:
            break  # the rest has not been written yet
        place.offset += len(line)
        if place.skipping:
            place.skipping = not whole
            continue
        if not whole and not last:
            words.overlong(len(line))
            place.skipping = True
            continue
        found = words.take(line, now)
        if found and line.lstrip().startswith(b"{"):
            rows.append(_row(found))
        else:
            together |= _row(found) if found else {}
    return [*rows, together] if together else rows


def _row(found: tuple[task_reports.Metric, ...]) -> dict[str, float]:
    row = {"time": round(found[0].at, 3)}
    if found[0].step is not None:
        row["step"] = found[0].step
    # a series with the name of a column hides nothing
    return {one.name: one.value for one in found} | row


def _sort_of(row: dict[str, float], place: ReadPosition) -> str:
    sort = " ".join(sorted(row))
    return sort if sort in place.sorts or len(place.sorts) < SORTS_MAX else "(others)"


def _thin(path: Path, place: ReadPosition) -> None:
    """Drop every second row of the kind that has most."""
    if not path.exists():
        place.sorts.clear()  # it was deleted because of its age
        return
    most = max(place.sorts, key=lambda sort: place.sorts[sort][2])
    seen, stride, _ = place.sorts[most]
    kept, number = [], 0
    known = set(place.sorts) - {"(others)"}
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            try:
                sort = " ".join(sorted(json.loads(line)))
            except (ValueError, TypeError):
                continue
            if (sort if sort in known else "(others)") == most:
                number += 1
                if number % 2 == 0:
                    continue
            kept.append(line)
    part = path.with_name(f"{path.name}.1")
    part.unlink(missing_ok=True)
    with os.fdopen(rotation.append_private(part), "w", encoding="utf-8") as stream:
        stream.writelines(kept)
    part.replace(path)
    place.sorts[most] = seen, stride * 2, (number + 1) // 2
