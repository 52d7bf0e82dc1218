"""Reports of a task about its own work: metrics that it writes, and its checkpoints.

Metrics are for people: they go from the agent to the server and no further. Checkpoints decide the
cost of an eviction, so they go to the loop with the reports of attempts.
"""

import msgspec

#: The most series of one task; further names are counted as bad lines.
SERIES_MAX = 16
#: The most characters of a series' name.
NAME_CHARACTERS_MAX = 100
#: The most characters of the path of a checkpoint, relative to the folder of its job.
PATH_CHARACTERS_MAX = 512
#: The most characters of what is said of a bad line.
PROBLEM_CHARACTERS_MAX = 160
#: The most tasks that one report tells metrics of.
TASKS_MAX = 256
_CODE_MAX, _SIGNAL_MAX = 2**31 - 1, 127


class Metric(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest value of one series, at a time of the node's wall clock.

    ``step`` None: the task named none. Values may be infinite or NaN: a diverged loss looks like
    that.
    """

    name: str
    value: float
    at: float
    step: float | None = None


class TaskMetrics(msgspec.Struct, frozen=True, omit_defaults=True):
    """Metrics that a task has written, as far as they were read.

    Attributes:
        attempt: attempt that wrote them.
        metrics: the newest of each series, by name.
        lines: number of lines read.
        bad_lines: number of these that were not understood, in whole or in part.
        problem: the newest of these, in words.
        skipped_bytes: bytes not read because they came too fast.
    """

    attempt: str
    metrics: tuple[Metric, ...] = ()
    lines: int = 0
    bad_lines: int = 0
    problem: str = ""
    skipped_bytes: int = 0


class Saved(msgspec.Struct, frozen=True, omit_defaults=True):
    """A complete checkpoint.

    It has the path below the job's folder of checkpoints, the time of writing by the writer's
    clock, and the step, None if unknown.
    """

    path: str
    at: float
    step: float | None = None
    bytes: int = 0


class CheckpointRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rule that tells complete checkpoints from incomplete ones.

    Attributes:
        pattern: of their paths below the folder, with ``*`` and ``?``; ``{element}`` is the element
            of an array. Empty: only those that tasks name.
        marker: name of the file that makes one complete: in it if it is a folder, else the suffix
            of its name. Empty: it is complete when nothing was written for ``settle_s``.
        settle_s: see ``marker``, in seconds.
    """

    pattern: str = ""
    marker: str = ""
    settle_s: float = 30.0


def told_text(text: str, characters_max: int) -> str:
    """Return a text of a task made safe for reports, pages and terminals.

    The result is printable, valid UTF-8, and not longer than the limit.
    """
    kept = text[:characters_max]
    if not kept.isprintable():
        kept = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in kept)
    return kept[:characters_max]


def exit_code(told: int | None) -> int | None:
    """Return the status with which a task ended, or None if no process can have it."""
    return told if told is not None and abs(told) <= _CODE_MAX else None


def signal_number(told: int | None) -> int | None:
    """Return the signal that ended a task, or None if there is no such signal."""
    return told if told is not None and abs(told) <= _SIGNAL_MAX else None


def bounded(told: TaskMetrics) -> TaskMetrics:
    """Return a node's report of a task's metrics, cut to the bounds that the node should keep.

    Of several series of one name the first stays: Prometheus refuses a page with two of them.
    """
    metrics: dict[str, Metric] = {}
    for one in told.metrics[:SERIES_MAX]:
        if 0 < len(one.name) <= NAME_CHARACTERS_MAX and one.name.isprintable():
            metrics.setdefault(one.name, one)
    return TaskMetrics(
        attempt=told.attempt,
        metrics=tuple(metrics.values()),
        lines=told.lines,
        bad_lines=told.bad_lines,
        problem=told_text(told.problem, PROBLEM_CHARACTERS_MAX),
        skipped_bytes=told.skipped_bytes,
    )
