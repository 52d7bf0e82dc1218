"""Holds of jobs that already run, wait, or have failed."""

import msgspec

from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState, EndReason, JobState
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


def _held_and_released(spec: desired.Job) -> World:
    """Return an array of two, the first of whose elements left long before the second."""
    world = World(nodes=2, cpu=1)
    world.commit(spec)
    world.settle()
    slow = next(one.node for one in world.attempts(spec.name) if one.element == 1)
    world.nodes[slow].silent = True
    world.commit(msgspec.structs.replace(spec, suspend=True))
    world.settle()
    assert {one.element for one in world.attempts(spec.name)} == {1}
    world.nodes[slow].silent = False
    (left,) = world.attempts(spec.name)
    world.nodes[slow].end(left.id, world.now, signal=15, reason=EndReason.SUSPENDED)
    world.settle()
    assert world.state(spec.name) is JobState.HELD
    world.commit(spec)
    world.settle()
    assert world.state(spec.name) is JobState.RUNNING
    assert len(world.attempts(spec.name)) == 2
    return world


def test_the_next_try_of_what_left_by_a_hold_is_judged_like_any_other() -> None:
    """The hold was given to the element again after it had left, and stayed its verdict."""
    world = _held_and_released(job("a", array_count=2, time_limit_s=600))
    world.advance(601)
    world.settle()
    assert world.state("a") is JobState.TIMED_OUT
    world = _held_and_released(job("b", array_count=2))
    for element in (0, 1):
        world.end("b", element=element, exit_code=3)
    world.settle()
    assert world.state("b") is JobState.FAILED


def test_a_verdict_that_an_older_version_left_behind_is_forgotten_with_the_next_try() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a", time_limit_s=600, suspend=True))
    world.settle()
    stale = {0: records.ElementNote(verdict=EndReason.SUSPENDED)}
    world.memory.jobs["a"] = msgspec.structs.replace(world.memory.jobs["a"], notes=stale)
    world.commit(job("a", time_limit_s=600))
    world.settle()
    world.advance(601)
    world.settle()
    assert world.state("a") is JobState.TIMED_OUT


def test_time_wakes_no_cycle_for_a_deadline_that_has_passed() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a", cpu=9, deadline=world.now + 10))
    world.settle()
    assert world.state("a") is JobState.PENDING
    world.now += 10
    result = world.cycle()
    assert world.state("a") is JobState.TIMED_OUT
    assert result.wake_at is None or result.wake_at > world.now
