"""The clock is set: nodes neither count as ready while silent, nor are given up early."""

import msgspec
import pytest

from reconciler.core import observed_state
from reconciler.model.state import records
from reconciler.model.state.states import NodeState
from tests.unit.core.world import World, job


def set_clock(world: World, by_s: float, *, restarted: bool) -> None:
    """Set the clock. The loop notices while it runs, or at its start."""
    world.now += by_s
    if restarted:
        loaded = world.memory.observed((), {})
        generation = world.memory.desired_generation
        world.memory = observed_state.ObservedState(loaded, leader_since=world.now)
        world.memory.desired_generation = generation
    else:
        world.memory.leader_since = world.now


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("by_s", [-86_400.0, -7200.0, -90.0, 90.0, 7200.0, 86_400.0])
def test_a_node_that_dies_after_a_step_is_given_up_in_time(by_s: float, restarted: bool) -> None:
    world = World(nodes=2, cpu=1)
    world.commit(job("a", lease_s=60, grace_s=10))
    world.settle()
    node = world.attempts("a")[0].node
    set_clock(world, by_s, restarted=restarted)
    world.settle()
    assert world.memory.nodes[node].state is NodeState.READY
    for _ in range(6):
        world.advance(5)
    assert world.attempts("a")[0].node == node
    world.nodes[node].silent = True
    silence_s = world.structure.settings.node_silence_s
    world.advance(silence_s - 1)
    assert world.memory.nodes[node].state is NodeState.READY
    world.advance(2)
    assert world.memory.nodes[node].state is NodeState.UNKNOWN
    world.advance(max(1, 72 - silence_s - 2))  # lease, grace and margin, less a second
    world.advance(5)
    assert world.attempts("a")[-1].node != node


def test_a_node_that_is_silent_at_a_step_is_given_up_no_earlier() -> None:
    world = World(nodes=2, cpu=1)
    world.commit(job("a", lease_s=60, grace_s=10))
    world.settle()
    node = world.attempts("a")[0].node
    world.nodes[node].silent = True
    world.advance(10)
    for by_s in (7200.0, -7200.0, -7200.0, 7200.0):
        set_clock(world, by_s, restarted=False)
        world.advance(20)
        assert [one.node for one in world.attempts("a")] == [node]


def test_what_was_received_before_the_step_counts_as_received_by_now() -> None:
    world = World(nodes=1)
    report = world.nodes["n0"].report(world.now + 3600)
    world.memory.add_report(msgspec.structs.replace(report, received_at=world.now + 3600))
    world.memory.answered["n0"] = world.now + 3600
    world.settle()
    node: records.NodeRecord = world.memory.nodes["n0"]
    assert (node.last_report_at, node.last_answer_at) == (world.now, world.now)
