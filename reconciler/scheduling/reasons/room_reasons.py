"""Reasons about room: how nodes drop out for a task, and what would have to come free.

The capacity at the end of a cycle comes in, the reason of each shape that found no room goes out. A
thousand shapes wait from cycle to cycle, and nodes change little in between: a reason is worded
anew only where something differs that it tells.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.model.state import pending_reasons
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import Vector
from reconciler.scheduling.placement import diagnosis
from reconciler.scheduling.placement.capacity import Capacity
from reconciler.scheduling.quota import quota_ledger
from reconciler.scheduling.reasons import reason_text, window_text

Funnel = tuple[pending_reasons.FunnelStep, ...]


class _Facts(NamedTuple):
    """All that the reason of a shape tells, besides what it asks for.

    Attributes:
        nodes: how many there are.
        funnel: how they drop out.
        position, held: the group that fits fewest of its tasks, and that number.
        fragmented: enough is free, but not together.
        shut: why nodes that could hold a task take no work; None: there are none.
        open: some node that it may use takes work.
        levels: names of the levels of the topology.
    """

    nodes: int
    funnel: Funnel
    position: int
    held: int
    fragmented: bool
    shut: tuple[str, ...] | None
    open: bool
    levels: tuple[str, ...]


class _Told(NamedTuple):
    """The reason of a shape as told last, and the facts that it was told by."""

    shape: snapshots.Shape
    facts: _Facts
    reason: pending_reasons.Reason


class _Last:
    """A record of what the cycle before told, by the identity of the shape.

    Cycles replace it as a whole, so that it never grows, and threads don't disturb each other.

    Attributes:
        profiles: names of MIG profiles, as requests were worded by.
        told: of shapes that found no room.
        asked: what one element asks for, in words.
    """

    def __init__(self, profiles: tuple[str, ...] = ()) -> None:
        self.profiles = profiles
        self.told: dict[int, _Told] = {}
        self.asked: dict[int, tuple[snapshots.Shape, str]] = {}


_last = _Last()


class RoomReasons:
    """The reasons of shapes for which there is not enough room, in one cycle."""

    def __init__(self, situation: snapshots.Snapshot, now: Capacity) -> None:
        """Take the end of a cycle.

        Args:
            situation: the snapshot.
            now: free capacity at the end.
        """
        self.situation = situation
        self.now = now
        self._empty: Capacity | None = None
        global _last  # noqa: PLW0603 - replaced as a whole, so that threads don't disturb each other
        self._before, self._now = _last, _Last(situation.profiles)
        if self._before.profiles != situation.profiles:
            self._before = _Last()
        _last = self._now
        #: Why nodes take no work, with their rows.
        self._closed: list[tuple[str, list[int]]] | None = None
        #: Amounts free in all on the nodes of a mask, by the mask's identity.
        self._free: dict[int, Vector] = {}
        #: Nodes of a mask that take no work, and whether any does, by the mask's identity.
        self._shut_of: dict[int, tuple[NDArray[np.intp], bool]] = {}

    def insufficient(self, index: int) -> pending_reasons.Reason:
        """Return why there is no room for one element of a shape."""
        shape = self.situation.shapes[index]
        facts = self._facts(index)
        known = self._before.told.get(id(shape))
        if (
            known is not None
            and known.shape is shape
            and known.facts == facts
            and shape.unreserved is None  # else windows are told as well
        ):
            told = known
        else:
            told = _Told(shape, facts, self._worded(shape, facts))
        self._now.told[id(shape)] = told
        return told.reason

    def idle(self) -> Capacity:
        """Return the capacity of idle nodes."""
        if self._empty is None:
            self._empty = Capacity.empty(self.situation, like=self.now)
        return self._empty

    def asked(self, shape: snapshots.Shape) -> str:
        """Return the request of one element of a shape as text."""
        known = self._before.asked.get(id(shape)) or self._now.asked.get(id(shape))
        if known is None or known[0] is not shape:
            known = (shape, reason_text.shape_text(self.situation, shape))
        self._now.asked[id(shape)] = known
        return known[1]

    def _facts(self, index: int) -> _Facts:
        shape = self.situation.shapes[index]
        funnel = self.now.funnel(index)
        position, held, group = 0, 0, shape.groups[0]
        if len(shape.groups) > 1 or group.least != 1 or has_domains(shape):
            position, held = self._scarcest(index)
            group = shape.groups[position]
        shut, is_open = self._shut(shape.eligible)
        words = None
        if shut.size:
            nodes = self.situation.nodes
            shut = shut[(nodes.capacity[shut] >= group.amounts).all(axis=1)]
            if shut.size:
                if self._closed is None:
                    self._closed = diagnosis.closed(nodes)
                words = tuple([each for each, rows in self._closed if np.isin(rows, shut).any()])
        return _Facts(
            len(self.situation.nodes.names),
            funnel,
            position,
            held,
            self._is_fragmented(shape),
            words,
            is_open,
            self.situation.levels,
        )

    def _worded(self, shape: snapshots.Shape, facts: _Facts) -> pending_reasons.Reason:
        funnel, held, group = facts.funnel, facts.held, shape.groups[facts.position]
        asked = self.asked(shape)
        steps = ", ".join([f"{step.count} {step.why}" for step in funnel])
        message = f"{asked} asked; {facts.nodes} node{'s' if facts.nodes != 1 else ''}: {steps}"
        if held >= group.least and has_domains(shape):
            level = level_of(self.situation, shape)
            return pending_reasons.Reason(
                pending_reasons.ReasonCode.NO_TOPOLOGY_DOMAIN,
                f"{message}; not within one {level}",
                funnel,
                f"wait until {asked} come free within one {level}",
            )
        single_task = len(shape.groups) == 1 and group.least == 1
        code = pending_reasons.ReasonCode.INSUFFICIENT_RESOURCES
        freed = [words for step in funnel for words in diagnosis.freed(shape, step.why)]
        if any(step.why.startswith("lack ") for step in funnel):
            freed = []
        if not freed and facts.fragmented:
            code = pending_reasons.ReasonCode.FRAGMENTED
            message = f"enough is free, but not together: {message}"
        if freed:
            waits = freed
        elif single_task:
            waits = [f"{reason_text.freed_text(self.situation, group)} come free on one node"]
        elif held >= group.least:
            waits = [f"{asked} have room together"]
        else:
            together = reason_text.together(self.situation, group)
            waits = [f"{together} at once ({held} of them have room now)"]
        unblocks, waits_for = self._unblocks(shape, group, facts, waits)
        if diagnosis.NEAR in freed:
            waits_for = pending_reasons.WaitsFor.NEARBY_JOB
        return pending_reasons.Reason(code, message, funnel, unblocks, waits_for=waits_for)

    def _unblocks(
        self,
        shape: snapshots.Shape,
        group: snapshots.TaskGroupShape,
        facts: _Facts,
        waits: list[str],
    ) -> tuple[str, pending_reasons.WaitsFor | None]:
        """Return what would free capacity: ends of work, of reservations, or nodes back in
        service.

        ``waits``: events that free capacity on nodes in service.
        """
        windows = window_text.of_groups(self.situation, shape, (group,))
        over, changes = window_text.advice(self.situation, windows, self.fits_beside(shape))
        if facts.shut is None:
            return reason_text.advice_text([*waits, *over], changes), None
        which = f" that is {' or '.join(facts.shut)}" if facts.shut else ""
        again = f"a node{which} takes work again"
        if not facts.open:
            text = reason_text.advice_text([again, *over], changes)
            return f"{text}; `muster nodes` shows why", pending_reasons.WaitsFor.NODES
        text = reason_text.advice_text([*waits, *over, again], changes)
        return text, pending_reasons.WaitsFor.CAPACITY_OR_NODES

    def fits_beside(self, shape: snapshots.Shape) -> Callable[[snapshots.Mask], bool]:
        """Return True if a shape barred by windows would fit on idle nodes without the windows."""

        def fits(within: snapshots.Mask) -> bool:
            whole = shape.unreserved
            return whole is not None and self.idle().fits(whole, within=within)

        return fits

    def _shut(self, eligible: snapshots.Mask) -> tuple[NDArray[np.intp], bool]:
        """Return rows of a mask of nodes that take no work, and True if any takes work."""
        found = self._shut_of.get(id(eligible))
        if found is None:
            accepts = self.situation.nodes.accepts
            rows = np.flatnonzero(eligible & ~accepts)
            found = self._shut_of[id(eligible)] = (rows, bool((eligible & accepts).any()))
        return found

    def _is_fragmented(self, shape: snapshots.Shape) -> bool:
        asked, mask = shape.least, id(shape.eligible)
        if asked[quota_ledger.GPU] <= 0 or any(group.profile >= 0 for group in shape.groups):
            return False  # what is free of other devices is of no use to instances
        free = self._free.get(mask)
        if free is None:
            usable = shape.eligible & self.situation.nodes.accepts
            cpu, memory, gpu = self.now.amounts[usable].sum(axis=0).tolist()
            free = self._free[mask] = (cpu, memory, gpu)
        return free[0] >= asked[0] and free[1] >= asked[1] and free[2] >= asked[2]

    def _scarcest(self, index: int) -> tuple[int, int]:
        """Return the group that fits fewest of its tasks, and that number."""
        groups = self.situation.shapes[index].groups
        if len(groups) == 1:
            return 0, self.now.held(index)
        ranked = []
        for position, group in enumerate(groups):
            held = min(int(self.now.counts(index, position).sum()), group.least)
            ranked.append((held / max(1, group.least), position, held))
        _, position, held = min(ranked)
        return position, held


def has_domains(shape: snapshots.Shape) -> bool:
    """Return True if tasks of a shape must be within one topology domain."""
    return shape.required_level >= 0 or any(
        group.required_level >= 0 or group.slice_size for group in shape.groups
    )


def level_of(situation: snapshots.Snapshot, shape: snapshots.Shape) -> str:
    """Return the name of the narrowest level within one domain of which tasks must be."""
    levels = [shape.required_level, *(group.required_level for group in shape.groups)]
    levels += [group.slice_level for group in shape.groups if group.slice_size]
    narrowest = max(levels)
    return situation.levels[narrowest] if narrowest >= 0 else "domain"
