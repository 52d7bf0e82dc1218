"""What holds of amounts by pool in every situation, against checks that know of no ledger."""

import dataclasses
import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model import desired
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.inputs import flavors, pending_groups
from reconciler.scheduling.inputs.snapshots import WHOLE, Snapshot
from reconciler.scheduling.quota import quota_ledger, unsatisfiable
from tests.unit.scheduling import drawn, situations, test_properties
from tests.unit.scheduling.situations import Situation, gpus_in


@st.composite
def clusters(draw: st.DrawFn) -> Situation:
    """Two pools, queues with amounts in them, work that runs and work that waits."""
    s = Situation()
    for index in range(draw(st.integers(2, 4))):
        gpu = draw(st.sampled_from([2, 4, 4]))
        s.node(f"n{index}", gpu=gpu, cpu=12, pool="ab"[index % 2])
    inner = draw(st.booleans())
    if inner:
        s.queue("top", flavors=_flavors(draw), limit=draw(_rarely(6)))
    for name in ("x", "y"):
        s.queue(
            name,
            "top" if inner and draw(st.booleans()) else None,
            guaranteed=draw(st.sampled_from([0, 0, 4])),
            limit=draw(_rarely(6)),
            flavors=_flavors(draw),
        )
    if draw(st.sampled_from([False, False, True])):
        cap = desired.QuotaAmounts(gpu_milli=draw(st.sampled_from([1000, 3000])))
        s.caps = [desired.Quota("cap", pool="a", resources=cap)]
    for index in range(draw(st.sampled_from([0, 3, 6, 9]))):
        _running(draw, s, index)
    for index in range(draw(st.integers(1, 4))):
        s.job(
            f"w{index}",
            draw(st.sampled_from(["x", "y"])),
            gpu=draw(st.sampled_from([0, 0.5, 1, 1, 2, 3])),
            tasks=draw(st.sampled_from([1, 1, 2, 3])),
            least=draw(st.sampled_from([None, None, 1])),
            time_limit_s=draw(st.sampled_from([float("inf"), 60.0, 600.0])),
            array=draw(st.sampled_from([1, 1, 3])),
            priority=draw(st.sampled_from([10, 50, 90])),
            preemptible=draw(st.sampled_from([True, True, True, False])),
            pools=draw(st.sampled_from([(), (), ("a",), ("b", "a"), ("a", "b")])),
        )
    return s


def _rarely(value: int) -> st.SearchStrategy[int | None]:
    return st.sampled_from([None, None, None, value])


def _flavors(draw: st.DrawFn) -> tuple[desired.QueueFlavor, ...]:
    pools = draw(st.sampled_from(["", "a", "ab", "ba", "b"]))
    return tuple(
        gpus_in(
            pool,
            draw(st.sampled_from([None, 0, 1, 2])),
            limit=draw(st.sampled_from([None, None, 2, 3])),
            lending=draw(st.sampled_from([None, None, None, 1])),
            weight=draw(st.sampled_from([None, None, 0.0, 3.0])),
        )
        for pool in pools
    )


