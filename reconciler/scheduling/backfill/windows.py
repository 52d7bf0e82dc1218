"""Reservations and maintenance drain by time: nothing starts into them that could not finish.

A snapshot comes in; the same comes out with nodes taken away from the shapes of work that could
still run when a window begins there. Who starts only once others have left starts later by what
those may take: for that there are shapes of their own (``Shape.leaving``, ``Shape.evicting``).
Whoever looks further ahead asks which nodes are ``closed`` for a span of time.
"""

import dataclasses
import math

import msgspec
import numpy as np

from reconciler.model.state import pending_reasons
from reconciler.scheduling.inputs import snapshots

#: Beyond its grace work takes a moment to be gone, and that to be known.
LEAVING_S = 10.0


def within(situation: snapshots.Snapshot) -> snapshots.Snapshot:
    """The same with nodes taken out for lines that would still run when a window begins there.

    Lines for which a window matters, and work that may be moved, get a shape of their own with
    fewer eligible nodes.
    """
    if not situation.windows:
        return situation
    narrowing = _Narrowing(situation)
    lines, judged = (
        [narrowing.narrowed(line) for line in some] for some in (situation.lines, situation.judged)
    )
    holdings = []
    for holding in situation.holdings:
        shape = narrowing.of_running(holding)
        same = shape == holding.shape
        holdings.append(holding if same else dataclasses.replace(holding, shape=shape))
    columns = situation.line_columns
    if columns is not None:
        numbers = np.array([line.shape for line in lines], dtype=np.int64)
        columns = dataclasses.replace(columns, shape=numbers)
    return dataclasses.replace(
        situation,
        shapes=tuple(narrowing.shapes),
        lines=tuple(lines),
        judged=tuple(judged),
        holdings=tuple(holdings),
        line_columns=columns,
    )


class _Narrowing:
    """Shapes without the nodes on which windows begin too soon, each made when it is asked for."""

    def __init__(self, situation: snapshots.Snapshot) -> None:
        self.situation = situation
        self.shapes = list(situation.shapes)
        self._known: dict[tuple[object, ...], int] = {}
        self._of_line: dict[tuple[int, float, tuple[int, ...]], int] = {}
        running, now = situation.running, situation.now
        may = running.preemptible & ~running.leaving & ~running.doubtful
        grace_s = float(running.grace_s[may].max(initial=0.0))
        left_by = float(running.leaves_by[running.leaving].max(initial=0.0))
        #: When who starts after others have left does so at the latest: those that are leaving,
        #: and those that could be told to leave now.
        self._left_at = max(now, left_by + LEAVING_S) if left_by else now
        self._gone_at = max(self._left_at, now + grace_s + LEAVING_S if may.any() else now)

    def narrowed(self, line: snapshots.PendingGroup) -> snapshots.PendingGroup:
        """A line with the shape by which its work is placed."""
        shape = self.of_line(line)
        return line if shape == line.shape else msgspec.structs.replace(line, shape=shape)

    def of_line(self, line: snapshots.PendingGroup) -> int:
        """The shape by which a line's work is placed."""
        key = (line.shape, line.duration_s, line.reservations)
        if key not in self._of_line:
            barred = [
                self._barred(at + line.duration_s, line.reservations)
                for at in (self.situation.now, self._left_at, self._gone_at)
            ]
            self._of_line[key] = self._narrowed(line.shape, *barred)
        return self._of_line[key]

    def of_running(self, holding: snapshots.Allocation) -> int:
        """The shape by which work would be placed elsewhere; -1: it is not moved."""
        if holding.shape < 0:
            return holding.shape
        at = self._left_at if holding.leaving else self._gone_at
        # what moves begins anew, and uses no reservation that it began in
        barred = self._barred(at + holding.ends_at - holding.since, ())
        return self._narrowed(holding.shape, barred)

    def _barred(self, until: float, usable: tuple[int, ...]) -> tuple[int, ...]:
        """Windows that bar what runs until a moment; one that is over by then does so till then."""
        return _barred(self.situation, (self.situation.now, until), usable)

    def _narrowed(
        self,
        shape: int,
        barred: tuple[int, ...],
        leaving: tuple[int, ...] | None = None,
        evicting: tuple[int, ...] | None = None,
    ) -> int:
        """Index of a shape where some windows bar a start now, and some one after others."""
        after = [self._narrowed(shape, late) for late in (leaving, evicting) if late is not None]
        here = shape if not barred else self._without(shape, barred)
        if not after or all(index == here for index in after):
            return here
        key = (shape, here, *after)
        if key not in self._known:
            self._known[key] = len(self.shapes)
            forms = [self.shapes[index].form for index in (here, *after)]
            self.shapes.append(
                dataclasses.replace(
                    self.shapes[here],
                    leaving=after[0],
                    evicting=after[1],
                    form=">".join(forms) if all(forms) else "",
                )
            )
        return self._known[key]

    def _without(self, shape: int, barred: tuple[int, ...]) -> int:
        if (shape, barred) not in self._known:
            self._known[shape, barred] = len(self.shapes)
            self.shapes.append(_windowed(self.situation, shape, barred))
        return self._known[shape, barred]


def closed(
    situation: snapshots.Snapshot, span: tuple[float, float], usable: tuple[int, ...]
) -> snapshots.Mask | None:
    """(n,) nodes that windows keep from others at some time of a span; None: no node.

    Args:
        span: begin and end of what would run.
        usable: indexes of the windows that it may use.
    """
    barred = _barred(situation, span, usable)
    return _nodes(situation, barred) if barred else None


def _nodes(situation: snapshots.Snapshot, barred: tuple[int, ...]) -> snapshots.Mask:
    found: snapshots.Mask = np.any([situation.windows[index].nodes for index in barred], axis=0)
    return found


def _barred(
    situation: snapshots.Snapshot, span: tuple[float, float], usable: tuple[int, ...]
) -> tuple[int, ...]:
    """Windows that hold at some time of a span, or begin again in it, but those it may use."""
    begins_at, ends_at = span
    return tuple(
        index
        for index, window in enumerate(situation.windows)
        if (window.starts_at < ends_at and begins_at < window.ends_at) or window.again_at < ends_at
        if window.maintenance or index not in usable
    )


def _windowed(
    situation: snapshots.Snapshot, shape: int, barred: tuple[int, ...]
) -> snapshots.Shape:
    """A shape without the nodes on which a window begins too soon."""
    old, taken = situation.shapes[shape], _nodes(situation, barred)
    lost = int((old.eligible & taken).sum())
    own = tuple(i for i in barred if (situation.windows[i].nodes & old.eligible).any())
    named = dict.fromkeys(situation.windows[index].name for index in own)  # some come again
    names = pending_reasons.names_text(tuple(named))
    places = [f"{w.name}@{w.starts_at:.0f}" for w in map(situation.windows.__getitem__, barred)]
    step = pending_reasons.FunnelStep(lost, f"reserved before it could end ({names})")
    return dataclasses.replace(
        old,
        eligible=old.eligible & ~taken,
        filtered=(*old.filtered, *((step,) if lost else ())),
        unreserved=shape,
        barred=own,
        form="-".join([old.form, *places]) if old.form else "",
    )


def next_change(situation: snapshots.Snapshot) -> float:
    """Return when the next window begins or ends; infinity: none."""
    moments = (moment for w in situation.windows for moment in (w.starts_at, w.ends_at))
    return min((moment for moment in moments if moment > situation.now), default=math.inf)
