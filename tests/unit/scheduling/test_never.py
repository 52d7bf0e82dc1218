"""What no end of other work could ever let start is told as final, and has nobody wait for it."""

import dataclasses

import numpy as np
import pytest

from reconciler.model.state.pending_reasons import Reason
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.inputs import pending_groups
from reconciler.scheduling.inputs.snapshots import UNLIMITED, Snapshot
from reconciler.scheduling.quota import lending_limits, quota_ledger
from tests.unit.scheduling import drawn, situations
from tests.unit.scheduling.situations import Situation, code, gpus_in, started


def three_nodes(limit: int | None = None) -> Situation:
    """24 GPUs, of which 8 are the queue's, and 8 of the 16 of ``other`` are lent."""
    s = Situation().node("n0", gpu=8).node("n1", gpu=8).node("n2", gpu=8)
    return s.queue("main", guaranteed=8, limit=limit).queue("other", guaranteed=16, lending=8)


def told(s: Situation, job: str) -> tuple[Reason, ...]:
    return situations.reasons_of(s, s.decide(), job)


def test_a_gang_larger_than_its_guarantee_and_all_that_is_lent_never_fits() -> None:
    s = three_nodes()
    s.job("big", gpu=8, tasks=3).job("runs", "other", gpu=8, on=("n2",), time_limit_s=60)
    decisions = s.decide()
    (reason,) = situations.reasons_of(s, decisions, "big")
    assert reason.code == "NeverFits"
    assert reason.message == (
        "24 GPUs asked at once, and queue main can have 16 GPUs at the most: 8 GPUs guaranteed to "
        "it, and 8 GPUs that are nobody's own or that other queues lend"
    )
    assert reason.unblocks == (
        "raise the guarantee of queue main, let other queues lend more, add nodes, "
        "or ask for less at once"
    )
    assert "big" not in decisions.estimates


def test_one_that_fits_into_what_is_lent_waits_for_it() -> None:
    s = three_nodes()
    s.job("some", gpu=8, tasks=2).job("runs", gpu=4, on=("n0",), time_limit_s=60)
    decisions = s.decide()
    assert code(s, decisions, "some") == "WaitingForQuota"
    assert "some" in decisions.estimates


@pytest.mark.parametrize("accepts", [True, False])
def test_nodes_that_take_no_work_now_count_since_they_come_back(*, accepts: bool) -> None:
    s = three_nodes().node("n3", gpu=8, accepts=accepts)
    s.job("big", gpu=8, tasks=3).job("runs", gpu=1, on=("n0",), time_limit_s=60)
    assert told(s, "big")[0].code == "WaitingForQuota"


@pytest.mark.parametrize(
    ("own", "ends"), [(0, "work in another queue ends"), (1, "work in queue main or another ends")]
)
def test_whose_work_keeps_it_from_what_is_lent(own: int, ends: str) -> None:
    s = Situation().node("n0", gpu=8).queue("main").queue("borrower")
    s.queue("other", guaranteed=4, lending=2).job("some", gpu=2)
    s.job("runs", "borrower", gpu=5 - own, on=("n0",), time_limit_s=60, preemptible=False)
    if own:
        s.job("own", gpu=own, on=("n0",), time_limit_s=60)
    (reason,) = told(s, "some")
    assert reason.code == "WaitingForQuota"
    assert reason.unblocks == f"wait until {ends}, or let other queues lend more"


@pytest.mark.parametrize(
    ("queue", "may_have"),
    [
        pytest.param("main", "6 GPUs, 6 GPUs in use", id="its own guarantee"),
        pytest.param("below", "6 GPUs, 6 GPUs in use", id="that of the queue above"),
        pytest.param("borrower", "0 GPUs, 3 GPUs in use", id="nothing is guaranteed"),
    ],
)
def test_who_borrowed_takes_nothing_of_what_is_guaranteed_to_others(
    queue: str, may_have: str
) -> None:
    """What others have in excess is not held against a queue that has all that is its own."""
    s = Situation().node("n0", gpu=12).queue("main", guaranteed=6).queue("below", "main")
    s.queue("other", guaranteed=6, lending=0).queue("borrower")
    s.job("has", "main" if queue == "borrower" else queue, gpu=6, on=("n0",), time_limit_s=60)
    s.job("borrows", "borrower", gpu=3, on=("n0",), time_limit_s=60, preemptible=False)
    s.job("some", queue, gpu=2)
    (reason,) = told(s, "some")
    assert reason.code == "WaitingForQuota"
    assert reason.message.endswith(f": queue {queue} may have {may_have}, 2 GPUs asked")


