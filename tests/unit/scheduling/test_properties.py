"""What holds for every situation, on small random clusters against slow and obvious checks."""

import dataclasses
import itertools
import os
import random
import subprocess
import sys

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.inputs.snapshots import (
    UNLIMITED,
    WHOLE,
    Allocation,
    PendingGroup,
    PendingJob,
    Snapshot,
)
from reconciler.scheduling.nodes import requirements
from tests.unit.scheduling import drawn, situations
from tests.unit.scheduling.situations import Situation, amounts

EXAMPLES = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


#: NUMA nodes of a node's GPUs: halves, one after the other, uneven, all, and partly or not known.
LAYOUTS = ((0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 1), (0, 0, 0, 0), (0, 0, -1, -1), ())


@st.composite
def clusters(draw: st.DrawFn) -> Situation:
    """Two or three nodes, a small tree of queues, work that runs and work that waits."""
    s = Situation()
    nodes = draw(st.integers(1, 3))
    laid_out = draw(st.booleans())
    for index in range(nodes):
        gpu = draw(st.sampled_from([2, 4, 4]))
        numa = draw(st.sampled_from(LAYOUTS))[:gpu] if laid_out else ()
        s.node(f"n{index}", gpu=gpu, cpu=12, accepts=draw(_mostly()), numa=numa)
    near = st.sampled_from([None, True, True, False]) if laid_out else st.none()
    inner = draw(st.booleans())
    if inner:
        s.queue("top", guaranteed=draw(st.sampled_from([0, 4])), limit=draw(_limit()))
    for name in ("a", "b"):
        guaranteed, limit = draw(st.sampled_from([0, 2, 3, 5])), draw(_limit())
        parent = "top" if inner and draw(st.booleans()) else None
        s.queue(
            name,
            parent,
            guaranteed=guaranteed,
            limit=limit,
            weight=draw(st.sampled_from([0.0, 1.0, 1.0, 3.0])),
        )
    for index in range(draw(st.sampled_from([0, 3, 6, 9, 12]))):
        _running(draw, s, index)
    for index in range(draw(st.integers(1, 4))):
        s.job(
            f"w{index}",
            draw(st.sampled_from(["a", "b"])),
            gpu=draw(st.sampled_from([0, 0.25, 0.5, 1, 1, 2, 3])),
            cpu=draw(st.sampled_from([1, 1, 3])),
            tasks=draw(st.sampled_from([1, 1, 2, 3])),
            least=draw(st.sampled_from([None, None, 1])),
            time_limit_s=draw(st.sampled_from([float("inf"), 60.0, 600.0])),
            array=draw(st.sampled_from([1, 1, 3])),
            priority=draw(st.sampled_from([10, 50, 90])),
            preemptible=draw(_mostly()),
            near=draw(near),
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
        movable=draw(st.booleans()),
        time_limit_s=draw(st.sampled_from([float("inf"), 300.0])),
        on=tuple(draw(st.permutations(places))[:tasks]),
        leaving=draw(st.sampled_from([False, False, False, False, True])),
    )


def check_capacity(situation: Snapshot, decisions: Decisions) -> None:
    """Amounts and devices are there, a device's shares come to one at most, gangs are whole."""
    free = situation.nodes.free.copy()
    devices = situation.nodes.devices.copy()
    shapes = {c.job: situation.shapes[line.shape] for line in situation.lines for c in line.claims}
    for placement in decisions.placements:
        groups = shapes[placement.job].groups
        if placement.action != "grow":
            counts = [sum(t.group == g for t in placement.tasks) for g in range(len(groups))]
            assert counts == [group.least for group in groups]
        for task in placement.tasks:
            group = groups[task.group]
            free[task.node] -= group.amounts
            assert shapes[placement.job].eligible[task.node]
            assert situation.nodes.accepts[task.node]
            assert len(set(task.devices)) == group.devices
            if requirements.needs_inner(group) and not group.inner_preferred:
                row = situation.nodes.inner[group.inner][task.node]
                domains = {int(row[device]) for device in task.devices}
                assert len(domains) == 1
                assert min(domains) >= 0
            for device in task.devices:
                if task.share == WHOLE:
                    assert devices[task.node, device] == WHOLE
                devices[task.node, device] -= task.share
    assert (free >= 0).all() or not decisions.placements
    assert (devices >= -1).all()


def claims_of(situation: Snapshot) -> dict[str, tuple[PendingGroup, PendingJob]]:
    """Job to its line and claim of new elements."""
    return {c.job: (line, c) for line in situation.lines for c in line.claims if not c.missing}


