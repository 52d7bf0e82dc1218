"""What holds for every situation, on small random clusters against slow and obvious checks."""

import dataclasses
import itertools
import os
import random
import subprocess
import sys

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.scheduling import schedule as scheduler
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.snapshot import UNLIMITED, Claim, Holding, Snapshot
from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import Situation, amounts

EXAMPLES = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@st.composite
def clusters(draw: st.DrawFn) -> Situation:
    """Two or three nodes, a small tree of queues, work that runs and work that waits."""
    s = Situation()
    nodes = draw(st.integers(1, 3))
    for index in range(nodes):
        s.node(f"n{index}", gpu=draw(st.sampled_from([2, 4, 4])), cpu=12, accepts=draw(_mostly()))
    inner = draw(st.booleans())
    if inner:
        s.queue("top", guaranteed=draw(st.sampled_from([0, 4])), limit=draw(_limit()))
    for name in ("a", "b"):
        guaranteed, limit = draw(st.sampled_from([0, 2, 3, 5])), draw(_limit())
        parent = "top" if inner and draw(st.booleans()) else None
        s.queue(name, parent, guaranteed=guaranteed, limit=limit)
    for index in range(draw(st.sampled_from([0, 3, 6, 9, 12]))):
        _running(draw, s, index)
    for index in range(draw(st.integers(1, 4))):
        s.job(
            f"w{index}",
            draw(st.sampled_from(["a", "b"])),
            gpu=draw(st.sampled_from([0, 1, 1, 2, 3])),
            cpu=draw(st.sampled_from([1, 1, 3])),
            tasks=draw(st.sampled_from([1, 1, 2, 3])),
            array=draw(st.sampled_from([1, 1, 3])),
            priority=draw(st.sampled_from([10, 50, 90])),
            preemptible=draw(_mostly()),
        )
    return s


def _mostly() -> st.SearchStrategy[bool]:
    return st.sampled_from([True, True, True, False])


def _limit() -> st.SearchStrategy[int | None]:
    return st.sampled_from([None, None, None, 4, 6])


