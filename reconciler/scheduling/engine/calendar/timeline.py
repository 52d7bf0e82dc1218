"""What nodes get back and lose as time goes on.

Running work and starts come in with the times at which they end at the latest, reservations with
their begin and end; changes go out, time by time.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from reconciler.scheduling.engine.node_resources import ElementPlaces, NodeResources
from reconciler.scheduling.engine.shape_table import NOTHING, JobShape
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import Mask
from reconciler.scheduling.nodes.free_resources import Task

#: What should have ended by now is taken to end so soon.
OVERRUN_S = 1.0


class Change(NamedTuple):
    """What an element gives back (``sign`` 1) or takes (-1) at a time."""

    at: float
    sign: int
    shape: JobShape
    places: ElementPlaces
    tasks: Sequence[Task] | None = None


class Span(NamedTuple):
    """From when to when an element has its places."""

    starts_at: float
    ends_at: float
    shape: JobShape
    places: ElementPlaces


class NodeTimeline:
    """What ends of what runs, and of what starts in a cycle."""

    def __init__(
        self, situation: snapshots.Snapshot, ends: Iterable[tuple[float, Iterable[Task]]]
    ) -> None:
        """``ends``: when what started already ends, and what it has."""
        self._now_s = situation.now
        self._running = _ends(situation)
        self._started = [Change(at, 1, NOTHING, (), tuple(tasks)) for at, tasks in ends]

    def started(self, ends_at: float, shape: JobShape, places: ElementPlaces) -> None:
        """Note that an element starts now, which ends at a time."""
        if ends_at < math.inf:
            self._started.append(Change(ends_at, 1, shape, places))

    def began(self, ends_at: float, tasks: Sequence[Task]) -> None:
        """Note the same of what somebody else started."""
        if ends_at < math.inf:
            self._started.append(Change(ends_at, 1, NOTHING, (), tasks))

    @property
    def some(self) -> bool:
        """Whether anything ends at a known time."""
        return bool(self._running or self._started)

    def of(
        self, reserved: Iterable[Span], since: float = -math.inf
    ) -> list[tuple[float, Sequence[Change]]]:
        """Return the times at which something ends or is reserved, with what changes then.

        ``since`` is one of them if it is to come.
        """
        ends, begins = [], []
        for one in reserved:
            begins.append(Change(one.starts_at, -1, one.shape, one.places))
            if one.ends_at < math.inf:
                ends.append(Change(one.ends_at, 1, one.shape, one.places))
        moment = [Change(since, -1, NOTHING, ())] if since > self._now_s else []
        changes = sorted(
            [*self._running, *self._started, *ends, *begins, *moment], key=itemgetter(0)
        )  # stable: what ends at a time is given back before others take it
        found: list[tuple[float, Sequence[Change]]] = [
            (at, list(some)) for at, some in itertools.groupby(changes, key=itemgetter(0))
        ]
        if begins and found[0][0] > self._now_s:
            found.insert(0, (self._now_s, []))
        return found


class FitProbe:
    """Counts the tasks of an element that nodes have room for as time goes on."""

    def __init__(self, state: NodeResources, shape: JobShape, usable: Mask) -> None:
        self._state, self._shape = state, shape
        self._usable: list[bool] = usable.tolist()
        self._room = [self._of(node) for node in range(len(self._usable))]
        self._total = sum(self._room)

    def _of(self, node: int) -> int:
        return self._state.holds(node, self._shape) if self._usable[node] else 0

    def apply(self, changes: Iterable[Change]) -> None:
        """Let things end and begin."""
        for change in changes:
            if change.tasks is not None:
                self._state.release(change.tasks)
                nodes = [task.node for task in change.tasks]
            else:
                self._state.hold(change.shape, change.places, change.sign)
                nodes = [node for node, _ in change.places]
            for node in nodes:
                room = self._of(node)
                self._total += room - self._room[node]
                self._room[node] = room

    def fits(self) -> bool:
        """Return True if there is room for all tasks."""
        return self._total >= self._shape.tasks


def _ends(situation: snapshots.Snapshot) -> list[Change]:
    """Return what running work gives back, by time, as far as limits tell."""
    running, now = situation.running, situation.now
    rows = np.flatnonzero((running.ends_at < math.inf) & ~running.leaving)
    ends_at = running.ends_at[rows]
    at = np.where(ends_at > now, ends_at, now + OVERRUN_S)
    ranked = np.argsort(at, kind="stable")
    pairs = zip(at[ranked].tolist(), rows[ranked].tolist(), strict=True)
    return [Change(end, 1, NOTHING, (), situation.holdings[row].tasks) for end, row in pairs]
