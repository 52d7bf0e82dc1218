"""A schedule is reused until something it depends on changes."""

from collections.abc import Callable

import msgspec
import pytest

from reconciler.core import schedule_reuse
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.values.resources import Resources
from tests.unit.core.world import World, job


def _at_rest() -> World:
    """Return a node with one task, and a job that waits for capacity."""
    world = World(nodes=1, cpu=1)
    world.commit(job("a"), job("b"))
    world.settle(20)
    world.cycle()
    assert world.outcomes[-1].schedule_inputs is not None
    return world


def _report(world: World, **changes: object) -> None:
    report = world.nodes["n0"].report(world.now)
    world.memory.add_report(msgspec.structs.replace(report, **changes))


def _usage(world: World) -> None:
    _report(world, usage=records.NodeUsage(at=world.now, load_1m=3.0))


def _drain(world: World) -> None:
    drained = msgspec.structs.replace(world.pool, drains={"n0": desired.NodeDrain("fan")})
    world.change_structure(pools={"pool": drained})


def _label(world: World) -> None:
    labels = {"room": "b2"}
    _report(
        world,
        inventory=records.Inventory(capacity=Resources(1000, 64 * 2**30, 0), labels=labels),
    )


def _end(world: World) -> None:
    (attempt,) = world.attempts("a")
    world.nodes["n0"].end(attempt.id, world.now, exit_code=0)
    world.hear()


def _nothing(world: World) -> None:
    assert world.memory.nodes


def _silence(world: World) -> None:
    world.now += 91


def _clock_back(world: World) -> None:
    world.now -= 5


def _sample(world: World) -> None:
    world.now += schedule_reuse.SAMPLE_S
    world.hear()


@pytest.mark.parametrize(
    ("happen", "stands"),
    [
        (_nothing, True),
        (_usage, True),
        (World.hear, True),
        (_label, False),
        (_drain, False),
        (_end, False),
        (_silence, False),
        (_sample, False),
        (_clock_back, False),
        (lambda world: world.commit(job("c")), False),
        (lambda world: world.commit(job("b", priority=90)), False),
        (lambda world: world.commit(remove=("b",)), False),
    ],
)
def test_what_makes_another_schedule_due(happen: Callable[[World], None], *, stands: bool) -> None:
    world = _at_rest()
    happen(world)
    result = world.cycle()
    assert (result.queues is None) is stands


def test_a_wait_that_ends_is_not_slept_through() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a", retries=desired.Retries(limit=1, backoff_s=30)))
    world.settle()
    world.end("a", exit_code=1)
    world.settle(20)
    ends_at = world.memory.jobs["a"].notes[0].not_before
    for _ in range(5):
        world.now += 5
        _usage(world)
        result = world.cycle()
        assert result.wake_at == ends_at, "also where the schedule stands"
    assert result.queues is None
    world.now = ends_at
    world.cycle()
    assert world.attempts("a")


def test_nothing_is_made_anew_where_nothing_waits() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a"))
    world.settle(20)
    for _ in range(5):
        world.now += schedule_reuse.SAMPLE_S
        world.hear()
        assert world.cycle().queues is None
