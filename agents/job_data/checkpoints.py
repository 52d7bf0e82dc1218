"""Finds the newest complete checkpoint of a job in the nodes' shared folder.

A checkpoint is a file or folder. It is complete if its marker exists and the size that it names is
right, or without a marker if it has not changed for a while. Rejected ones (``NAME.bad``), links,
and empty or growing ones are skipped. The number of names read is limited. All is read as the job's
user, name by name without following links. What belongs to another user does not count, because a
program that loads a checkpoint may run code in it.
"""

import contextlib
import fnmatch
import json
import math
import os
import re
import stat
import time
from collections.abc import Iterator

import msgspec

from agents.host import unix_users
from agents.host.acting_user import ActingUser, acting_as
from agents.job_data import checkpoint_places
from agents.job_data.metrics import newer
from agents.tasklib.muster import BAD, COMPLETE
from reconciler.model.observed.task_reports import PATH_CHARACTERS_MAX, CheckpointRule, Saved
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from reconciler.model.state.records import AttemptReport

EVERY_S = 30.0
#: Names read of one folder of checkpoints or one checkpoint, and by one look in all.
NAMES_MAX = 20_000
LOOK_NAMES_MAX = 10 * NAMES_MAX
#: Nested folders of a checkpoint.
DEPTH_MAX = 32
MARKER_BYTES_MAX = 64 * 1024
#: Suffixes of names that are not checkpoints themselves.
_BESIDE = (COMPLETE, BAD, ".part", ".tmp")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class CheckpointSearch(msgspec.Struct, frozen=True):
    """A description of where checkpoints of an array element are, and which.

    Attributes:
        shared: the folder shared by nodes; it is trusted, but nothing below it.
        below: path of the job's checkpoint folder below it.
        rule: which checkpoints there are; None for only the one that was reported.
        element: index in the array.
        user: whose checkpoints they are; None for the agent's own user.
    """

    shared: str
    below: str
    rule: CheckpointRule | None
    element: int = 0
    user: ActingUser | None = None


class _Budget:
    """Names that may still be read, of one folder or candidate and in all, and their owner."""

    def __init__(self, uid: int, whole: "_Budget | None" = None) -> None:
        self.uid = uid
        self.whole = whole
        self.left: int = LOOK_NAMES_MAX if whole is None else min(NAMES_MAX, whole.left)

    def part(self) -> "_Budget":
        """Return the budget of one folder or candidate."""
        return _Budget(self.uid, self)

    def take(self) -> bool:
        """Return True if one more name may be read."""
        if self.left <= 0:
            return False
        self.left -= 1
        if self.whole is not None:
            self.whole.left -= 1
        return True


def newest(search: CheckpointSearch, *, now: float, told: str = "") -> Saved | None:
    """Return the newest complete checkpoint of an array element.

    Args:
        search: where to look, and for which.
        now: time by the clock of the writer.
        told: path that a task has reported.
    """
    rule = search.rule or CheckpointRule()
    if rule.marker and not is_name(rule.marker):
        return None
    with (
        contextlib.suppress(OSError),
        _folder(search.shared) as shared,
        acting_as(search.user) as uid,
        _below(shared, search.below) as folder,
    ):
        if os.fstat(folder).st_uid == uid:
            return _newest(folder, rule, _Budget(uid), search.element, now=now, told=told)
    return None


def is_name(text: str) -> bool:
    """Return True if a text is a single name in a folder, and valid everywhere."""
    return text not in {"", ".", ".."} and "/" not in text and text.isprintable()


def _newest(
    folder: int, rule: CheckpointRule, budget: _Budget, element: int, *, now: float, told: str
) -> Saved | None:
    found: set[str] = set()
    parts = rule.pattern.replace("{element}", str(element)).split("/")
    if all(map(is_name, parts)):
        found.update(_matching(folder, parts, "", budget))
    if told and len(told) <= PATH_CHARACTERS_MAX and all(map(is_name, told.split("/"))):
        found.add(told)
    best: Saved | None = None
    # newest first by name: old ones may be large, and must not hide new ones
    for path in sorted(found, key=lambda path: _looks_new(folder, path), reverse=True):
        one = None
        with contextlib.suppress(OSError):
            one = _judge(folder, path, rule, budget.part(), now=now, named=path == told)
        if one is not None and (best is None or (one.at, one.path) > (best.at, best.path)):
            best = one
    return best


