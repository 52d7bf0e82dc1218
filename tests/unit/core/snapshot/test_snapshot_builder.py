"""The snapshot's columns equal a slow and obvious recount of what runs."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core import cycle_context
from reconciler.core.snapshot import snapshot_builder
from reconciler.model import desired
from reconciler.model.state.states import AttemptState
from reconciler.model.values.resources import Resources
from reconciler.scheduling.inputs import snapshots
from tests.unit.core.world import GI, World, job

QUEUES = (
    desired.Queue("default"),
    desired.Queue("team", limit=desired.QuotaAmounts(gpu_milli=6000)),
    desired.Queue("inner", parent="team", guaranteed=desired.QuotaAmounts(gpu_milli=1000)),
)


def asks(draw: st.DrawFn) -> desired.TaskGroup:
    kind = draw(st.sampled_from(["cpu", "whole", "share", "memory", "mig"]))
    count = draw(st.integers(1, 3))
    minimum = draw(st.sampled_from([None, 1]))
    cpu = draw(st.integers(1, 2)) * 500
    common: dict[str, Any] = {
        "name": "main",
        "count": count,
        "command": ("true",),
        "minimum": minimum,
    }
    amounts: dict[str, tuple[Resources, dict[str, Any]]] = {
        "cpu": (Resources(cpu, GI, 0), {}),
        "whole": (Resources(cpu, GI, draw(st.integers(1, 2)) * 1000), {}),
        "share": (Resources(cpu, GI, draw(st.sampled_from([100, 250, 500]))), {}),
        "memory": (Resources(cpu, GI, 300), {"devices": 1, "gpu_memory_bytes": 3 * GI}),
        "mig": (Resources(cpu, GI, 142), {"devices": 1, "mig_profile": "1g.10gb"}),
    }
    resources, more = amounts[kind]
    return desired.TaskGroup(resources=resources, **common, **more)


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[str, desired.Job | None]]:
    """Return jobs that come, and moments at which something ends."""
    steps: list[tuple[str, desired.Job | None]] = []
    for number in range(draw(st.integers(1, 7))):
        spec = job(
            f"j{number}",
            groups=(asks(draw),),
            queue=draw(st.sampled_from(["default", "team", "inner"])),
            priority=draw(st.sampled_from([10, 50])),
            preemptible=draw(st.booleans()),
            exclusive=draw(st.sampled_from([False, False, True])),
            array_count=draw(st.sampled_from([None, 2])),
        )
        steps.append(("job", spec))
        if draw(st.booleans()):
            steps.append(("end", None))
    return steps


@settings(max_examples=60, deadline=None)
@given(stories())
def test_columns_equal_a_recount(story: list[tuple[str, desired.Job | None]]) -> None:
    world = World(nodes=3, cpu=4, gpu=4, queues=QUEUES)
    layout = desired.MigLayout(3, (("1g.10gb", 3),))
    pool = desired.Pool(
        **{
            **{name: getattr(world.pool, name) for name in world.pool.__struct_fields__},
            "gpu_memory_bytes": 10 * GI,
            "mig": (layout,),
        }
    )
    world.change_structure(pools={"pool": pool})
    for _, spec in story:
        if spec is not None:
            world.commit(spec)
        else:
            live = [a for a in world.memory.attempts.values() if a.state is AttemptState.RUNNING]
            if live:
                world.end(live[0].job, element=live[0].element, index=live[0].index)
        world.settle(3)
        _compare(world, pool)


def _compare(world: World, pool: desired.Pool) -> None:
    wanted = desired.Desired(world.generation, world.structure, dict(world.jobs))
    context = cycle_context.CycleContext(wanted, world.memory.observed((), {}), world.now)
    made = snapshot_builder.build(context, wanted, world.now).snapshot
    live = [a for a in world.memory.attempts.values() if a.state is not AttemptState.ENDED]
    for row, name in enumerate(made.nodes.names):
        mine = [a for a in live if a.node == name]
        cpu, memory = pool.node_resources.cpu_milli, pool.node_resources.memory_bytes
        devices = [1000, 1000, 1000, -1]
        instances = 3
        for attempt in mine:
            cpu -= attempt.resources.cpu_milli
            memory -= attempt.resources.memory_bytes
            instances -= len(attempt.instances)
            for device in attempt.devices:
                devices[device] -= attempt.resources.gpu_milli // len(attempt.devices)
        assert made.nodes.devices[row].tolist() == devices
        assert min(devices[:3]) >= 0
        assert made.nodes.free[row].tolist() == [cpu, memory, sum(devices[:3])]
        assert instances >= 0
        numbers = [number for attempt in mine for number in attempt.instances]
        assert len(numbers) == len(set(numbers)) == 3 - instances
        if made.profiles:
            assert made.nodes.instances[row].tolist() == [instances]
        elements = {(a.job, a.element) for a in mine}
        assert made.nodes.occupied[row] == len(elements)
        alone = any(world.memory.jobs[of].spec.exclusive for of, _ in elements)
        assert made.nodes.exclusive[row] == alone
        assert not alone or len(elements) == 1
    _compare_queues(world, made)
    held = {(h.job, h.element, t.group, t.index) for h in made.holdings for t in h.tasks}
    assert held == {(a.job, a.element, 0, a.index) for a in live}
    waiting = {claim.job for line in made.lines for claim in line.claims if not claim.missing}
    pending = {name for name, record in world.memory.jobs.items() if b"\x00" in record.elements}
    assert waiting == pending
    for line in made.lines:
        orders = [claim.order for claim in line.claims]
        assert orders == sorted(orders)


def test_who_was_promised_room_keeps_the_order_in_which_it_was_promised() -> None:
    world = World(nodes=1, cpu=1, queues=QUEUES)
    world.commit(job("first", cpu=8), job("second", cpu=8), job("third", cpu=8))
    world.settle(1)
    world.memory.nominations = {"third": 1, "first": 1}
    wanted = desired.Desired(world.generation, world.structure, dict(world.jobs))
    context = cycle_context.CycleContext(wanted, world.memory.observed((), {}), world.now)
    made = snapshot_builder.build(context, wanted, world.now).snapshot
    found = {claim.job: claim for line in made.lines for claim in line.claims}
    assert [(found[name].promised, found[name].promise_turn) for name in ("first", "third")] == [
        (1, 1),
        (1, 0),
    ]
    assert found["second"].promised == 0


def _holdings(world: World) -> dict[str, snapshots.Allocation]:
    """Return what runs, as the scheduler sees it."""
    wanted = desired.Desired(world.generation, world.structure, dict(world.jobs))
    context = cycle_context.CycleContext(wanted, world.memory.observed((), {}), world.now)
    return {
        one.job: one for one in snapshot_builder.build(context, wanted, world.now).snapshot.holdings
    }


def test_how_long_leaving_takes_is_known_and_until_when() -> None:
    world = World(nodes=1, cpu=2)
    saves = desired.Checkpoint("SIGUSR1", grace_s=120)
    world.commit(job("quick", grace_s=5), job("saves", checkpoint=saves))
    world.settle()
    assert {name: (one.grace_s, one.leaves_by) for name, one in _holdings(world).items()} == {
        "quick": (5.0, 0.0),
        "saves": (120.0, 0.0),
    }
    world.commit(job("urgent", priority=90, cpu=2))
    world.hear()
    world.cycle()
    told_at = world.now
    world.now += 3.0
    found = _holdings(world)
    assert {name: one.leaving for name, one in found.items()} == {"quick": True, "saves": True}
    assert (found["quick"].leaves_by, found["saves"].leaves_by) == (told_at + 5, told_at + 120)


def test_what_can_give_nothing_up_while_it_runs_is_told() -> None:
    """A framework that counts its ranks once can't give up tasks beyond its minimum."""
    world = World(nodes=1, cpu=8)
    for name, framework, most in (
        ("ranks", "torchrun", 3),
        ("least", "torchrun", 2),
        ("loose", "none", 3),
    ):
        group = desired.TaskGroup("main", most, Resources(1000, 0, 0), command=("true",), minimum=2)
        world.commit(job(name, groups=(group,), framework=framework))
        world.settle()
    found = _holdings(world)
    assert {name: (one.fixed, one.shape >= 0) for name, one in found.items()} == {
        "ranks": (True, True),
        "least": (False, False),
        "loose": (False, False),
    }


