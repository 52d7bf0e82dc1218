"""What a task says of its own work: metrics that it writes, and what it has saved.

Metrics are for eyes: they go from the agent to the server and no further. What is saved decides
what an eviction costs, so that it goes with the reports of attempts to the loop.
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


class Metric(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest value of one series, at a time of the node's wall clock. ``step`` None: the task
    named none. Values may be infinite or no number: that is how a diverged loss looks."""

    name: str
    value: float
    at: float
    step: float | None = None


class TaskMetrics(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task has written, as far as it was read.

    Attributes:
        attempt: whose they are.
        metrics: the newest of each series, by name.
        lines: how many lines were read.
        bad_lines: how many of them were not understood, in whole or in part.
        problem: the newest of those, in words.
        skipped_bytes: how much was not read because it came too fast.
    """

    attempt: str
    metrics: tuple[Metric, ...] = ()
    lines: int = 0
    bad_lines: int = 0
    problem: str = ""
    skipped_bytes: int = 0


class Saved(msgspec.Struct, frozen=True, omit_defaults=True):
    """A complete checkpoint: its path below the job's folder of checkpoints, when it was written
    by the clock of who wrote it, and the step, None where nobody said."""

    path: str
    at: float
    step: float | None = None
    bytes: int = 0


class CheckpointRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which files or folders of a job's checkpoints are whole ones.

    Attributes:
        pattern: of their paths below the folder, with ``*`` and ``?``; ``{element}`` stands for
            the element of an array. Empty: only those that tasks name.
        marker: name of the file that makes one whole: in it where it is a folder, else what comes
            after its name; empty: it is whole when nothing was written for ``settle_s``.
        settle_s: see there, in seconds.
    """

    pattern: str = ""
    marker: str = ""
    settle_s: float = 30.0


def told_text(text: str, characters_max: int) -> str:
    """A text that came from a task, as it may go into reports, pages and terminals: printable, in
    UTF-8, and no longer than that."""
    kept = text[:characters_max]
    if not kept.isprintable():
        kept = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in kept)
    return kept[:characters_max]


def bounded(told: TaskMetrics) -> TaskMetrics:
    """What a node says of a task, within the bounds that it should have kept by itself.

    Of several series of one name the first stays: a page with two of them would be refused whole.
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
