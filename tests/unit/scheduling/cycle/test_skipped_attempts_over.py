"""Lines whose turns are told in advance lose nothing that a whole turn would bring."""

import dataclasses
import gc
import math
import tracemalloc
from typing import Literal

import numpy as np
import pytest

from reconciler.scheduling.cycle import scheduling_cycle
from tests.unit.scheduling import drawn
from tests.unit.scheduling.situations import GIB, Situation, amounts, evicted

HOUR_S = 3600.0
Backfill = Literal["none", "easy", "conservative"]


def borrowed(backfill: Backfill, cpu: int, memory: int) -> Situation:
    """A node that is full of what another queue borrows, and two queues with a guarantee."""
    s = Situation()
    s.policy = dataclasses.replace(s.policy, backfill=backfill, consolidate=False)
    s.node("n", cpu=5, memory=5).queue("a").queue("b")
    for queue in s.queue_list:
        queue.guaranteed = (cpu * 1000, memory * GIB, 0)
    s.job("hog", "b", cpu=4, memory=4, on=("n",), time_limit_s=24 * HOUR_S)
    s.now = 10.0
    return s


@pytest.mark.parametrize("backfill", ["none", "easy", "conservative"])
@pytest.mark.parametrize("endless", [False, True])
@pytest.mark.parametrize(
    ("guarantee", "asked"),
    [((0, 2), (2, 0)), ((2, 0), (0, 2))],
    ids=["memory", "cpu"],
)
def test_a_guarantee_is_kept_behind_a_smaller_job_that_asks_for_nothing_of_it(
    backfill: Backfill, endless: bool, guarantee: tuple[int, int], asked: tuple[int, int]
) -> None:
    s = borrowed(backfill, *guarantee)
    limit_s = math.inf if endless else 24 * HOUR_S
    s.job("stays", "b", cpu=1, memory=1, on=("n",), preemptible=False, time_limit_s=limit_s)
    cpu, memory = asked
    s.job("small", "a", cpu=cpu, memory=memory, submitted_at=8.0, time_limit_s=10 * HOUR_S)
    s.job("owed", "a", cpu=2, memory=2, submitted_at=9.0, time_limit_s=10 * HOUR_S)
    situation = s.snapshot()
    decisions = scheduling_cycle.schedule(situation)
    assert evicted(decisions) == evicted(drawn.one_by_one(situation)) == [("hog", "owed")]


@pytest.mark.parametrize("seed", range(150))
def test_drawn_stories_go_the_way_in_which_every_line_has_its_turn(seed: int) -> None:
    assert drawn.differing(seed) == (3, [])


@pytest.mark.parametrize("seed", range(60))
def test_so_do_those_with_minimum_run_times(seed: int) -> None:
    assert drawn.differing(seed, protected=True) == (3, [])


class Counted(scheduling_cycle.SchedulingCycle):
    """A cycle that counts its turns."""

    turns = 0

    def _turn(self, queue: int) -> bool:
        self.turns += 1
        return super()._turn(queue)


def waiting(backfill: Backfill, *, strict: bool = False) -> Situation:
    """A full node, and 300 jobs in three queues that ask for more each time, and so take turns."""
    s = Situation()
    s.policy = dataclasses.replace(s.policy, backfill=backfill)
    s.node("n", cpu=512, memory=1024, gpu=128)
    for name in "abc":
        s.queue(name, guaranteed=128)
    s.queue_list[0].strict = strict
    s.job("full", "a", gpu=128, on=("n",), preemptible=False)
    for number in range(300):
        s.job(f"j{number:03d}", "abc"[number % 3], gpu=1 + number // 3)
    return s


@pytest.mark.parametrize("backfill", ["none", "easy", "conservative"])
def test_turns_that_are_all_idle_are_had_at_once(backfill: Backfill) -> None:
    given = scheduling_cycle.prepared(waiting(backfill).snapshot())
    soon, never = Counted(given, rest_after=1), Counted(given, rest_after=10_000)
    assert soon.run() == never.run() == drawn.one_by_one(given)
    assert soon.turns < never.turns / 5


def test_in_a_strict_queue_the_others_wait_for_its_first_and_not_for_room() -> None:
    given = scheduling_cycle.prepared(waiting("none", strict=True).snapshot())
    decisions = drawn.at_rest_soon(given)
    assert decisions == drawn.one_by_one(given)
    codes = [decisions.reasons[key][0].code for key in decisions.reason_of_line if key]
    assert {"Behind", "InsufficientResources"} <= set(codes)


def test_what_a_cycle_used_is_free_when_it_has_ended() -> None:
    given = waiting("easy").snapshot()
    gc.collect()
    gc.disable()
    try:
        scheduling_cycle.schedule(given)
        assert gc.collect() == 0, "a circle keeps it until the collector of garbage comes by"
    finally:
        gc.enable()


def many(queues: int) -> scheduling_cycle.SchedulingCycle:
    """A cycle with many queues that have limits and guarantees, of which some borrow."""
    s = Situation()
    s.node("n", gpu=8 * queues, cpu=64 * queues, memory=64 * queues)
    for at in range(queues):
        s.queue(f"q{at}", limit=4, guaranteed=1 + at % 2)
        if at % 3 == 0:
            s.job(f"r{at}", f"q{at}", gpu=2 + at % 2, cpu=1, on=("n",))
    s.job("w", "q0", gpu=1)
    return scheduling_cycle.SchedulingCycle(s.snapshot())


def test_limits_and_shares_are_judged_as_the_ledger_judges_each() -> None:
    cycle = many(12)
    vectors = [amounts(gpu, 1, 1) for gpu in (0, 1, 2, 3, 5)]
    pairs = [(vector, queue) for queue in range(12) for vector in vectors]
    asked = np.array(vectors, dtype=np.int64)
    gated, reclaiming = (
        np.concatenate([judged(asked, queue) for queue in range(12)]).tolist()
        for judged in (cycle.prospects.gated, cycle.prospects.reclaiming)
    )
    ledger, losers = cycle.ledger, cycle.prospects.losers()
    assert gated == [ledger.over_limit(at, vector) is not None for vector, at in pairs]
    assert reclaiming == [
        bool(losers[at]) and ledger.within_fair_share(at, vector) for vector, at in pairs
    ]
    assert len({*gated}) == len({*reclaiming}) == 2


def test_what_is_judged_of_lines_does_not_grow_with_the_queues() -> None:
    few, lots = many(3), many(150)
    asked = np.tile(np.array([amounts(1, 1, 1)], dtype=np.int64), (2_000, 1))
    peaks = []
    for cycle in (few, lots):
        cycle.prospects.losers()
        tracemalloc.start()
        cycle.prospects.gated(asked, 0)
        cycle.prospects.reclaiming(asked, 0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]