def check_limits(situation: Snapshot, decisions: Decisions) -> None:
    """No start takes a queue or an ancestor over its limit."""
    used = situation.queues.allocated.copy()
    lines = {claim.job: line for line in situation.lines for claim in line.claims}
    for placement in decisions.placements:
        queue = lines[placement.job].queue
        groups = situation.shapes[lines[placement.job].shape].groups
        asked = [sum(groups[t.group].amounts[r] for t in placement.tasks) for r in range(3)]
        while queue >= 0:
            used[queue] += asked
            for resource in range(3):
                limit = situation.queues.limit[queue][resource]
                assert not asked[resource] or used[queue][resource] <= limit or limit == UNLIMITED
            queue = int(situation.queues.parent[queue])


def check_evictions(situation: Snapshot, decisions: Decisions) -> None:
    """Only preemptible elements leave, once, for a claim of higher priority or another queue.

    What leaves as a whole gets no task more.
    """
    holdings = {(h.job, h.element): h for h in situation.holdings}
    lines = {claim.job: line for line in situation.lines for claim in line.claims}
    names = [(eviction.job, eviction.element, eviction.tasks) for eviction in decisions.evictions]
    assert len(names) == len(set(names))
    whole = {(job, element) for job, element, tasks in names if not tasks}
    assert not whole & {(p.job, p.element) for p in decisions.placements}
    for eviction in decisions.evictions:
        victim = holdings[eviction.job, eviction.element]
        assert not victim.leaving
        if eviction.ground == "stale-gang":
            continue
        assert victim.preemptible or eviction.tasks
        line = lines[eviction.for_job]
        if eviction.ground != "consolidate":
            assert victim.queue != line.queue or victim.priority < line.priority
        assert decisions.promised[eviction.for_job]


def check_reasons(situation: Snapshot, decisions: Decisions) -> None:
    """Every claim with elements left has reasons, and every funnel adds up to all nodes."""
    started = {(p.job, p.element) for p in decisions.placements}
    for index, line in enumerate(situation.lines):
        for claim in line.claims:
            left = [element for element in claim.elements if (claim.job, element) not in started]
            if left and not claim.missing:
                key = decisions.reason_of.get(claim.job) or decisions.reason_of_line[index]
                assert decisions.reasons[key]
    for reasons in decisions.reasons.values():
        for reason in reasons:
            assert reason.unblocks
            if reason.funnel:
                assert sum(step.count for step in reason.funnel) == len(situation.nodes.names)


@EXAMPLES
@given(clusters())
def test_every_decision_is_lawful(s: Situation) -> None:
    situation = s.snapshot()
    decisions = scheduling_cycle.schedule(situation)
    check_capacity(situation, decisions)
    check_limits(situation, decisions)
    check_evictions(situation, decisions)
    check_reasons(situation, decisions)


@EXAMPLES
@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_of_claims_and_holdings_does_not_matter(s: Situation, rng: random.Random) -> None:
    one = s.snapshot()
    lines, holdings = list(one.lines), list(one.holdings)
    rng.shuffle(lines)
    rng.shuffle(holdings)
    other = dataclasses.replace(one, lines=tuple(lines), holdings=tuple(holdings))
    first, second = scheduling_cycle.schedule(one), scheduling_cycle.schedule(other)
    assert first.placements == second.placements
    assert first.evictions == second.evictions
    assert first.promised == second.promised
    assert first.estimates == second.estimates
    assert first.reasons == second.reasons


@EXAMPLES
@given(clusters())
def test_turns_that_are_told_in_advance_would_have_come_to_the_same(s: Situation) -> None:
    for _ in range(3):
        situation = s.snapshot()
        decisions = scheduling_cycle.schedule(situation)
        assert decisions == drawn.one_by_one(situation) == drawn.at_rest_soon(situation)
        s.apply(decisions)