def _running(draw: st.DrawFn, s: Situation, index: int) -> None:
    gpu, tasks = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([1, 1, 2]))
    free = [len(s.free_devices(row)) // gpu for row in range(len(s.nodes))]
    places = [node.name for node, many in zip(s.nodes, free, strict=True) for _ in range(many)]
    if len(places) < tasks:
        return
    s.job(
        f"r{index}",
        draw(st.sampled_from(["x", "y"])),
        gpu=gpu,
        tasks=tasks,
        priority=draw(st.sampled_from([10, 10, 50])),
        preemptible=draw(st.sampled_from([True, True, True, False])),
        movable=draw(st.booleans()),
        time_limit_s=draw(st.sampled_from([float("inf"), 300.0])),
        on=tuple(draw(st.permutations(places))[:tasks]),
        leaving=draw(st.sampled_from([False, False, False, True])),
    )


def _path(s: Situation, queue: str | None) -> list[situations.Queue]:
    found = []
    while queue is not None:
        found.append(next(one for one in s.queue_list if one.name == queue))
        queue = found[-1].parent
    return found


def _in(s: Situation, tasks: object, pool: str) -> int:
    """Milli-GPUs of tasks on nodes of a pool."""
    return sum(t.amounts[2] for t in tasks if s.nodes[t.node].pool == pool)  # type: ignore[attr-defined]


def _used(s: Situation, queue: str, pool: str, *, firm: bool = False) -> int:
    """Milli-GPUs that a queue and those below it have in a pool."""
    found = 0
    for held in s.held:
        job = s.jobs[held.job]
        if queue in [one.name for one in _path(s, job.queue)]:
            tasks = [t for t in held.tasks if not firm or not (job.preemptible or t.spare)]
            found += _in(s, tasks, pool)
    return found


def check(s: Situation, decisions: Decisions) -> None:
    """Limits, caps and firm guarantees in each pool hold for each start, in the order of starts."""
    for pool in sorted({node.pool for node in s.nodes}):
        used = {one.name: _used(s, one.name, pool) for one in s.queue_list}
        firm = {one.name: _used(s, one.name, pool, firm=True) for one in s.queue_list}
        everything = sum(_in(s, held.tasks, pool) for held in s.held)
        owners = any(_flavor(one, pool).guaranteed.gpu_milli for one in s.queue_list)
        for placement in decisions.placements:
            asked, job = _in(s, placement.tasks, pool), s.jobs[placement.job]
            everything += asked
            for cap in s.caps:
                if asked and cap.pool == pool:
                    assert everything <= (cap.resources.gpu_milli or 0)
            for queue in _path(s, job.queue):
                used[queue.name] += asked
                most = _flavor(queue, pool).limit.gpu_milli
                assert not asked or most is None or used[queue.name] <= most
                if not job.preemptible and placement.action != "grow":
                    firm[queue.name] += asked
                    due = _owed(s, queue.name, pool)
                    assert not asked or not owners or firm[queue.name] <= due


def _flavor(queue: situations.Queue, pool: str) -> desired.QueueFlavor:
    return next((f for f in queue.flavors if f.pool == pool), desired.QueueFlavor(pool))


def _owed(s: Situation, queue: str, pool: str) -> int:
    """What is guaranteed in a pool: as said, or the sum of the children."""
    said = _flavor(_path(s, queue)[0], pool).guaranteed.gpu_milli
    if said is not None:
        return said
    return sum(_owed(s, one.name, pool) for one in s.queue_list if one.parent == queue)


@test_properties.EXAMPLES
@given(clusters())
def test_every_decision_keeps_to_the_amounts_of_its_pool(s: Situation) -> None:
    snapshot = s.snapshot()
    decisions = scheduling_cycle.schedule(snapshot)
    test_properties.check_capacity(snapshot, decisions)
    test_properties.check_limits(snapshot, decisions)
    test_properties.check_evictions(snapshot, decisions)
    test_properties.check_reasons(snapshot, decisions)
    check(s, decisions)


@test_properties.EXAMPLES
@given(clusters())
def test_an_element_starts_within_one_pool_of_those_with_amounts(s: Situation) -> None:
    snapshot = s.snapshot()
    named = set(snapshot.pools.names) if snapshot.pools is not None else set()
    for placement in scheduling_cycle.schedule(snapshot).placements:
        pools = {s.nodes[task.node].pool for task in placement.tasks}
        assert placement.action == "grow" or len(pools) == 1 or not pools & named


@test_properties.EXAMPLES
@given(clusters())
def test_what_is_guaranteed_in_a_pool_is_taken_from_nobody_there(s: Situation) -> None:
    decisions = s.decide()
    for eviction in decisions.evictions:
        if eviction.ground != "reclaim" or not eviction.for_job:
            continue
        mine, theirs = s.jobs[eviction.job].queue, s.jobs[eviction.for_job].queue
        if mine == theirs:
            continue
        (held,) = [h for h in s.held if (h.job, h.element) == (eviction.job, eviction.element)]
        pools = {s.nodes[task.node].pool for task in held.tasks}
        if len(pools) == 1 and snapshot_names(s) >= pools:
            (pool,) = pools
            assert not _owed(s, mine, pool) or _used(s, mine, pool) > _owed(s, mine, pool)


def snapshot_names(s: Situation) -> set[str]:
    """Pools with amounts of their own."""
    pools = s.snapshot().pools
    return set(pools.names) if pools is not None else set()


@test_properties.EXAMPLES
@given(clusters())
def test_turns_that_are_told_in_advance_would_have_come_to_the_same(s: Situation) -> None:
    for _ in range(3):
        situation = s.snapshot()
        decisions = scheduling_cycle.schedule(situation)
        assert decisions == drawn.one_by_one(situation) == drawn.at_rest_soon(situation)
        s.apply(decisions)


@test_properties.EXAMPLES
@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_of_what_comes_in_does_not_matter(s: Situation, rng: random.Random) -> None:
    one = s.snapshot()
    shuffled, holdings = list(one.lines), list(one.holdings)
    rng.shuffle(shuffled)
    rng.shuffle(holdings)
    other = dataclasses.replace(one, lines=tuple(shuffled), holdings=tuple(holdings))
    first, second = scheduling_cycle.schedule(one), scheduling_cycle.schedule(other)
    assert first.placements == second.placements
    assert first.evictions == second.evictions
    assert first.promised == second.promised


@test_properties.EXAMPLES
@given(clusters())
def test_work_comes_to_rest(s: Situation) -> None:
    for _ in range(12):
        decisions = s.decide()
        if not decisions.placements and not decisions.evictions:
            return
        s.apply(decisions).left()
    raise AssertionError("evictions went on and on")


@test_properties.EXAMPLES
@given(clusters())
def test_who_was_evicted_for_starts_once_they_have_left(s: Situation) -> None:
    decisions = s.decide()
    preemptors = {eviction.for_job for eviction in decisions.evictions if eviction.for_job}
    after = s.apply(decisions).left().decide()
    assert preemptors <= set(situations.started(after))


def _alone(snapshot: Snapshot, pooled: Snapshot, number: int) -> Snapshot:
    """The columns of one pool, taken for those of a cluster without pools."""
    assert snapshot.pools is not None
    here = slice(3 * (number + 1), 3 * (number + 2))
    inside = snapshot.pools.of_node == number
    queues = pooled.queues
    only = dataclasses.replace(
        queues,
        guaranteed=queues.guaranteed[:, here],
        firm_limit=queues.firm_limit[:, here],
        rationed=queues.rationed[:, here],
        limit=queues.limit[:, here],
        lending=queues.lending[:, here],
        allocated=queues.allocated[:, here],
        firm=queues.firm[:, here],
        weight=snapshot.pools.weight[:, number],
        pool_weight=None,
    )
    shapes = tuple(
        dataclasses.replace(shape, eligible=shape.eligible & inside, pool=-1)
        for shape in snapshot.shapes
    )
    asking = tuple(
        line for line in snapshot.lines if snapshot.shapes[line.shape].eligible[inside].any()
    )
    whole = np.minimum(snapshot.nodes.capacity[inside].sum(axis=0), snapshot.pools.cap[number])
    capacity = np.zeros_like(snapshot.nodes.capacity)
    capacity[np.flatnonzero(inside)[0]] = whole
    held = tuple(
        dataclasses.replace(h, tasks=tuple(t for t in h.tasks if inside[t.node]))
        for h in snapshot.holdings
    )
    return dataclasses.replace(
        snapshot,
        nodes=dataclasses.replace(snapshot.nodes, capacity=capacity),
        queues=only,
        shapes=shapes,
        lines=asking,
        line_columns=None,
        holdings=held,
        pools=None,
    )


def _that_count(snapshot: Snapshot) -> Snapshot:
    """The same without what could never start in the cluster, or in a pool taken alone.

    That is no demand where it is so, and what a pool alone could hold is another question.
    """
    assert snapshot.pools is not None
    pooled = flavors.within(snapshot)
    views = [_alone(snapshot, pooled, number) for number in range(len(snapshot.pools.names))]
    never = {
        line.claims[0].job
        for view in (pooled, *views)
        for line, unfit_here in zip(
            view.lines,
            unsatisfiable.lines(view, pending_groups.columns_of(view.lines)),
            strict=True,
        )
        if unfit_here
    }
    kept = tuple(line for line in snapshot.lines if line.claims[0].job not in never)
    return dataclasses.replace(snapshot, lines=kept, line_columns=None)


@test_properties.EXAMPLES
@given(clusters())
def test_a_share_in_a_pool_is_that_of_a_cluster_which_is_this_pool(s: Situation) -> None:
    """The columns of one pool, taken for those of a cluster without pools."""
    snapshot = s.snapshot()
    if snapshot.pools is None:
        return
    snapshot = _that_count(snapshot)
    assert snapshot.pools is not None
    pooled = flavors.within(snapshot)
    ledger = quota_ledger.QuotaLedger(pooled, pending_groups.columns_of(pooled.lines))
    for number in range(len(snapshot.pools.names)):
        here = slice(3 * (number + 1), 3 * (number + 2))
        alone = _alone(snapshot, pooled, number)
        reference = quota_ledger.QuotaLedger(alone, pending_groups.columns_of(alone.lines))
        for queue in range(len(s.queue_list)):
            assert ledger.demand[queue][here] == reference.demand[queue]
            # what is a whole number of GPUs in all may be shares in one pool, and the other way
            for mine, theirs in zip(ledger.fair[queue][here], reference.fair[queue], strict=True):
                assert abs(mine - theirs) < WHOLE or mine == theirs
