"""What the engine does not cover is told, and then the present cycle decides."""

import dataclasses
from collections.abc import Callable

import pytest

from reconciler.scheduling.cycle import engine_cycle, scheduling_cycle
from reconciler.scheduling.engine.refusals import NotCovered, Trait
from reconciler.scheduling.inputs.snapshots import CarriedReservation
from tests.unit.scheduling.situations import Situation, amounts, evicted, started


def two_queues() -> Situation:
    return Situation().node("n", gpu=4).queue("a", guaranteed=2).queue("b", guaranteed=2)


def leaving() -> Situation:
    return two_queues().job("r", "a", gpu=1, on=("n",), leaving=True).job("w", "b", gpu=1)


def elastic() -> Situation:
    return two_queues().job("w", "a", gpu=1, tasks=2, least=1)


def several_groups() -> Situation:
    groups = (("x", 1, amounts(1, 1, 1)), ("y", 1, amounts(0, 1, 1)))
    return two_queues().job("w", "a", groups=groups)


def spread() -> Situation:
    return two_queues().job("w", "a", gpu=1, strategy="spread")


def deadline() -> Situation:
    return two_queues().job("w", "a", gpu=1, slack_s=100.0)


def lending() -> Situation:
    return Situation().node("n", gpu=4).queue("a", guaranteed=2, lending=1).job("w", "a", gpu=1)


def window() -> Situation:
    return two_queues().job("w", "a", gpu=1).window("w", 50.0, 100.0, [True])


def exclusive() -> Situation:
    return two_queues().job("w", "a", gpu=1, exclusive=True)


def victims() -> Situation:
    s = two_queues()
    for name in ("r0", "r1", "r2", "r3"):
        s.job(name, "a", gpu=1, on=("n",))
    return s.job("w", "b", gpu=1)


@pytest.mark.parametrize(
    ("make", "trait"),
    [
        (elastic, Trait.ELASTIC),
        (several_groups, Trait.GROUPS),
        (spread, Trait.SPREAD),
        (deadline, Trait.DEADLINES),
        (lending, Trait.LENDING),
        (window, Trait.WINDOWS),
        (exclusive, Trait.EXCLUSIVE),
    ],
)
def test_a_trait_that_is_not_covered_is_named(make: Callable[[], Situation], trait: Trait) -> None:
    snapshot = make().snapshot()

    with pytest.raises(NotCovered) as caught:
        engine_cycle.decide(snapshot)

    assert caught.value.trait is trait
    assert engine_cycle.schedule(snapshot) == scheduling_cycle.schedule(snapshot)


def test_what_is_covered_is_decided_by_the_engine() -> None:
    s = two_queues().job("w0", "a", gpu=2).job("w1", "b", gpu=2).job("w2", "b", gpu=2)

    decisions = engine_cycle.decide(s.snapshot())

    assert started(decisions) == ["w0", "w1"]
    assert decisions == scheduling_cycle.schedule(s.snapshot())


def kept() -> Situation:
    s = two_queues().job("r", "a", gpu=4, on=("n",), time_limit_s=60.0)
    s.job("x", "b", gpu=4, time_limit_s=30.0).job("w", "b", gpu=4, time_limit_s=30.0)
    s.kept = (CarriedReservation("w", 0, 60.0, (0,)),)
    return s


def protected() -> Situation:
    s = victims()
    s.queue_list[0].min_runtime_s = 600.0
    return s


@pytest.mark.parametrize("make", [leaving, victims, kept, protected])
def test_what_began_in_earlier_cycles_is_decided_alike(make: Callable[[], Situation]) -> None:
    snapshot = make().snapshot()

    assert engine_cycle.decide(snapshot) == scheduling_cycle.schedule(snapshot)


def test_others_leave_for_a_job_in_a_run_of_the_engine() -> None:
    decisions = engine_cycle.decide(victims().snapshot())

    assert evicted(decisions) == [("r3", "w")]
    assert decisions.promised == {"w": 1}


def test_nodes_that_come_free_are_promised_in_a_run_of_the_engine() -> None:
    s = two_queues().job("r", "a", gpu=4, on=("n",), leaving=True).job("w", "b", gpu=2)

    assert engine_cycle.decide(s.snapshot()).promised == {"w": 1}


def test_a_reservation_of_an_earlier_cycle_is_kept_in_a_run_of_the_engine() -> None:
    found = engine_cycle.decide(kept().snapshot()).kept

    assert [(entry.job, entry.starts_at) for entry in found] == [("w", 60.0), ("x", 90.0)]


def test_evictions_that_are_off_need_no_cover() -> None:
    s = victims()
    s.policy = dataclasses.replace(s.policy, reclaim=False, preempt=False, consolidate=False)

    assert engine_cycle.decide(s.snapshot()) == scheduling_cycle.schedule(s.snapshot())