@EXAMPLES
@given(clusters())
def test_the_outcome_of_a_cycle_moves_nothing_in_the_next(s: Situation) -> None:
    """With three exceptions.

    Who waits for room may start earlier in room that another waits for as well. What a queue
    is guaranteed may stand behind work of the same queue that borrows; others' borrowed work that
    started in between is then taken back. And where some leave, so much may come free beside what
    they leave for that few more have to leave so that another starts.
    """
    decisions = s.decide()
    again = s.apply(decisions).decide()
    assert set(situations.started(again)) <= set(decisions.promised)
    fresh = {(p.job, p.element) for p in decisions.placements}
    for preemptor in {eviction.for_job for eviction in again.evictions}:
        victims = {(e.job, e.element) for e in again.evictions if e.for_job == preemptor}
        assert victims & fresh or decisions.evictions, f"{s}\n{decisions}\n{again}"


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
    decisions = scheduling_cycle.schedule(before)
    for eviction in decisions.evictions:
        others = [e for e in decisions.evictions if e is not eviction]
        if any(e.for_job != eviction.for_job for e in others) or decisions.placements:
            continue
        if any(e.tasks for e in decisions.evictions) or eviction.ground == "stale-gang":
            continue
        holdings = tuple(
            h
            for h in before.holdings
            if not any((e.job, e.element) == (h.job, h.element) for e in others)
        )
        lines = tuple(
            msgspec.structs.replace(
                line, claims=tuple(c for c in line.claims if c.job == eviction.for_job)
            )
            for line in before.lines
        )
        if any(len(c.elements) > 1 for line in lines for c in line.claims):
            continue
        trial = _without(before, holdings, lines)
        assert eviction.for_job not in situations.started(scheduling_cycle.schedule(trial))


def _without(
    before: Snapshot, holdings: tuple[Allocation, ...], lines: tuple[PendingGroup, ...]
) -> Snapshot:
    """The situation with some holdings gone and some claims only; nobody is evicted in it."""
    free = before.nodes.free.copy()
    devices = before.nodes.devices.copy()
    allocated, firm = before.queues.allocated.copy(), before.queues.firm.copy()
    for holding in before.holdings:
        if holding in holdings:
            continue
        for task in holding.tasks:
            free[task.node] += task.amounts
            for device in task.devices:
                devices[task.node, device] += task.share
            queue = holding.queue
            while queue >= 0:
                allocated[queue] -= task.amounts
                if not holding.preemptible and not task.spare:
                    firm[queue] -= task.amounts
                queue = int(before.queues.parent[queue])
    nodes = dataclasses.replace(before.nodes, free=free, devices=devices)
    queues = dataclasses.replace(before.queues, allocated=allocated, firm=firm)
    policy = dataclasses.replace(before.policy, reclaim=False, preempt=False, consolidate=False)
    return dataclasses.replace(
        before, nodes=nodes, queues=queues, lines=lines, holdings=holdings, policy=policy
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
        assert situations.code(s, decisions, "gang") == "NeverFits"


@EXAMPLES
@given(clusters())
def test_one_task_within_a_guarantee_starts_or_evicts_where_evictions_could_make_room(
    s: Situation,
) -> None:
    situation = s.snapshot()
    decisions = scheduling_cycle.schedule(situation)
    if decisions.placements or decisions.evictions:
        return
    for job, (line, claim) in claims_of(situation).items():
        if job not in decisions.promised:
            assert not _guarantee_denied(situation, line, claim)


def _guarantee_denied(situation: Snapshot, line: PendingGroup, claim: PendingJob) -> bool:
    """By brute force: evicting some others' borrowed elements would let one element start."""
    asked, queues = situation.shapes[line.shape].least, situation.queues
    path = _path(situation, line.queue)
    covered = all(
        queues.allocated[queue][2] + asked[2] <= queues.guaranteed[queue][2] for queue in path
    )
    whole = situation.nodes.capacity[situation.nodes.accepts].sum(axis=0)[2]
    roots = sum(
        int(g) for g, p in zip(queues.guaranteed[:, 2], queues.parent, strict=True) if p < 0
    )
    if not covered or not asked[2] or roots > whole:
        return False
    lines = (msgspec.structs.replace(line, claims=(msgspec.structs.replace(claim, startable=1),)),)
    borrowed = [
        h
        for h in situation.holdings
        if h.preemptible and not h.leaving and h.queue not in path and h.tasks
    ]
    for size in range(1, len(borrowed) + 1):
        for victims in itertools.combinations(borrowed, size):
            taken: dict[int, int] = {}
            for victim in victims:
                for queue in _path(situation, victim.queue):
                    gone = sum(task.amounts[2] for task in victim.tasks)
                    taken[queue] = taken.get(queue, 0) + gone
            if any(
                queues.allocated[q][2] - gone < queues.guaranteed[q][2] or not gone
                for q, gone in taken.items()
                if q not in path
            ):
                continue
            rest = tuple(h for h in situation.holdings if h not in victims)
            if scheduling_cycle.schedule(_without(situation, rest, lines)).placements:
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