def _looks_new(folder: int, path: str) -> tuple[float, float, str]:
    above, _, name = path.rpartition("/")
    try:
        with _below(folder, above) as parent:
            changed_at = os.lstat(name, dir_fd=parent).st_mtime
    except OSError:
        changed_at = 0.0
    return changed_at, _step_of(path) or 0.0, path


@contextlib.contextmanager
def _folder(shared: str) -> Iterator[int]:
    """Return a handle of the shared folder, whose own path may have links."""
    handle = os.open(shared, _FOLDER & ~os.O_NOFOLLOW)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _below(folder: int, path: str) -> Iterator[int]:
    """Return a handle of a folder below another, opened step by step without following links.

    So a name that is replaced by a link meanwhile misleads nobody.
    """
    parts = [part for part in path.split("/") if part not in {"", "."}] or ["."]
    if ".." in parts:
        raise NotADirectoryError(f"{path!r} leads out of its folder")
    handle = os.dup(folder)
    try:
        for number, part in enumerate(parts, 1):
            # what is only passed through needs not be readable
            flags = _FOLDER if number == len(parts) else _FOLDER | os.O_PATH
            further = os.open(part, flags, dir_fd=handle)
            os.close(handle)
            handle = further
        yield handle
    finally:
        os.close(handle)


