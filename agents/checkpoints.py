"""Which checkpoint of a job is the newest whole one: looked for below the nodes' shared folder.

A checkpoint is a file or a folder. It is whole when its marker is there, whose number of bytes, if
it names one, must be what is there; without a marker, when nothing was written to it for a while.
What somebody has rejected (``NAME.bad``), links, empty ones and ones still being written are
passed over. A look is bounded in how many names it reads.
"""

import contextlib
import fnmatch
import json
import os
import re
import time
from collections.abc import Iterator

import msgspec

from agents.metricfiles import newer
from agents.tasklib.muster import BAD, COMPLETE
from reconciler.model.records import AttemptReport
from reconciler.model.taskwords import PATH_CHARACTERS_MAX, Rule, Saved
from reconciler.model.wire import Assignment, TaskTemplate

EVERY_S = 30.0
#: Names that one look reads in folders, and files that it asks for their size.
NAMES_MAX = 20_000
MARKER_BYTES_MAX = 64 * 1024
#: Ends of names of what is no checkpoint by itself.
_BESIDE = (COMPLETE, BAD, ".part", ".tmp")


class _Budget:
    """How many more names may be read."""

    def __init__(self) -> None:
        self.left = NAMES_MAX

    def scan(self, folder: str) -> Iterator["os.DirEntry[str]"]:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if self.left <= 0:
                    return
                self.left -= 1
                yield entry


def newest(
    folder: str, rule: Rule | None, element: int, now: float, told: str = ""
) -> Saved | None:
    """The newest whole checkpoint of an element.

    Args:
        folder: the job's folder of checkpoints.
        rule: which there are; None: only the one that was told.
        element: index in an array.
        now: by the clock of who writes.
        told: path of one that a task has named.
    """
    budget = _Budget()
    rule = rule or Rule()
    found = []
    if rule.pattern:
        pattern = rule.pattern.replace("{element}", str(element))
        found = list(_matching(folder, pattern.split("/"), "", budget))
    if told and told not in found and _is_plain(folder, told):
        found.append(told)
    best: Saved | None = None
    for path in found:
        one = _judge(folder, path, rule, budget, now=now, named=path == told)
        if one is not None and (best is None or (one.at, one.path) > (best.at, best.path)):
            best = one
    return best


def _matching(folder: str, parts: list[str], below: str, budget: _Budget) -> Iterator[str]:
    """Paths that match a pattern, part by part; no link is followed."""
    for entry in budget.scan(f"{folder}/{below}"):
        if not fnmatch.fnmatchcase(entry.name, parts[0]) or entry.is_symlink():
            continue
        path = f"{below}{entry.name}"
        if len(parts) == 1:
            if not entry.name.endswith(_BESIDE) and len(path) <= PATH_CHARACTERS_MAX:
                yield path
        elif entry.is_dir(follow_symlinks=False):
            yield from _matching(folder, parts[1:], f"{path}/", budget)


def _is_plain(folder: str, path: str) -> bool:
    """Whether a path stays below the folder and leads over no link."""
    parts = path.split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        return False
    steps = ["/".join(parts[: number + 1]) for number in range(len(parts))]
    return not any(os.path.islink(f"{folder}/{step}") for step in steps)  # noqa: PTH114


def _judge(
    folder: str, path: str, rule: Rule, budget: _Budget, *, now: float, named: bool
) -> Saved | None:
    """The checkpoint, if it is a whole one. ``named``: its task has said so."""
    whole = f"{folder}/{path}"
    if os.path.lexists(whole + BAD):
        return None
    size, changed_at = _extent(whole, budget)
    if size <= 0:
        return None
    marker = _marker(whole, rule)
    step = _step_of(path)
    if marker is not None:
        expected, said = marker
        inside = rule.marker and os.path.lexists(f"{whole}/{rule.marker}")
        if expected is not None and expected != size and not inside:
            return None  # it was cut short, or written to since
        step = step if said is None else said
    elif rule.marker or not (named or changed_at <= now - rule.settle_s):
        return None
    return Saved(path, changed_at, step, size)


def _extent(whole: str, budget: _Budget) -> tuple[int, float]:
    """Bytes, and when it was last written to; no bytes for what can't be read to its end."""
    try:
        found = os.lstat(whole)
    except OSError:
        return 0, 0.0
    if not os.path.isdir(whole):  # noqa: PTH112
        return found.st_size, found.st_mtime
    size, changed_at, folders = 0, found.st_mtime, [whole]
    while folders:
        for entry in budget.scan(folders.pop()):
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                return 0, 0.0
            changed_at = max(changed_at, found.st_mtime)
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            else:
                size += found.st_size
    return (size, changed_at) if budget.left > 0 else (0, 0.0)


def _marker(whole: str, rule: Rule) -> tuple[int | None, float | None] | None:
    """What a marker says of bytes and step; None where there is none."""
    names = [f"{whole}{COMPLETE}"]
    if rule.marker:
        names += [f"{whole}/{rule.marker}", f"{whole}{rule.marker}"]
    for name in names:
        try:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            text = os.read(handle, MARKER_BYTES_MAX)
            said = json.loads(text)
            size, step = said.get("bytes"), said.get("step")
        except (OSError, ValueError, AttributeError, RecursionError):
            return None, None  # that it is there is enough
        finally:
            os.close(handle)
        return (
            size if isinstance(size, int) else None,
            float(step) if isinstance(step, int | float) else None,
        )
    return None


def _step_of(path: str) -> float | None:
    """The last number of a name, which is a step for all who write ``step-200``."""
    numbers = re.findall(r"\d{1,15}", path.rpartition("/")[2])
    return float(numbers[-1]) if numbers else None


class Watched(msgspec.Struct, frozen=True):
    """A task that tells of its element's checkpoints."""

    attempt: str
    folder: str
    rule: Rule
    element: int


def watched(assignment: Assignment, template: TaskTemplate | None, shared: str) -> Watched | None:
    """How a task's checkpoints are looked for; None where another task of its gang does it."""
    if template is None or template.checkpoint_path is None:
        return None
    rank = assignment.rank
    if rank.rank != 0 or (rank.world_size == 1 and assignment.index != 0):
        return None
    if template.saves is None or not template.saves.pattern:
        return None
    folder = f"{shared}/{template.checkpoint_path}"
    return Watched(assignment.attempt, folder, template.saves, assignment.element)


class Watcher:
    """Looks every now and then for what running tasks have saved. One thread looks."""

    def __init__(self) -> None:
        self._found: dict[str, Saved] = {}

    def look(self, tasks: list[Watched]) -> None:
        """Look once."""
        names = {task.attempt for task in tasks}
        # only this thread writes; readers see the one or the other
        found = {name: saved for name, saved in self._found.items() if name in names}
        for task in tasks:
            saved = newest(task.folder, task.rule, task.element, time.time())
            if saved is not None:
                found[task.attempt] = saved
        self._found = found

    def with_saved(self, report: AttemptReport) -> AttemptReport:
        """A report with what was found of its task."""
        found = self._found.get(report.id)
        if found is None:
            return report
        return msgspec.structs.replace(report, checkpoint=newer(report.checkpoint, found))