def _compare_queues(world: World, made: snapshots.Snapshot) -> None:
    below = {"default": {"default"}, "team": {"team", "inner"}, "inner": {"inner"}}
    for row, name in enumerate(made.queues.names):
        total = np.zeros(3, dtype=np.int64)
        for attempt in world.memory.attempts.values():
            of = world.memory.jobs[attempt.job].spec.queue
            if of in below[name] and attempt.state is not AttemptState.ENDED:
                total += attempt.resources.as_vector()
        assert made.queues.allocated[row].tolist() == total.tolist()
        assert (made.queues.firm[row] <= made.queues.allocated[row]).all()


def test_a_thousand_alike_jobs_are_one_line_of_one_shape() -> None:
    world = World(nodes=2, cpu=1)
    world.commit(*(job(f"j{number:04}", cpu=2) for number in range(1000)))
    world.cycle()
    wanted = desired.Desired(world.generation, world.structure, dict(world.jobs))
    made = snapshot_builder.build(
        cycle_context.CycleContext(wanted, world.memory.observed((), {}), world.now),
        wanted,
        world.now,
    )
    assert len(made.snapshot.lines) == len(made.snapshot.shapes) == 1
    assert len(made.snapshot.lines[0].claims) == 1000


#: What could be asked for instead, field by field of a group.
OTHERWISE: dict[str, Any] = {
    "name": "other",
    "count": 6,
    "resources": Resources(2500, GI, 1000),
    "minimum": 2,
    "devices": 2,
    "gpu_memory_bytes": 3 * GI,
    "mig_profile": "1g.10gb",
    "topology": desired.TopologyConstraint(slice_size=2, slice_level="rack"),
    "inner_required": "numa",
    "inner_preferred": "numa",
    "tasks_per_node": 2,
}
#: What a task executes: where it fits does not depend on it.
EXECUTED = {"command", "script", "environment", "arguments"}


@pytest.mark.parametrize("field", OTHERWISE)
def test_jobs_that_ask_for_something_else_have_a_shape_of_their_own(field: str) -> None:
    """Also where they wait, or have waited, beside those that ask for the same but for that."""
    group = desired.TaskGroup("main", 4, Resources(2000, GI, 1000), ("true",))
    other = msgspec.structs.replace(group, **{field: OTHERWISE[field]})
    world = World(nodes=2, cpu=1)
    world.commit(job("a", groups=(group,)), job("b", groups=(other,)), job("c", groups=(group,)))
    world.cycle()
    wanted = desired.Desired(world.generation, world.structure, dict(world.jobs))
    context = cycle_context.CycleContext(wanted, world.memory.observed((), {}), world.now)
    made = snapshot_builder.build(context, wanted, world.now).snapshot
    shape_of = {claim.job: line.shape for line in made.lines for claim in line.claims}
    assert shape_of["a"] == shape_of["c"] != shape_of["b"]


def test_all_that_a_group_asks_for_is_looked_at() -> None:
    assert {*OTHERWISE, *EXECUTED} == set(desired.TaskGroup.__struct_fields__)
