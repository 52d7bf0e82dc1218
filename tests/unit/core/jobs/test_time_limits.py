"""What becomes of a job at its time limit: its signal before it, and going on after it."""

import pytest

from reconciler.model import desired
from reconciler.model.state.states import EndReason, JobState
from tests.unit.core.test_saved import tell
from tests.unit.core.world import World, job

LIMIT_S = 600


def started(limit: int = 2, **checkpoint: object) -> World:
    world = World(nodes=1)
    saves = desired.Checkpoint(signal="SIGUSR1", grace_s=20, path="c", **checkpoint)  # type: ignore[arg-type]
    retries = desired.Retries(limit, backoff_s=0)
    world.commit(job("j", checkpoint=saves, time_limit_s=LIMIT_S, retries=retries))
    world.settle()
    return world


def test_it_goes_on_after_its_limit_as_often_as_it_has_retries() -> None:
    world = started(requeues=True)
    for number in (1, 2):
        assert world.attempts("j")[0].try_number == number
        tell(world, f"step-{number}", world.now)
        world.advance(LIMIT_S)
        assert world.state("j") is JobState.RUNNING
    tell(world, "step-3", world.now)
    world.advance(LIMIT_S)
    assert world.state("j") is JobState.TIMED_OUT
    assert world.memory.jobs["j"].message == (
        "its time limit of 10m has passed, and all 2 retries are spent"
    )
    told = [e.message for one in world.outcomes for e in one.events if e.kind == "JobRetried"]
    how = "it reached its time limit of 10m and goes on from its checkpoint"
    assert told == [f"{how}; retry {number} of 2 in 0 s" for number in (1, 2)]


@pytest.mark.parametrize("known", [False, True])
def test_it_does_not_go_on_without_a_checkpoint_of_the_try(known: bool) -> None:
    world = started(requeues=True)
    if known:
        tell(world, "step-1", world.now)
        world.now += 10
        world.end("j", exit_code=1)
        assert world.attempts("j")[0].try_number == 2
    world.advance(LIMIT_S)
    assert world.state("j") is JobState.TIMED_OUT
    assert world.memory.jobs["j"].message == (
        "its time limit of 10m has passed, and this try has no complete checkpoint to go on from"
    )


def test_it_ends_at_its_limit_unless_it_asks_to_go_on() -> None:
    world = started()
    tell(world, "step-1", world.now)
    world.advance(LIMIT_S)
    assert world.state("j") is JobState.TIMED_OUT
    assert world.memory.jobs["j"].message == "its time limit of 10m has passed"


@pytest.mark.parametrize(("before_s", "at_s", "grace_s"), [(0, 600, 20), (120, 480, 120)])
def test_the_signal_comes_as_long_before_the_limit_as_it_says(
    before_s: int, at_s: int, grace_s: int
) -> None:
    world = started(before_limit_s=before_s)
    began = world.now
    world.advance(at_s - 1)
    (attempt,) = world.attempts("j")
    assert attempt.stop is None
    world.now = began + at_s
    world.nodes["n0"].silent = True  # it saves
    world.settle()
    stop = world.memory.attempts[attempt.id].stop
    assert stop is not None
    assert (stop.reason, stop.signal, stop.grace_s) == (EndReason.TIMED_OUT, "SIGUSR1", grace_s)
    assert stop.to == "main"


def test_a_deadline_leaves_its_grace_alone() -> None:
    world = World(nodes=1)
    saves = desired.Checkpoint(grace_s=20, path="c", before_limit_s=300)
    began = world.now
    world.commit(job("j", checkpoint=saves, deadline=began + 100))
    world.settle()
    (attempt,) = world.attempts("j")
    world.now = began + 100
    world.nodes["n0"].silent = True
    world.settle()
    stop = world.memory.attempts[attempt.id].stop
    assert stop is not None
    assert (stop.reason, stop.grace_s) == (EndReason.TIMED_OUT, 20)