def _scan(folder: int, budget: _Budget) -> Iterator[str]:
    """Return names in an open folder, up to the limit.

    Raises:
        OSError: the folder is gone.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if not budget.take():
                return
            yield entry.name


def _matching(folder: int, parts: list[str], below: str, whole: _Budget) -> Iterator[str]:
    """Yield paths that match a pattern, part by part, without following links.

    Names that are not valid everywhere, such as in a report or variable, do not count.
    """
    found: list[tuple[float, str]] = []
    budget = whole.part()
    with contextlib.suppress(OSError):
        for name in _scan(folder, budget):
            if not is_name(name) or not fnmatch.fnmatchcase(name, parts[0]):
                continue
            with contextlib.suppress(OSError):
                facts = os.lstat(name, dir_fd=folder)
                if facts.st_uid != whole.uid:
                    continue
                if stat.S_ISDIR(facts.st_mode) or (len(parts) == 1 and stat.S_ISREG(facts.st_mode)):
                    found.append((facts.st_mtime, name))
    for _, name in sorted(found, reverse=True):
        path = f"{below}{name}"
        if len(path) > PATH_CHARACTERS_MAX:
            continue
        if len(parts) > 1:
            with contextlib.suppress(OSError), _below(folder, name) as further:
                yield from _matching(further, parts[1:], f"{path}/", whole)
        elif not name.endswith(_BESIDE):
            yield path


def _judge(
    folder: int, path: str, rule: CheckpointRule, budget: _Budget, *, now: float, named: bool
) -> Saved | None:
    """Return the checkpoint if it is complete. ``named``: its task has reported it."""
    above, _, name = path.rpartition("/")
    with _below(folder, above) as parent:
        if _is_there(parent, name + BAD, budget.uid):
            return None
        size, changed_at = _extent(parent, name, budget)
        if size <= 0:
            return None
        marker, own_bytes = _marker(parent, name, rule, budget.uid)
    step = _step_of(path)
    if marker is not None:
        expected, said = marker
        if expected is not None and expected not in {size, size - own_bytes}:
            return None  # it was truncated, or written to since
        step = step if said is None else said
    elif rule.marker or not (named or changed_at <= now - rule.settle_s):
        return None
    return Saved(path, changed_at, step, size)


def _is_there(folder: int, name: str, uid: int) -> bool:
    try:
        return os.lstat(name, dir_fd=folder).st_uid == uid
    except FileNotFoundError:
        return False


def _extent(parent: int, name: str, budget: _Budget) -> tuple[int, float]:
    """Return size in bytes and time of the last write.

    There is no size if it cannot be read completely, or a part of it belongs to another user.
    """
    found = os.lstat(name, dir_fd=parent)
    if found.st_uid != budget.uid:
        return 0, 0.0
    if stat.S_ISREG(found.st_mode):
        return found.st_size, found.st_mtime
    if not stat.S_ISDIR(found.st_mode):
        return 0, 0.0
    size, changed_at, folders = 0, found.st_mtime, [name]
    while folders:
        path = folders.pop()
        with _below(parent, path) as handle:
            for below in _scan(handle, budget):
                facts = os.lstat(below, dir_fd=handle)
                if facts.st_uid != budget.uid:
                    return 0, 0.0
                changed_at = max(changed_at, facts.st_mtime)
                if not stat.S_ISDIR(facts.st_mode):
                    size += facts.st_size
                elif path.count("/") < DEPTH_MAX:
                    folders.append(f"{path}/{below}")
                else:
                    return 0, 0.0
    return (size, changed_at) if budget.left > 0 else (0, 0.0)


def _marker(
    parent: int, name: str, rule: CheckpointRule, uid: int
) -> tuple[tuple[int | None, float | None] | None, int]:
    """Return size and step from a marker, None without one, and the size of a marker inside the
    checkpoint.

    A size counted before that marker existed is smaller by its size.
    """
    found = _said(parent, name + COMPLETE, uid)
    if not rule.marker:
        return found, 0
    within, own_bytes = None, 0
    with contextlib.suppress(OSError), _below(parent, name) as handle:
        within = _said(handle, rule.marker, uid)
        own_bytes = os.lstat(rule.marker, dir_fd=handle).st_size
    return found or within or _said(parent, name + rule.marker, uid), own_bytes


def _said(folder: int, name: str, uid: int) -> tuple[int | None, float | None] | None:
    """Return size and step from a marker; None if there is no regular file of that name and
    owner.
    """
    try:
        # checked before opening, which makes some devices act
        if not stat.S_ISREG(os.lstat(name, dir_fd=folder).st_mode):
            return None
        handle = os.open(name, _PLAIN, dir_fd=folder)
    except OSError:
        return None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid:
            return None
        said = json.loads(os.read(handle, MARKER_BYTES_MAX))
        size, step = said.get("bytes"), said.get("step")
        number = float(step) if isinstance(step, int | float) else None
    except (OSError, ValueError, OverflowError, AttributeError, RecursionError):
        return None, None  # its existence is enough
    finally:
        os.close(handle)
    return (
        size if isinstance(size, int) else None,
        number if number is not None and math.isfinite(number) else None,
    )


def _step_of(path: str) -> float | None:
    """Return the last number of a name, which is the step in names like ``step-200``."""
    numbers = re.findall(r"\d{1,15}", path.rpartition("/")[2])
    return float(numbers[-1]) if numbers else None


class Watched(msgspec.Struct, frozen=True):
    """A task that reports its element's checkpoints.

    Attributes:
        path: ``checkpoint.path`` of its job.
        user: name of its user; None for the agent's own.
    """

    attempt: str
    shared: str
    path: str
    rule: CheckpointRule
    element: int
    user: str | None


def watched(
    assignment: Assignment, template: TaskTemplate | None, shared: str, *, as_root: bool
) -> Watched | None:
    """Return how to find a task's checkpoints; None if another task of its gang reports them.

    Without a pattern only what the task names is one.

    Args:
        as_root: True if tasks run as the users of their jobs.
    """
    if template is None or template.checkpoint_path is None:
        return None
    rank = assignment.rank
    if rank.rank != 0 or (rank.world_size == 1 and assignment.index != 0):
        return None
    if template.saves is None:
        return None
    return Watched(
        assignment.attempt, shared, template.checkpoint_path, template.saves, assignment.element,
        template.user if as_root else None,
    )  # fmt: skip


def newest_of(task: Watched, *, now: float) -> Saved | None:
    """Return the newest checkpoint of a task, whose user was looked up when it started.

    ``now`` is as in :func:`newest`.
    """
    user = None
    if task.user is not None:
        account = unix_users.SYSTEM.find(task.user)
        if account is None:
            return None
        if account.uid != os.geteuid():
            user = ActingUser(account.name, account.uid, account.gid, account.groups)
    try:
        below = checkpoint_places.find(task.shared, task.path, user)
    except (OSError, checkpoint_places.CheckpointPlaceError):
        return None
    if below is None:
        return None
    search = CheckpointSearch(task.shared, below, task.rule, task.element, user)
    return newest(search, now=now)


class CheckpointWatcher:
    """Looks regularly for checkpoints of running tasks. One thread looks."""

    def __init__(self) -> None:
        self._found: dict[str, Saved] = {}

    def look(self, tasks: list[Watched]) -> None:
        """Look once."""
        names = {task.attempt for task in tasks}
        # only this thread writes; readers see either value
        found = {name: saved for name, saved in self._found.items() if name in names}
        for task in tasks:
            saved = newest_of(task, now=time.time())
            if saved is not None:
                found[task.attempt] = saved
        self._found = found

    def with_saved(self, report: AttemptReport) -> AttemptReport:
        """Return a report with the checkpoint that was found."""
        found = self._found.get(report.id)
        if found is None:
            return report
        return msgspec.structs.replace(report, checkpoint=newer(report.checkpoint, found))