def _running(draw: st.DrawFn, s: Situation, index: int) -> None:
    gpu, tasks = draw(st.sampled_from([0, 1, 1, 2])), draw(st.sampled_from([1, 1, 2]))
    nodes = s.snapshot().nodes
    wanted = amounts(gpu, 1, 1)
    places = [
        name
        for node, name in enumerate(nodes.names)
        for _ in range(min(int(nodes.free[node][r]) // wanted[r] for r in range(3) if wanted[r]))
    ]
    if len(places) < tasks:
        return
    s.job(
        f"r{index}",
        draw(st.sampled_from(["a", "b"])),
        gpu=gpu,
        tasks=tasks,
        priority=draw(st.sampled_from([10, 10, 50])),
        preemptible=draw(_mostly()),
        cost_s=draw(st.sampled_from([0.0, 60.0])),
        on=tuple(draw(st.permutations(places))[:tasks]),
        leaving=draw(st.sampled_from([False, False, False, False, True])),
    )


def check_capacity(situation: Snapshot, decisions: Decisions) -> None:
    """Amounts and devices are there, each device is given once, gangs are whole."""
    free = situation.nodes.free.copy()
    given_out: set[tuple[int, int]] = set()
    shapes = {claim.job: situation.shapes[claim.shape] for claim in situation.claims}
    for placement in decisions.placements:
        groups = {group.name: group for group in shapes[placement.job].groups}
        assert sorted((t.group, t.index) for t in placement.tasks) == sorted(
            (group.name, index) for group in groups.values() for index in range(group.count)
        )
        for task in placement.tasks:
            wanted = groups[task.group].amounts
            free[task.node] -= wanted
            assert len(task.devices) == wanted[2] // 1000
            assert shapes[placement.job].eligible[task.node]
            assert situation.nodes.accepts[task.node]
            for device in task.devices:
                assert device in situation.nodes.free_devices[task.node]
                assert (task.node, device) not in given_out
                given_out.add((task.node, device))
    assert (free >= 0).all() or not decisions.placements


def check_limits(situation: Snapshot, decisions: Decisions) -> None:
    """No start takes a queue or an ancestor over its limit."""
    used = situation.queues.allocated.copy()
    claims = {claim.job: claim for claim in situation.claims}
    for placement in decisions.placements:
        queue, asked = (
            claims[placement.job].queue,
            situation.shapes[claims[placement.job].shape].total,
        )
        while queue >= 0:
            used[queue] += asked
            for resource in range(3):
                limit = situation.queues.limit[queue][resource]
                assert not asked[resource] or used[queue][resource] <= limit or limit == UNLIMITED
            queue = int(situation.queues.parent[queue])


def check_evictions(situation: Snapshot, decisions: Decisions) -> None:
    """Only evictable elements leave, once, for a claim of higher priority or another queue."""
    holdings = {(h.job, h.element): h for h in situation.holdings}
    claims = {claim.job: claim for claim in situation.claims}
    names = [(eviction.job, eviction.element) for eviction in decisions.evictions]
    assert len(names) == len(set(names))
    for eviction in decisions.evictions:
        victim = holdings[eviction.job, eviction.element]
        assert victim.evictable
        assert not victim.leaving
        claim = claims[eviction.for_job]
        assert victim.queue != claim.queue or victim.priority < claim.priority
        assert situations.code(decisions, claim.job) == "WaitingForEvictions"


def check_reasons(situation: Snapshot, decisions: Decisions) -> None:
    """Every claim with elements left has reasons, and every funnel adds up to all nodes."""
    started = {(p.job, p.element) for p in decisions.placements}
    for claim in situation.claims:
        left = [element for element in claim.elements if (claim.job, element) not in started]
        assert bool(left) == (claim.job in decisions.reason_of)
    assert set(decisions.reason_of.values()) == set(decisions.reasons)
    for reasons in decisions.reasons.values():
        for reason in reasons:
            assert reason.unblocks
            if reason.funnel:
                assert sum(step.count for step in reason.funnel) == len(situation.nodes.names)


@EXAMPLES
@given(clusters())
def test_every_decision_is_lawful(s: Situation) -> None:
    situation = s.snapshot()
    decisions = scheduler.schedule(situation)
    check_capacity(situation, decisions)
    check_limits(situation, decisions)
    check_evictions(situation, decisions)
    check_reasons(situation, decisions)


@EXAMPLES
@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_of_claims_and_holdings_does_not_matter(s: Situation, rng: random.Random) -> None:
    one = s.snapshot()
    claims, holdings = list(one.claims), list(one.holdings)
    rng.shuffle(claims)
    rng.shuffle(holdings)
    other = Snapshot(one.nodes, one.queues, one.shapes, tuple(claims), tuple(holdings))
    assert scheduler.schedule(one) == scheduler.schedule(other)


@EXAMPLES
@given(clusters())
def test_the_outcome_of_a_cycle_moves_nothing_in_the_next(s: Situation) -> None:
    """With two exceptions.

    Who waits for room may start earlier in room that another waits for as well. And what a queue
    is guaranteed may stand behind work of the same queue that borrows; others' borrowed work that
    started in between is then taken back.
    """
    decisions = s.decide()
    again = s.apply(decisions).decide()
    assert set(situations.started(again)) <= set(decisions.promised)
    fresh = {(p.job, p.element) for p in decisions.placements}
    for preemptor in {eviction.for_job for eviction in again.evictions}:
        victims = {(e.job, e.element) for e in again.evictions if e.for_job == preemptor}
        assert victims & fresh


@EXAMPLES
@given(clusters())
def test_work_comes_to_rest(s: Situation) -> None:
    for _ in range(12):
        decisions = s.decide()
        if not decisions.placements and not decisions.evictions:
            return
        s.apply(decisions).left()
    raise AssertionError("evictions went on and on")


@EXAMPLES
@given(clusters())
def test_who_was_evicted_for_starts_once_they_have_left(s: Situation) -> None:
    decisions = s.decide()
    preemptors = {eviction.for_job for eviction in decisions.evictions}
    after = s.apply(decisions).left().decide()
    assert preemptors <= set(situations.started(after))


@EXAMPLES
@given(clusters())
def test_no_victim_could_be_spared(s: Situation) -> None:
    before = s.snapshot()
    decisions = scheduler.schedule(before)
    for eviction in decisions.evictions:
        others = [e for e in decisions.evictions if e is not eviction]
        if any(e.for_job != eviction.for_job for e in others) or decisions.placements:
            continue
        holdings = tuple(
            h
            for h in before.holdings
            if not any((e.job, e.element) == (h.job, h.element) for e in others)
        )
        claims = tuple(c for c in before.claims if c.job == eviction.for_job)
        if len(claims[0].elements) > 1:
            continue
        trial = _without(before, holdings, claims)
        assert eviction.for_job not in situations.started(scheduler.schedule(trial))


def _without(
    before: Snapshot, holdings: tuple[Holding, ...], claims: tuple[Claim, ...]
) -> Snapshot:
    """The situation with some holdings gone and some claims only."""
    free = before.nodes.free.copy()
    allocated = before.queues.allocated.copy()
    devices = [list(indexes) for indexes in before.nodes.free_devices]
    for holding in before.holdings:
        if holding in holdings:
            continue
        for node, vector, indexes in holding.tasks:
            free[node] += vector
            devices[node] = sorted([*devices[node], *indexes])
            queue = holding.queue
            while queue >= 0:
                allocated[queue] -= vector
                queue = int(before.queues.parent[queue])
    nodes = dataclasses.replace(
        before.nodes, free=free, free_devices=tuple(tuple(row) for row in devices)
    )
    queues = dataclasses.replace(before.queues, allocated=allocated)
    return dataclasses.replace(
        before,
        nodes=nodes,
        queues=queues,
        claims=claims,
        holdings=holdings,
    )


@EXAMPLES
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=3),
    st.lists(
        st.tuples(st.integers(1, 2), st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=3
    ),
)
def test_a_gang_starts_exactly_when_some_assignment_exists(
    rows: list[tuple[int, int]], groups: list[tuple[int, int, int]]
) -> None:
    s = Situation().queue("main")
    for index, (gpu, cpu) in enumerate(rows):
        s.node(f"n{index}", gpu=gpu, cpu=cpu)
    s.job(
        "gang",
        groups=tuple(
            (f"g{i}", count, amounts(gpu, cpu)) for i, (count, gpu, cpu) in enumerate(groups)
        ),
    )
    tasks = [(gpu, cpu) for count, gpu, cpu in groups for _ in range(count)]
    possible = any(
        all(
            sum(tasks[t][r] for t in range(len(tasks)) if places[t] == node) <= rows[node][r]
            for node in range(len(rows))
            for r in range(2)
        )
        for places in itertools.product(range(len(rows)), repeat=len(tasks))
    )
    decisions = s.decide()
    assert bool(decisions.placements) == possible
    if not possible:
        assert situations.code(decisions, "gang") == "NeverFits"


@EXAMPLES
@given(clusters())
def test_one_task_within_a_guarantee_starts_or_evicts_where_evictions_could_make_room(
    s: Situation,
) -> None:
    situation = s.snapshot()
    decisions = scheduler.schedule(situation)
    served = {p.job for p in decisions.placements} | {e.for_job for e in decisions.evictions}
    if served:
        return
    for claim in situation.claims:
        if situations.code(decisions, claim.job) == "InsufficientResources":
            assert not _guarantee_denied(situation, claim.job)


def _guarantee_denied(situation: Snapshot, job: str) -> bool:
    """By brute force: evicting some others' borrowed elements would let one task start."""
    claim = next(claim for claim in situation.claims if claim.job == job)
    shape = situation.shapes[claim.shape]
    asked = shape.total
    queues = situation.queues
    if any(queues.guaranteed[claim.queue][r] < asked[r] for r in (2,)) or not asked[2]:
        return False
    path = _path(situation, claim.queue)
    own = claim.queue
    if queues.allocated[own][2] + asked[2] > queues.guaranteed[own][2]:
        return False
    whole = all(
        queues.allocated[queue][2] + asked[2] <= (queues.guaranteed[queue][2] or 10**9)
        for queue in path
    )
    flat = [
        h
        for h in situation.holdings
        if h.evictable
        and h.queue not in path
        and len(_path(situation, h.queue)) == len(path)
        and (whole or queues.parent[h.queue] == queues.parent[own] != -1)
        and (len(path) == 1 or queues.parent[h.queue] == queues.parent[own])
    ]
    for size in range(1, len(flat) + 1):
        for victims in itertools.combinations(flat, size):
            taken: dict[int, int] = {}
            for victim in victims:
                for _, vector, _ in victim.tasks:
                    taken[victim.queue] = taken.get(victim.queue, 0) + vector[2]
            if any(
                queues.allocated[q][2] - gone < queues.guaranteed[q][2] or not gone
                for q, gone in taken.items()
            ):
                continue
            rest = tuple(h for h in situation.holdings if h not in victims)
            if scheduler.schedule(_without(situation, rest, (claim,))).placements:
                return True
    return False


def _path(situation: Snapshot, queue: int) -> list[int]:
    path = []
    while queue >= 0:
        path.append(queue)
        queue = int(situation.queues.parent[queue])
    return path


PROGRAM = """
from tests.unit.scheduling.situations import Situation
s = Situation().queue("top", guaranteed=8).queue("a", "top", guaranteed=4).queue("b", "top")
for n in range(4):
    s.node(f"n{n}", gpu=4)
for n in range(12):
    s.job(f"r{n}", "b", gpu=1, cost_s=float(n % 3), on=(f"n{n % 4}",))
for n in range(9):
    gang = {"gpu": n % 3 + 1, "tasks": n % 2 + 1, "slack_s": 9 - n}
    s.job(f"w{n}", "ab"[n % 2], priority=n % 2, **gang)
print(s.decide())
"""


def test_another_hash_seed_makes_no_difference() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert "Eviction" in outputs.pop()
