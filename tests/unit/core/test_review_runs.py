"""Runs that replace each other, go back, and end while git names another one."""

import msgspec

from reconciler.model.state.states import JobState
from tests.unit.core.world import World, job


def test_a_run_that_times_out_is_not_begun_again_when_git_went_back_to_an_earlier_one() -> None:
    world = World(nodes=1, cpu=1)
    first = job("a")
    world.commit(first)
    world.settle()
    world.end("a")
    world.commit(job("other"))
    world.settle()
    world.commit(msgspec.structs.replace(first, run=2, deadline=world.now + 10))
    world.settle()
    assert world.state("a") is JobState.PENDING
    world.commit(first)
    world.settle()
    assert world.state("a") is JobState.PENDING
    world.now += 10
    world.end("other")
    world.settle()
    assert world.memory.jobs["a"].spec.run == 2
    assert world.state("a") is JobState.TIMED_OUT
    assert world.events("JobTimedOut") == ["a"]
    assert not world.memory.attempts


def test_the_last_of_several_runs_asked_for_begins_when_the_one_that_lives_has_left() -> None:
    world = World(nodes=1, cpu=1)
    first = job("a")
    world.commit(first)
    world.settle()
    world.nodes["n0"].silent = True
    for run in (2, 3):
        world.commit(msgspec.structs.replace(first, run=run))
        world.cycle()
    assert world.memory.jobs["a"].spec.run == 1
    world.nodes["n0"].silent = False
    (attempt,) = world.attempts("a")
    world.nodes["n0"].end(attempt.id, world.now, signal=15)
    world.settle()
    assert world.memory.jobs["a"].spec.run == 3
    assert world.state("a") is JobState.RUNNING


def test_a_run_that_begins_as_another_ends_keeps_to_its_deadline() -> None:
    world = World(nodes=1, cpu=1)
    first = job("a")
    world.commit(first)
    world.settle()
    deadline = world.now + 30
    world.commit(msgspec.structs.replace(first, run=2, deadline=deadline))
    world.settle()
    assert world.memory.jobs["a"].spec.run == 2
    assert world.outcomes[-1].wake_at == deadline
    world.commit(msgspec.structs.replace(first, run=3, deadline=world.now - 1))
    world.settle()
    assert (world.memory.jobs["a"].spec.run, world.state("a")) == (3, JobState.TIMED_OUT)
    assert "a.3" not in {a.id[:3] for r in world.outcomes for a in r.attempts}


def test_a_document_that_describes_an_earlier_run_again_is_told_and_starts_nothing() -> None:
    world = World(nodes=1, cpu=1)
    first = job("a")
    second = msgspec.structs.replace(first, hash="0" * 16)
    for spec in (first, second):
        world.commit(spec)
        world.settle()
        world.end("a")
        world.settle()
    assert world.memory.jobs["a"].key == second.key
    world.commit(first)
    world.settle()
    assert (world.memory.jobs["a"].key, world.memory.jobs["a"].described) == (second.key, first.key)
    assert world.events("JobChangeIgnored") == ["a"]
    assert not world.attempts("a")
    world.commit(second)
    world.settle()
    assert world.memory.jobs["a"].described == ""


def test_a_document_that_went_back_while_its_run_was_alive_is_told_at_its_end() -> None:
    world = World(nodes=1, cpu=1)
    first = job("a")
    world.commit(first)
    world.settle()
    world.end("a")
    world.settle()
    world.commit(msgspec.structs.replace(first, run=2))
    world.settle()
    world.commit(first)
    world.settle()
    assert world.memory.jobs["a"].described == ""
    world.end("a")
    world.settle()
    assert world.memory.jobs["a"].described == first.key