def test_the_guarantee_of_a_queue_above_counts_as_its_own() -> None:
    s = Situation().node("n0", gpu=8).node("n1", gpu=8)
    s.queue("top", guaranteed=12).queue("main", "top", guaranteed=2)
    s.queue("beside", "top", guaranteed=4, lending=1).queue("other", guaranteed=4, lending=0)
    s.job("runs", gpu=1, on=("n0",), time_limit_s=60)
    s.job("fits", cpu=0, gpu=3, tasks=3).job("never", cpu=0, gpu=5, tasks=2)
    assert told(s, "fits")[0].code == "WaitingForQuota"
    assert told(s, "never")[0].message.startswith(
        "10 GPUs asked at once, and queue main can have 9 GPUs at the most: 2 GPUs guaranteed to "
        "it, and 7 GPUs that are nobody's own"
    )


@pytest.mark.parametrize(
    ("lending", "gpu", "rest"),
    [(1, 10, "1 GPU that is nobody's own"), (2, 11, "2 GPUs that are nobody's own")],
)
def test_what_is_lent_is_told_in_grammar(lending: int, gpu: int, rest: str) -> None:
    s = Situation().node("n0", gpu=12).queue("main", guaranteed=8)
    s.queue("other", guaranteed=4, lending=lending).job("never", gpu=gpu)
    (reason,) = told(s, "never")
    assert rest in reason.message


def test_of_several_pools_in_none_of_which_it_may_start_one_is_told() -> None:
    s = Situation().node("a0", gpu=10, pool="a").node("b0", gpu=10, pool="b")
    s.queue("owner", flavors=(gpus_in("a", 8, lending=0), gpus_in("b", 8, lending=0)))
    s.queue("main", flavors=(gpus_in("a", 0), gpus_in("b", 0))).job("never", gpu=9)
    (reason,) = told(s, "never")
    assert "queue main can have 2 GPUs in pool a at the most" in reason.message


def test_of_several_pools_one_in_which_it_may_start_is_enough() -> None:
    s = Situation().node("a0", gpu=4, pool="a").node("b0", gpu=4, pool="b")
    s.queue("owner", flavors=(gpus_in("a", 4, lending=1),)).queue("main", guaranteed=4)
    s.job("runs", gpu=4, on=("b0",), time_limit_s=60)
    s.job("either", gpu=2).job("a-alone", gpu=2, pool="a", pools=("a",))
    assert "NeverFits" not in [one.code for one in told(s, "either")]
    (reason,) = told(s, "a-alone")
    assert reason.code == "NeverFits"
    assert "queue main can have 1 GPU in pool a at the most" in reason.message


def test_nothing_is_kept_under_a_limit_for_what_others_never_lend() -> None:
    s = three_nodes(limit=24)
    s.job("runs", gpu=4, on=("n0",), time_limit_s=60)
    s.job("never", gpu=8, tasks=3).job("small", gpu=1, time_limit_s=600)
    decisions = s.decide()
    assert started(decisions) == ["small"]
    assert code(s, decisions, "never") == "OverLimit"
    assert [one.code for one in situations.reasons_of(s, decisions, "never")][1:] == ["NeverFits"]


def test_of_two_limits_the_one_that_never_lets_it_start_is_told() -> None:
    s = Situation().node("n", gpu=8).queue("top", limit=4).queue("main", "top", limit=8)
    s.job("runs", gpu=4, on=("n",), time_limit_s=60).job("never", gpu=6)
    (reason,) = told(s, "never")
    assert reason.message.startswith("6 GPUs asked, more than the limit of queue top, 4 GPUs")
    assert reason.unblocks.startswith("raise the limit of queue top to 6 GPUs")


def in_racks(s: Situation, *gangs: str) -> Snapshot:
    """Two nodes to a rack, and of some jobs all tasks in one."""
    found = s.snapshot()
    racks = np.arange(len(found.nodes.names)).reshape(-1, 1) // 2
    near = {line.shape for line in found.lines if line.claims[0].job in gangs}
    return dataclasses.replace(
        found,
        nodes=dataclasses.replace(found.nodes, domains=racks),
        levels=("rack",),
        shapes=tuple(
            dataclasses.replace(shape, required_level=0) if number in near else shape
            for number, shape in enumerate(found.shapes)
        ),
    )


def four_nodes(limit: int | None = None) -> Situation:
    s = Situation().queue("main", limit=limit)
    for number in range(4):
        s.node(f"n{number}", gpu=8)
    return s


@pytest.mark.parametrize("busy", [False, True])
def test_a_gang_larger_than_every_rack_is_told_nothing_that_would_pass(*, busy: bool) -> None:
    s = four_nodes()
    if busy:
        s.job("runs", gpu=8, on=("n0",), time_limit_s=60)
    decisions = scheduling_cycle.schedule(in_racks(s.job("gang", gpu=8, tasks=3), "gang"))
    (reason,) = situations.reasons_of(s, decisions, "gang")
    assert reason.code == "NoTopologyDomain"
    assert "none is large enough" in reason.message
    assert "gang" not in decisions.estimates


