"""Elements of an array that a document leaves out, cancels, holds and runs again."""

from typing import Any

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.state.states import JobState
from tests.unit.core.world import World, job


def change(world: World, **changes: Any) -> None:
    """Commit the document of ``a`` with other fields."""
    world.commit(msgspec.structs.replace(world.memory.jobs["a"].spec, **changes))
    world.settle()


def _told(world: World, kind: str) -> list[str]:
    return [one.message for each in world.outcomes for one in each.events if one.kind == kind]


def running(world: World) -> set[int]:
    return {attempt.element for attempt in world.attempts("a")}


def counts(world: World) -> dict[JobState, int]:
    return world.memory.jobs["a"].element_state_counts()


def test_an_array_has_the_indexes_of_its_document() -> None:
    world = World(nodes=4, cpu=8)
    world.commit(job("a", array_count=10, array_indexes="1,3,5-9:2", parallelism=2))
    world.settle()
    assert running(world) == {1, 3}
    assert counts(world) == {JobState.RUNNING: 2, JobState.PENDING: 3}
    for element in (1, 3, 5, 7):
        world.end("a", element=element)
    assert running(world) == {9}
    assert world.memory.jobs["a"].elements_by_state() == {
        JobState.RUNNING: "9",
        JobState.SUCCEEDED: "1-7:2",
    }
    world.end("a", element=9)
    assert world.state("a") is JobState.SUCCEEDED
    assert counts(world) == {JobState.SUCCEEDED: 5}


def test_cancelled_elements_end_and_the_others_go_on() -> None:
    world = World(nodes=4, cpu=8)
    world.commit(job("a", array_count=4, parallelism=2))
    world.settle()
    assert running(world) == {0, 1}
    change(world, array_cancelled="1,3")
    assert running(world) == {0, 2}
    assert counts(world) == {JobState.RUNNING: 2, JobState.CANCELLED: 2}
    world.end("a", element=0)
    world.end("a", element=2)
    assert world.state("a") is JobState.CANCELLED
    assert counts(world) == {JobState.SUCCEEDED: 2, JobState.CANCELLED: 2}


def test_a_failed_element_that_is_cancelled_stays_failed() -> None:
    world = World(nodes=4, cpu=8)
    world.commit(job("a", array_count=2))
    world.settle()
    world.end("a", element=1, exit_code=1)
    change(world, array_cancelled="0,1")
    assert counts(world) == {JobState.FAILED: 1, JobState.CANCELLED: 1}
    assert world.state("a") is JobState.FAILED


@pytest.mark.parametrize("count", [1, 3])
def test_held_elements_stop_and_do_not_start_until_they_are_released(count: int) -> None:
    world = World(nodes=4, cpu=8)
    world.commit(job("a", array_count=count))
    world.settle()
    assert running(world) == set(range(count))
    change(world, array_held="0")
    assert running(world) == set(range(1, count))
    for element in range(1, count):
        world.end("a", element=element)
    assert world.state("a") is JobState.PENDING
    assert world.reason("a") == "Held"
    (told,) = world.memory.reasons["Held/elements/a"]
    assert told.unblocks == "run `muster release 'a[0]'`"
    change(world, array_held="")
    assert running(world) == {0}
    assert world.reason("a") == ""
    world.end("a", element=0)
    assert world.state("a") is JobState.SUCCEEDED


def test_an_element_held_before_the_run_begins_never_starts_by_itself() -> None:
    world = World(nodes=4, cpu=8)
    world.commit(job("a", array_count=3, array_held="1", array_cancelled="2"))
    world.settle()
    assert running(world) == {0}
    assert counts(world) == {
        JobState.RUNNING: 1,
        JobState.PENDING: 1,
        JobState.CANCELLED: 1,
    }


def test_elements_run_again_without_the_others() -> None:
    world = World(nodes=4, cpu=8)
    world.commit(job("a", array_count=4))
    world.settle()
    for element in range(4):
        world.end("a", element=element, exit_code=element % 2)
    assert world.state("a") is JobState.FAILED
    assert world.memory.jobs["a"].elements_by_state()[JobState.FAILED] == "1,3"
    change(world, run=2, array_only="1,3")
    assert running(world) == {1, 3}
    assert counts(world) == {JobState.RUNNING: 2}
    world.end("a", element=1)
    world.end("a", element=3)
    assert world.state("a") is JobState.SUCCEEDED


def test_cancelled_elements_say_who_cancelled_them_unless_they_had_ended() -> None:
    world = World(nodes=1, cpu=3)
    world.commit(job("a", array_count=5))
    world.settle()
    world.end("a", element=0)
    by_ada = desired.Removal("ada@example.org", "1a2b3c4d" * 5, 60.0, True, "wrong data")
    world.removals = {"a[0,2]": by_ada}
    change(world, array_cancelled="0,2,4")
    told = [
        "element 4 cancelled by its document",
        "element 2 cancelled by ada@example.org at 1970-01-01T00:01:00.000Z in 1a2b3c4: wrong data",
    ]
    assert _told(world, "ElementsCancelled") == told
    assert world.memory.jobs["a"].message == told[-1]
    world.settle()
    assert _told(world, "ElementsCancelled") == told, "told once"


def test_held_and_released_elements_are_told() -> None:
    world = World(nodes=1, cpu=3)
    world.commit(job("a", array_count=5))
    world.settle()
    change(world, array_held="1,2,4")
    change(world, array_held="4")
    assert _told(world, "JobHoldAsked") == ["elements 1,2,4 held by its document"]
    assert _told(world, "JobReleased") == ["its document no longer holds elements 1,2"]
