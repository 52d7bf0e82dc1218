"""Parses lines of metrics that a task writes, as JSON or Prometheus text. Pure and bounded.

A line of bytes goes into ``ParsedMetrics``, which keeps the newest value of each series and counts
lines that it does not understand. Number and length of series are limited, and nothing is ever
raised.
"""

import json
import math
import re
from typing import Any

from reconciler.model.observed import task_reports

LINE_BYTES_MAX = 16 * 1024
#: Keys of a JSON line that are not series.
STEP, TIME, CHECKPOINT = "step", "time", "checkpoint"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/%@ -]*")
_SAMPLE = re.compile(
    r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\s*(\{(?:[^\"{}]|\"(?:[^\"\\]|\\.)*\")*\})\s*|\s+)"
    r"([^\s{}]+)(?:\s+(-?\d{1,18}))?"
)
_EARLIEST, _LATEST = 0.0, 4.1e9


class ParsedMetrics:
    """The metrics that a task has written so far."""

    def __init__(self, attempt: str) -> None:
        self.attempt = attempt
        self.newest: dict[str, task_reports.Metric] = {}
        self.lines = 0
        self.bad_lines = 0
        self.problem = ""
        self.skipped_bytes = 0
        #: The checkpoint that the task named last.
        self.checkpoint: task_reports.Saved | None = None

    def told(self) -> task_reports.TaskMetrics:
        """Return the metrics as they are reported."""
        return task_reports.TaskMetrics(
            attempt=self.attempt,
            metrics=tuple(self.newest[name] for name in sorted(self.newest)),
            lines=self.lines,
            bad_lines=self.bad_lines,
            problem=self.problem,
            skipped_bytes=self.skipped_bytes,
        )

    def take(self, line: bytes, now: float) -> tuple[task_reports.Metric, ...]:
        """Take a line that was read at ``now``. Return its values."""
        text = line.decode("utf-8", "replace").strip()
        if not text or text.startswith("#"):
            return ()
        self.lines += 1
        if len(line) > LINE_BYTES_MAX:
            self._complain(f"longer than {LINE_BYTES_MAX} bytes")
            return ()
        found = self._json(text, now) if text.startswith("{") else self._sample(text, now)
        values = []
        for one in found:
            if one.name not in self.newest and len(self.newest) >= task_reports.SERIES_MAX:
                self._complain(f"{one.name}: a task has at most {task_reports.SERIES_MAX} series")
                continue
            self.newest[one.name] = one
            values.append(one)
        return tuple(values)

    def overlong(self, size: int) -> None:
        """Count a line that was too long to keep."""
        self.lines += 1
        self._complain(f"longer than {LINE_BYTES_MAX} bytes ({size} so far)")

    def _complain(self, what: str) -> None:
        text = f"line {self.lines}: {what}"
        if not self.problem.startswith(f"line {self.lines}:"):
            self.bad_lines += 1
        self.problem = task_reports.told_text(text, task_reports.PROBLEM_CHARACTERS_MAX)

    def _json(self, text: str, now: float) -> list[task_reports.Metric]:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as problem:
            self._complain(f"no JSON: {problem}")
            return []
        at, step = _moment(value.get(TIME), now), _number(value.get(STEP))
        step = step if step is not None and math.isfinite(step) else None
        if CHECKPOINT in value:
            self._save(value[CHECKPOINT], at, step)
        found = []
        for name, given in value.items():
            if name in {STEP, TIME, CHECKPOINT}:
                continue
            number = _number(given)
            if number is None:
                self._complain(f"{name[:40]!r}: found {str(given)[:40]!r}, expected a number")
            elif not _NAME.fullmatch(name) or len(name) > task_reports.NAME_CHARACTERS_MAX:
                self._complain(f"{name[:40]!r} can't be the name of a series")
            else:
                found.append(task_reports.Metric(name, number, at, step))
        return found

    def _save(self, path: Any, at: float, step: float | None) -> None:
        parts = path.split("/") if isinstance(path, str) else []
        if (
            not parts
            or len(path) > task_reports.PATH_CHARACTERS_MAX
            or path.startswith("/")
            or not {"", ".."}.isdisjoint(parts)
            or set(parts) == {"."}
            or not path.isprintable()
        ):
            self._complain("checkpoint: expected a path below MUSTER_CHECKPOINT_DIR")
            return
        self.checkpoint = task_reports.Saved(path, at, step)

    def _sample(self, text: str, now: float) -> list[task_reports.Metric]:
        match = _SAMPLE.fullmatch(text)
        if match is None:
            self._complain(f"neither JSON nor Prometheus' text: {text[:40]!r}")
            return []
        name, labels, written, moment = match.groups()
        try:
            number = float(written)
        except ValueError:
            self._complain(f"{name[:40]}: found {written[:40]!r}, expected a number")
            return []
        name += labels or ""
        if len(name) > task_reports.NAME_CHARACTERS_MAX:
            self._complain(f"{name[:40]!r}… is longer than {task_reports.NAME_CHARACTERS_MAX}")
            return []
        if name in {STEP, TIME} or not name.isprintable():
            self._complain(f"{name[:40]!r} can't be the name of a series")
            return []
        at = _moment(None if moment is None else int(moment) / 1000, now)
        return [task_reports.Metric(name, number, at)]


def _number(value: Any) -> float | None:
    """Return a number as a float, which may be infinite or NaN; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _moment(value: Any, now: float) -> float:
    """Return the time that a line names, if plausible; else now."""
    number = _number(value)
    if number is None or not _EARLIEST <= number <= min(now, _LATEST):
        return now
    return number
