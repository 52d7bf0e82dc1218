"""Gangs in containers: no task starts before all images are there."""

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.protocol import agent_messages
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason, JobState
from tests.unit.core import world


class Node(world.VirtualNode):
    """A node that fetches images of held tasks, and starts a task once it is released."""

    def __init__(self, base: world.VirtualNode) -> None:
        super().__init__(base.name, base.pool)
        self.held: set[str] = set()

    def take(self, payload: bytes, acknowledged: tuple[str, ...], now: float) -> None:
        wanted = msgspec.msgpack.decode(payload, type=agent_messages.AssignmentSet)
        self.held = {one.attempt for one in wanted.assignments if one.hold}
        before = dict(self.attempts)
        super().take(payload, acknowledged, now)
        for name in self.held & self.attempts.keys():
            if self.attempts[name].state is AttemptState.RUNNING:
                known = before.get(name)
                waits = records.AttemptReport(name, AttemptState.FETCHING)
                self.attempts[name] = known or waits
        for name in self.attempts.keys() - self.held:
            if self.attempts[name].state is AttemptState.READY:
                self.attempts[name] = records.AttemptReport(
                    name, AttemptState.RUNNING, started_at=now
                )

    def fetched(self) -> None:
        for name, told in list(self.attempts.items()):
            if told.state is AttemptState.FETCHING:
                self.attempts[name] = records.AttemptReport(name, AttemptState.READY)


@pytest.fixture
def cluster() -> world.World:
    made = world.World(nodes=2, cpu=2)
    made.nodes = {name: Node(base) for name, base in made.nodes.items()}
    return made


def node(cluster: world.World, name: str) -> Node:
    found = cluster.nodes[name]
    assert isinstance(found, Node)
    return found


def gang(**changes: object) -> desired.Job:
    return world.job("g", count=2, cpu=2, runtime="podman", image="i", **changes)


def states(cluster: world.World) -> list[str]:
    return sorted(one.state.value for one in cluster.attempts("g"))


def test_a_gang_goes_when_the_last_image_is_there(cluster: world.World) -> None:
    cluster.commit(gang())
    cluster.settle()
    assert states(cluster) == ["Fetching", "Fetching"]
    node(cluster, "n0").fetched()
    cluster.settle()
    assert states(cluster) == ["Fetching", "Ready"]
    assert cluster.state("g") is JobState.STARTING
    node(cluster, "n1").fetched()
    cluster.settle()
    assert states(cluster) == ["Running", "Running"]
    assert cluster.state("g") is JobState.RUNNING


def test_a_task_that_waits_goes_with_one_that_was_never_ready(cluster: world.World) -> None:
    """A task may be told of as starting, or running, without having been told of as ready."""
    cluster.commit(gang())
    cluster.settle()
    node(cluster, "n0").fetched()
    cluster.settle()
    assert states(cluster) == ["Fetching", "Ready"]
    (late,) = node(cluster, "n1").attempts
    node(cluster, "n1").attempts[late] = records.AttemptReport(late, AttemptState.STARTING)
    cluster.settle()
    assert "Ready" not in states(cluster)


def test_one_that_gets_no_image_brings_its_gang_down(cluster: world.World) -> None:
    cluster.commit(gang())
    cluster.settle()
    node(cluster, "n0").fetched()
    cluster.settle()
    (late,) = node(cluster, "n1").attempts
    node(cluster, "n1").end(late, cluster.now, reason=EndReason.START_FAILED)
    cluster.settle()
    assert cluster.state("g") is JobState.FAILED
    assert all(one.started_at is None for one in cluster.attempts("g"))


def test_neither_plain_processes_nor_single_tasks_wait(cluster: world.World) -> None:
    cluster.commit(world.job("a", count=2), world.job("b", runtime="podman", image="i"))
    cluster.settle()
    assert cluster.states() == {"a": "Running", "b": "Running"}


def test_another_leader_goes_on(cluster: world.World) -> None:
    """What is held follows from the records alone, so a new engine knows it."""
    cluster.commit(gang())
    cluster.settle()
    node(cluster, "n0").fetched()
    node(cluster, "n1").fetched()
    cluster.hear()
    cluster.cycle()
    fresh = type(cluster.engine)(epoch=2)
    for name in ("n0", "n1"):
        update = fresh.update(name, cluster.structure, cluster.memory)
        assert update.payload is not None
        told = msgspec.msgpack.decode(update.payload, type=agent_messages.AssignmentSet)
        assert [one.hold for one in told.assignments] == [False]
