"""Holds that meet what already runs, waits, or has failed."""

import msgspec

from reconciler.model import outcome
from reconciler.model.states import AttemptState, EndReason, JobState
from tests.unit.core.world import World, job


def test_a_held_array_with_a_failed_element_can_be_removed() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a", array_count=2))
    world.settle()
    world.end("a", element=0, exit_code=1)
    world.commit(job("a", array_count=2, suspend=True))
    world.settle()
    assert world.state("a") is JobState.HELD
    world.commit(remove=("a",))
    world.settle()
    assert world.state("a") is JobState.FAILED


def test_nothing_of_a_held_array_starts_while_the_rest_still_leaves() -> None:
    world = World(nodes=1, cpu=4)
    spec = job("a", array_count=6, parallelism=2)
    world.commit(spec)
    world.settle()
    world.nodes["n0"].silent = True
    world.commit(msgspec.structs.replace(spec, suspend=True))
    for _ in range(3):
        result = world.cycle()
        assert not [a for a in result.actions if isinstance(a, outcome.StartAttempt)]
    assert {attempt.state for attempt in world.attempts("a")} == {AttemptState.STOPPING}
    assert world.state("a") is JobState.RUNNING
    assert world.reason("a") == "Held"
    world.nodes["n0"].silent = False
    for attempt in world.attempts("a"):
        world.nodes["n0"].end(attempt.id, world.now, signal=15, reason=EndReason.SUSPENDED)
    world.settle()
    assert world.state("a") is JobState.HELD
    assert not world.memory.attempts


def test_time_wakes_no_cycle_for_a_deadline_that_has_passed() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a", cpu=9, deadline=world.now + 10))
    world.settle()
    assert world.state("a") is JobState.PENDING
    world.now += 10
    result = world.cycle()
    assert world.state("a") is JobState.TIMED_OUT
    assert result.wake_at is None or result.wake_at > world.now
