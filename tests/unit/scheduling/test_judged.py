"""Claims that are not tried in a cycle are told whether they ever could start, as if they were."""

import dataclasses

import msgspec
import pytest

from reconciler.model.state.pending_reasons import Reason, ReasonCode, never_starts
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.inputs.snapshots import UNLIMITED, PendingGroup, PendingJob, Snapshot
from tests.unit.scheduling import drawn, situations
from tests.unit.scheduling.situations import Situation, gpus_in

TAKEN = Reason(ReasonCode.OVER_LIMIT, "others have its place")


def judged(found: Snapshot) -> Snapshot:
    """The same in which nothing that waits is tried."""
    lines = tuple(msgspec.structs.replace(line, claims=_held_back(line)) for line in found.lines)
    waits = tuple(line for line in lines if line.claims)
    return dataclasses.replace(found, lines=(), line_columns=None, judged=waits)


def _held_back(line: PendingGroup) -> tuple[PendingJob, ...]:
    return tuple(
        msgspec.structs.replace(claim, startable=0, promised=0, held_back=TAKEN)
        for claim in line.claims
        if not claim.missing
    )


def told_of_judged(decisions: Decisions) -> dict[str, tuple[Reason, ...]]:
    return {job: decisions.reasons[key] for job, key in decisions.reason_of.items()}


def check(s: Situation) -> int:
    """Both ways say of the same jobs that they can't start; how many that are."""
    snapshot = s.snapshot()
    tried, other = (
        scheduling_cycle.schedule(snapshot),
        told_of_judged(scheduling_cycle.schedule(judged(snapshot))),
    )
    begun = {placement.job for placement in tried.placements}
    may = {one.job for line in snapshot.lines for one in line.claims if one.startable}
    waits = [name for name, one in s.jobs.items() if one.waiting and name in may - begun]
    never = {name for name in waits if never_starts(situations.reasons_of(s, tried, name))}
    assert never == {name for name in waits if never_starts(other[name])}
    for name in waits:
        assert never_starts(other[name]) or other[name] == (TAKEN,)
    return len(never)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_judged_is_final_where_it_would_be_if_it_was_tried(seed: int) -> None:
    s, rng = drawn.situation(seed)
    for queue in s.queue_list:
        queue.lending = rng.choice([0, 1000, UNLIMITED])
    check(s)


def test_of_several_pools_one_that_can_hold_it_is_enough() -> None:
    s = Situation().node("a0", gpu=2, pool="a").node("b0", gpu=4, pool="b")
    s.queue("owner", flavors=(gpus_in("a", 1),)).queue("main", flavors=(gpus_in("b", 1),))
    s.job("runs", "owner", gpu=4, on=("b0",), pool="b", pools=("b",))
    s.job("fits", gpu=3).job("never", gpu=5)
    assert check(s) == 1


def test_a_limit_in_one_of_several_pools_is_no_end_where_another_may_hold_it() -> None:
    s = Situation().node("a0", gpu=4, pool="a").node("b0", gpu=4, pool="b")
    s.queue("main", flavors=(gpus_in("a", 0, limit=1), gpus_in("b", 4)))
    s.job("runs", gpu=4, on=("b0",), pool="b", pools=("b",), priority=90).job("waits", gpu=2)
    assert check(s) == 0
    assert any("pool a" in one.message for one in situations.reasons_of(s, s.decide(), "waits"))


def test_a_limit_in_each_of_several_pools_is() -> None:
    s = Situation().node("a0", gpu=4, pool="a").node("b0", gpu=4, pool="b")
    s.queue("main", flavors=(gpus_in("a", 0, limit=1), gpus_in("b", 0, limit=1)))
    s.job("never", gpu=2)
    assert check(s) == 1
    decisions = scheduling_cycle.schedule(judged(s.snapshot()))
    assert told_of_judged(decisions)["never"] == situations.reasons_of(s, s.decide(), "never")


def test_nothing_starts_or_leaves_for_what_is_judged() -> None:
    s = Situation().node("n", gpu=8).queue("main", limit=4).job("fits", gpu=2).job("never", gpu=5)
    decisions = scheduling_cycle.schedule(judged(s.snapshot()))
    assert (decisions.placements, decisions.evictions, decisions.estimates) == ((), (), {})
    found = told_of_judged(decisions)
    assert found["fits"] == (TAKEN,)
    assert "more than the limit of queue main, 4 GPUs" in found["never"][0].message
    assert found["never"] == situations.reasons_of(s, s.decide(), "never")
