"""A lease is the one that the node was given when the task started, whatever git says since."""

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.protocol import agent_messages
from tests.unit.core.world import World, job


@pytest.mark.parametrize(
    ("before", "since"),
    [
        ({"lease_s": 900}, {"lease_s": 10}),
        ({"lease_s": None}, {"lease_s": 10}),
        ({"lease_s": 900, "grace_s": 0}, {"lease_s": 10, "grace_s": 0}),
        ({"lease_s": 10, "grace_s": 900}, {"lease_s": 10, "grace_s": 0}),
    ],
)
def test_a_shorter_lease_does_not_bind_what_runs(
    before: dict[str, int | None], since: dict[str, int | None]
) -> None:
    world = World(nodes=2, cpu=1)
    world.commit(job("a", **before))
    world.settle()
    (first,) = world.attempts("a")
    world.nodes[first.node].silent = True
    world.commit(job("a", **since))
    world.advance(899)
    assert [a.id for a in world.attempts("a")] == [first.id], "its node may well run it still"


def test_a_node_is_told_the_lease_by_which_its_work_is_given_up() -> None:
    world = World(nodes=2, cpu=1)
    world.commit(job("a", lease_s=10, grace_s=5))
    world.cycle()
    (first,) = world.attempts("a")
    world.nodes[first.node].silent = True
    world.commit(job("a", lease_s=900, grace_s=100))
    world.cycle()
    update = world.engine.update(first.node, world.structure, world.memory)
    assert update.payload is not None
    told = msgspec.msgpack.decode(update.payload, type=agent_messages.AssignmentSet)
    (assignment,) = told.assignments
    template = told.templates[assignment.template]
    assert (template.lease_s, template.grace_s) == (10, 5)
    world.advance(91)
    assert [a.node == first.node for a in world.attempts("a")] == [False]


def test_a_long_grace_that_was_ordered_is_waited_for() -> None:
    world = World(nodes=2, cpu=1)
    checkpoint = desired.Checkpoint(grace_s=1)
    world.commit(job("a", lease_s=10, grace_s=500, checkpoint=checkpoint))
    world.settle()
    (first,) = world.attempts("a")
    world.nodes[first.node].silent = True
    world.commit(remove=("a",))
    world.cycle()
    world.advance(400)
    assert [a.id for a in world.attempts("a")] == [first.id]
    world.advance(113)
    assert not world.memory.attempts
