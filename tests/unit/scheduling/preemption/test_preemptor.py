"""Searches that are not made would have evicted nobody."""

from collections import Counter

import numpy as np
import pytest

from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.nodes import oversized
from reconciler.scheduling.placement import request
from reconciler.scheduling.placement.capacity import Capacity
from reconciler.scheduling.preemption import consolidation, preemptor
from tests.unit.scheduling import drawn
from tests.unit.scheduling.situations import Situation, evicted

#: Situations that are drawn, and stories; in the last only reservations keep some work out.
SITUATIONS = 150
STORIES, CYCLES = (*range(30), 242, 482, 491, 514, 527, 806, 1023, 1176), 3


def go_through_stories() -> None:
    """Run a few cycles of each story; now and then what was told to leave has left."""
    for seed in STORIES:
        s, rng = drawn.situation(seed)
        for _ in range(CYCLES):
            s.apply(scheduling_cycle.schedule(s.snapshot()))
            if rng.random() < 0.5:
                s.left()


class _Searched(preemptor.Preemption):
    """Searches that are made also where nobody is needed, or nothing helps."""

    judged: tuple[list[str], list[str]] = ([], [])

    def find(
        self, ask: request.PlacementRequest, mover: consolidation.Consolidation
    ) -> preemptor.PreemptionResult | None:
        excess = self.ledger.over_limit(ask.queue, ask.amounts, settled=True)
        scopes = [] if excess is not None else self._scopes(ask)
        vain = self.failures.fits_nowhere(ask)
        nobody = bool(scopes) and self._needs_nobody(ask, scopes)
        mark, version = self.later.mark(), self.ledger.version
        for scope in scopes if vain or nobody else []:
            found = self._search(ask, scope, mover)
            assert found is None or not found.units, (ask.job, scope)
            assert self.ledger.version == version
            self.later.rollback(mark)
            self.judged[vain].append(ask.job)
        return super().find(ask, mover)


def test_a_search_that_is_not_made_would_have_found_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: tuple[list[str], list[str]] = ([], [])
    monkeypatch.setattr(_Searched, "judged", judged)
    monkeypatch.setattr(preemptor, "Preemption", _Searched)
    go_through_stories()
    nobody, vain = judged
    assert nobody, "it is about something"
    assert vain, "it is about something"


class _Asked(preemptor.Preemption):
    """Searches that ask of each unit whether it may leave, also of those that are passed over."""

    judged: Counter[str] = Counter()

    def may_leave(self, ask: request.PlacementRequest, queue: int) -> snapshots.Mask:
        found = super().may_leave(ask, queue)
        units = self.pool.units(queue)
        for unit in map(units.unit, np.flatnonzero(units.there).tolist()):
            allowed = self.allowed(ask, unit)
            assert found[unit.place] or not allowed, (ask.job, unit.name)
            self.judged["some" if found[unit.place] else "none"] += 1
        return found


def test_who_is_passed_over_could_not_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: Counter[str] = Counter()
    monkeypatch.setattr(_Asked, "judged", judged)
    monkeypatch.setattr(preemptor, "Preemption", _Asked)
    go_through_stories()
    assert min(judged["some"], judged["none"]) > 50, "it is about something"


def test_what_is_larger_than_any_node_in_service_has_no_room_if_all_are_idle() -> None:
    found = 0
    for seed in range(SITUATIONS):
        given = scheduling_cycle.prepared(drawn.situation(seed)[0].snapshot())
        known, empty = oversized.OversizedShapes(given), Capacity.empty(given)
        for shape in range(len(given.shapes)):
            if known.has(shape):
                found += 1
                assert not empty.fits(shape, within=given.nodes.accepts)
    assert found, "it is about something"


def test_only_what_is_too_large_for_every_node_is_left_alone() -> None:
    s = Situation().queue("a", guaranteed=4).queue("b").node("n", gpu=4)
    s.job("low", "b", gpu=4, on=("n",)).job("huge", "a", gpu=5).job("large", "a", gpu=4)
    assert evicted(s.decide()) == [("low", "large")]
