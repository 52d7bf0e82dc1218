"""What is cached from cycle to cycle equals what would be computed again."""

import copy
import dataclasses

import numpy as np
import pytest

from reconciler.core import cycle_cache, cycle_context
from reconciler.core.snapshot import snapshot_builder
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.scheduling.inputs import snapshots
from tests.unit.core import test_storm


def alike(kept: snapshots.Snapshot, anew: snapshots.Snapshot) -> None:
    for table in ("nodes", "queues"):
        left, right = getattr(kept, table), getattr(anew, table)
        for field in dataclasses.fields(left):
            np.testing.assert_array_equal(
                getattr(left, field.name), getattr(right, field.name), f"{table}.{field.name}"
            )
    by_name = [
        sorted(one.holdings, key=lambda held: (held.job, held.element, held.leaving))
        for one in (kept, anew)
    ]
    assert by_name[0] == by_name[1]
    assert kept.lines == anew.lines
    assert [shape.groups for shape in kept.shapes] == [shape.groups for shape in anew.shapes]


@pytest.mark.parametrize("seed", range(300, 308))
def test_columns_kept_by_changes_are_those_built_anew(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, compared = snapshot_builder.build, 0

    def build(
        context: cycle_context.CycleContext,
        desired_state: desired.Desired,
        at: float,
        *,
        quick_since: records.ScheduleInputs | None = None,
    ) -> snapshot_builder.SnapshotResult:
        nonlocal compared
        twin = copy.copy(context)
        twin.cache = cycle_cache.CycleCache.from_observed(context.observed)
        twin.attempts = copy.copy(context.attempts)
        twin.attempts._cache = twin.cache
        twin.jobs, twin.nodes = copy.copy(context.jobs), copy.copy(context.nodes)
        twin.jobs._cache, twin.nodes._names = twin.cache, twin.cache.nodes
        twin.alarm = copy.copy(context.alarm)
        anew = original(twin, desired_state, at, quick_since=quick_since)
        made = original(context, desired_state, at, quick_since=quick_since)
        alike(made.snapshot, anew.snapshot)
        assert made.pending.pending_jobs == anew.pending.pending_jobs
        assert made.held.running.items() >= anew.held.running.items()
        compared += 1
        return made

    monkeypatch.setattr(snapshot_builder, "build", build)
    test_storm._tell(seed)
    assert compared > 20


def test_what_is_recalled_of_other_records_is_refused() -> None:
    observed = records.Observed(attempts={})
    cache = cycle_cache.CycleCache.from_observed(records.Observed(attempts={}))
    with pytest.raises(ValueError, match="other records"):
        cycle_context.CycleContext(desired.Desired(), observed, 0.0, cache)


def test_names_stay_in_order_as_they_come_and_go() -> None:
    names = cycle_cache.Names(["b", "d"])
    for name, there in (("a", True), ("d", False), ("c", True), ("c", True), ("x", False)):
        names.put(name, there=there)
    assert names.ordered == ["a", "b", "c"]
    assert names.with_drafts({"b": False, "z": True, "a": True}) == ["a", "c", "z"]
    assert names.ordered == ["a", "b", "c"]


def test_moments_that_hold_no_longer_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle_cache, "MOMENTS_SPARE", 5)
    moments = cycle_cache.Moments()
    for moment in range(100):
        moments.put("a", 100.0 - moment)
    moments.put("b", 7.0)
    assert moments.first() == 1.0
    assert len(moments._heap) < 10
    assert moments.over(1.0) == ["a"]
    assert moments.first() == 7.0
    moments.drop("b")
    assert moments.first() is None
    assert "b" not in moments
