"""Jobs that wait for what can't come any more end, where their queue says so."""

from typing import Any

import pytest

from reconciler.core.jobs import readiness
from reconciler.model import desired
from reconciler.model.state.states import JobState
from tests.unit.core.world import World, job

CANCELS = desired.Queue("default", cancels_never_met=True)
CHILD = desired.Queue("child", parent="default")


def after(name: str, condition: Any = "afterOk") -> dict[str, Any]:
    return {"depends_on": (desired.Dependency(job=name, condition=condition),)}


@pytest.mark.parametrize(
    ("queue", "more", "exit_code", "state"),
    [
        ("default", {}, 1, JobState.CANCELLED),
        ("default", {}, 0, JobState.RUNNING),
        ("default", {"array_count": 3}, 1, JobState.CANCELLED),
        # who holds a job decides about it later
        ("default", {"suspend": True}, 1, JobState.HELD),
        ("child", {}, 1, JobState.PENDING),
    ],
)
def test_a_queue_ends_what_waits_in_vain(
    queue: str, more: dict[str, Any], exit_code: int, state: JobState
) -> None:
    world = World(queues=(CANCELS, CHILD))
    world.commit(job("first"), job("second", queue=queue, **after("first"), **more))
    world.settle()
    world.end("first", exit_code=exit_code)
    assert world.state("second") is state
    # nothing is asked again and again
    wakes = world.outcomes[-1].wake_at
    assert wakes is None or wakes > world.now + 1


def test_who_looks_at_an_ended_job_reads_by_whom_and_why() -> None:
    world = World(queues=(CANCELS,))
    world.commit(job("first"), job("second", **after("first")))
    world.settle()
    world.end("first", exit_code=1)
    record = world.memory.jobs["second"]
    assert record.message == (
        "ended by queue default (onNeverMet: cancel): afterOk first, which is Failed, so it could "
        "never start"
    )
    assert record.ended_at == world.now
    assert not record.reason_key
    (told,) = [e for one in world.outcomes for e in one.events if e.kind == "JobCancelled"]
    assert (told.job, told.message) == ("second", record.message)


def test_a_chain_ends_one_after_the_other() -> None:
    world = World(queues=(CANCELS,))
    world.commit(
        job("a"),
        job("b", **after("a")),
        job("c", **after("b")),
        job("cleanup", **after("c", "afterAny")),
    )
    world.settle()
    world.end("a", exit_code=1)
    world.settle(20)
    assert world.states() == {
        "a": "Failed",
        "b": "Cancelled",
        "c": "Cancelled",
        "cleanup": "Running",
    }


def test_the_cycle_that_finds_it_asks_for_the_one_that_ends_it() -> None:
    world = World(queues=(CANCELS,))
    world.commit(job("first"), job("second", **after("first")))
    world.settle()
    attempt = world.attempts("first")[0]
    world.nodes[attempt.node].end(attempt.id, world.now, exit_code=1)
    world.hear()
    wake_at = world.cycle().wake_at  # by itself: nobody may report for a long time
    assert wake_at == world.now + readiness.END_AFTER_S
    assert world.state("second") is JobState.PENDING
    world.now = wake_at
    world.cycle()
    assert world.state("second") is JobState.CANCELLED


def test_a_queue_that_is_changed_ends_what_waits_already() -> None:
    world = World()
    world.commit(job("first"), job("second", **after("first")))
    world.settle()
    world.end("first", exit_code=1)
    assert world.reason("second") == "DependencyNeverMet"
    world.change_structure(queues={"default": CANCELS})
    world.settle()
    assert world.state("second") is JobState.CANCELLED
