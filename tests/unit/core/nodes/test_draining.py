"""Nodes that leave service: which of their work is waited for, and how long."""

import msgspec
import pytest

from reconciler.core.safety import impact
from reconciler.model import desired
from reconciler.model.observed import health_checks
from reconciler.model.state import records
from reconciler.model.state.states import EndReason, JobState, NodeState
from tests.unit.core.world import World, job

SAVES = desired.Checkpoint(grace_s=5, path="x")


def world_of(leaving: desired.Leaving | None, saves: desired.Checkpoint | None) -> World:
    """Return two nodes of one CPU with a job on one of them."""
    world = World(nodes=2, cpu=1)
    (pool,) = world.structure.pools.values()
    world.change_structure(pools={pool.name: msgspec.structs.replace(pool, leaving=leaving)})
    world.commit(job("a", checkpoint=saves))
    world.settle()
    assert world.state("a") is JobState.RUNNING
    return world


def remove_node(world: World, node: str) -> None:
    """Remove a node from git. Its agent goes on."""
    (pool,) = world.structure.pools.values()
    left = tuple(one for one in pool.nodes if one != node)
    world.change_structure(pools={pool.name: msgspec.structs.replace(pool, nodes=left)})
    world.settle()


@pytest.mark.parametrize("whole_pool", [False, True])
def test_work_is_waited_for_as_long_as_the_pool_said(*, whole_pool: bool) -> None:
    world = world_of(desired.Leaving(grace_s=100), None)
    (first,) = world.attempts("a")
    if whole_pool:
        world.change_structure(pools={})
        world.settle()
    else:
        remove_node(world, first.node)
    assert world.memory.nodes[first.node].state is NodeState.DRAINING
    wake_at = world.outcomes[-1].wake_at
    assert wake_at is not None
    assert wake_at <= world.now + 100
    world.advance(90)
    assert [one.id for one in world.attempts("a")] == [first.id]
    assert first.stop is None
    world.advance(20)
    told = [one for result in world.outcomes for one in result.events if one.kind == "JobDrained"]
    assert [one.node for one in told] == [first.node]
    if whole_pool:
        assert world.state("a") is JobState.PENDING
        return
    (again,) = world.attempts("a")
    assert again.node != first.node, "it starts elsewhere"
    assert world.memory.jobs["a"].notes[0].retries_spent == 0
    assert world.memory.nodes[first.node].state is NodeState.DRAINED


@pytest.mark.parametrize(
    ("leaving", "saves", "stays"),
    [
        (None, None, True),
        (None, SAVES, True),
        (desired.Leaving("unsaved"), None, True),
        (desired.Leaving("unsaved"), SAVES, False),
        (desired.Leaving("nothing"), None, False),
    ],
)
def test_what_is_waited_for(
    leaving: desired.Leaving | None, saves: desired.Checkpoint | None, *, stays: bool
) -> None:
    world = world_of(leaving, saves)
    (first,) = world.attempts("a")
    remove_node(world, first.node)
    world.advance(10_000)
    assert (world.attempts("a")[0].id == first.id) is stays
    if not stays:
        ended = [a for result in world.outcomes for a in result.attempts if a.id == first.id]
        assert ended[-1].end_reason is EndReason.DRAINED


def test_a_person_s_drain_goes_by_the_policy_too() -> None:
    world = world_of(desired.Leaving(grace_s=100), None)
    (first,) = world.attempts("a")
    (pool,) = world.structure.pools.values()
    drained = msgspec.structs.replace(pool, drains={first.node: desired.NodeDrain("fan")})
    world.change_structure(pools={pool.name: drained})
    world.settle()
    world.advance(50)
    # It is put into service again: the next drain starts its time anew.
    world.change_structure(pools={pool.name: pool})
    world.settle()
    assert world.memory.nodes[first.node].drain_since == 0.0
    world.change_structure(pools={pool.name: drained})
    world.settle()
    world.advance(90)
    assert world.attempts("a")[0].id == first.id
    world.advance(20)
    assert world.attempts("a")[0].node != first.node


def fail_its_check(world: World, node: str, *, fails: bool) -> None:
    """Let the node report a failed check from now on."""
    said = (health_checks.CheckResult("clock", "failed", "off by 3 s"),) if fails else ()
    world.nodes[node].checks = said


def drain_checked(world: World, node: str) -> None:
    """Drain a node of a pool with checks."""
    (pool,) = world.structure.pools.values()
    drained = msgspec.structs.replace(
        pool,
        checks=health_checks.CheckPlan(gpus=0),
        drains={node: desired.NodeDrain("replace its board")},
    )
    world.change_structure(pools={pool.name: drained})
    world.settle()


def test_a_node_that_is_not_well_is_left_all_the_same() -> None:
    world = world_of(desired.Leaving("nothing"), None)
    (first,) = world.attempts("a")
    fail_its_check(world, first.node, fails=True)
    drain_checked(world, first.node)
    world.advance(60)
    world.settle()
    assert world.memory.nodes[first.node].state is NodeState.UNHEALTHY
    assert world.memory.nodes[first.node].drain_since > 0
    assert world.attempts("a")[0].node != first.node
    (told,) = [e for result in world.outcomes for e in result.events if e.kind == "JobDrained"]
    assert "replace its board" in told.message


@pytest.mark.parametrize("how", ["a check flaps", "silence"])
def test_a_drain_s_time_is_not_started_anew(how: str) -> None:
    world = world_of(desired.Leaving(grace_s=2000), None)
    (first,) = world.attempts("a")
    drain_checked(world, first.node)
    since = world.memory.nodes[first.node].drain_since
    assert since > 0
    states = set()
    for turn in range(6):
        if how == "silence":
            world.nodes[first.node].silent = not turn % 2
        else:
            fail_its_check(world, first.node, fails=not turn % 2)
        world.advance(100)
        states.add(world.memory.nodes[first.node].state)
        assert world.memory.nodes[first.node].drain_since == since
    assert states == {
        NodeState.DRAINING,
        NodeState.UNKNOWN if how == "silence" else NodeState.UNHEALTHY,
    }
    assert world.attempts("a")[0].id == first.id
    world.advance(since + 2010 - world.now)
    assert world.attempts("a")[0].node != first.node


def test_a_plan_tells_when_it_has_to_leave() -> None:
    world = world_of(desired.Leaving(grace_s=100), None)
    observed: records.Observed = world.memory.observed((), {})
    before = desired.Desired(structure=world.structure, jobs={})
    record = world.memory.jobs["a"]
    before = msgspec.structs.replace(before, jobs={"a": record.spec})
    after = msgspec.structs.replace(
        before, structure=msgspec.structs.replace(before.structure, pools={})
    )
    (found,) = impact.measure_impact(before, after, observed, world.now).jobs
    assert (found.how, found.leaves_in_s, found.ends) == ("drained", 100.0, True)