def test_nothing_is_kept_under_a_limit_for_what_no_rack_holds() -> None:
    s = four_nodes(limit=24).job("runs", gpu=8, on=("n0",), time_limit_s=60)
    s.job("gang", gpu=8, tasks=3).job("small", gpu=8, time_limit_s=600)
    assert started(scheduling_cycle.schedule(in_racks(s, "gang"))) == ["small"]
    s = four_nodes(limit=16).job("runs", gpu=8, on=("n0",), time_limit_s=60)
    s.job("gang", gpu=8, tasks=2).job("small", gpu=8, time_limit_s=600)
    assert started(scheduling_cycle.schedule(in_racks(s, "gang"))) == []


@pytest.mark.parametrize("seed", range(60))
def test_the_most_that_a_queue_may_have_is_what_an_idle_cluster_lets_it_start(seed: int) -> None:
    s, rng = drawn.situation(seed)
    for queue in s.queue_list:
        queue.lending = rng.choice([0, 1000, 2000, UNLIMITED])
    for node in s.nodes:
        node.accepts = True
    s.jobs, s.held, s.caps = {}, [], []
    situation = scheduling_cycle.prepared(s.snapshot())
    ledger = quota_ledger.QuotaLedger(situation, pending_groups.columns_of(situation.lines))
    most = lending_limits.LendingLimits(situation)
    for row in range(len(s.queue_list)):
        for resource in ledger.resources:
            bound = most.of(row, resource)
            for amount in {1, 1000, 2000, bound, min(bound, UNLIMITED - 1) + 1} - {0}:
                asked = tuple(amount if r == resource else 0 for r in ledger.resources)
                lent = ledger.over_lending(row, asked) is None
                assert lent == (amount <= bound), (row, resource, amount)


@pytest.mark.parametrize("seed", range(60))
def test_nothing_starts_of_which_it_was_told_that_it_never_could(seed: int) -> None:
    """Followed for some cycles, with nodes that stop taking work and come back."""
    s, rng = drawn.situation(seed)
    for queue in s.queue_list:
        queue.lending = rng.choice([0, 1000, UNLIMITED])
    never: set[str] = set()
    for _ in range(4):
        decisions = s.decide()
        assert never.isdisjoint(started(decisions))
        for job in [name for name, one in s.jobs.items() if one.waiting]:
            if s.lines and "can have" in " ".join(
                one.message for one in _reasons(s, decisions, job)
            ):
                never.add(job)
        s.apply(decisions).left()
        for node in s.nodes:
            node.accepts = rng.random() < 0.8
        s.now += 50.0


def _reasons(s: Situation, decisions: Decisions, job: str) -> tuple[Reason, ...]:
    try:
        return situations.reasons_of(s, decisions, job)
    except (KeyError, StopIteration):
        return ()


def all_lent_for_now(*, never: bool) -> Situation:
    """The owner of eight uses six of them, so that for the moment it keeps nothing back."""
    s = Situation().node("n0", gpu=10).queue("main").queue("other", guaranteed=8, lending=0)
    s.job("runs", "other", gpu=6, on=("n0",), time_limit_s=60)
    s.job("low", gpu=1, on=("n0",), priority=10)
    s.job("more", "other", gpu=2, time_limit_s=60)
    if never:
        s.job("never", gpu=9, time_limit_s=600, priority=90)
    return s.job("small", gpu=1, time_limit_s=100)


def test_nothing_is_reserved_for_what_is_never_lent_while_owners_use_their_own() -> None:
    with_it, without = all_lent_for_now(never=True).decide(), all_lent_for_now(never=False).decide()
    assert started(with_it) == started(without) == ["more", "small"]
    assert not with_it.kept
    assert not with_it.evictions
    assert "never" not in with_it.estimates


def test_nothing_is_reserved_for_it_in_any_of_several_pools() -> None:
    s = Situation().node("a0", gpu=10, pool="a").node("b0", gpu=10, pool="b")
    s.queue("owner", flavors=(gpus_in("a", 8, lending=0), gpus_in("b", 8, lending=0)))
    s.queue("main", flavors=(gpus_in("a", 0), gpus_in("b", 0)))
    for pool in ("a", "b"):
        s.job(f"r{pool}", "owner", gpu=8, on=(f"{pool}0",), time_limit_s=60, pool=pool)
    s.job("never", gpu=9, time_limit_s=600)
    s.job("small", gpu=2, time_limit_s=100).job("as-small", gpu=2, time_limit_s=100)
    decisions = s.decide()
    assert sorted(started(decisions)) == ["as-small", "small"]
    assert not decisions.kept
    assert "never" not in decisions.estimates


@pytest.mark.parametrize("share_bytes", [0, 20])
def test_what_memory_of_gpus_comes_to_is_known_once_it_has_one(share_bytes: int) -> None:
    """So that it is not said that it could never have it."""
    s = three_nodes().job("some", gpu=8, tasks=3)
    snapshot = s.snapshot()
    (shape,) = snapshot.shapes
    group = dataclasses.replace(shape.groups[0], share_bytes=share_bytes)
    bound = lending_limits.LendingLimits(snapshot)
    shape = dataclasses.replace(shape, groups=(group,))
    assert bound.beyond(0, shape, shape.least) == (None if share_bytes else quota_ledger.GPU)
