"""A job that took another's turn keeps it while it is pending, whatever holds it back."""

import math
from typing import Any

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.state.scheduler_state import SchedulerState, Turn
from reconciler.store import codec
from tests.unit.core.world import World, job


def _of(name: str, owner: str, **changes: Any) -> desired.Job:
    return job(name, owner=owner, time_limit_s=3600, **changes)


def _passed() -> World:
    """Return a world with one place, which a job with a deadline has by the turn of ``a``, before
    ``b``.
    """
    scheduling = desired.Scheduling(backfill="none")
    world = World(nodes=1, cpu=1, settings=desired.ClusterSettings(scheduling=scheduling))
    world.commit(_of("runs", "cleo"))
    world.settle()
    for name, owner in (("a", "ada"), ("b", "bob")):
        world.commit(_of(name, owner))
        world.advance(1)
    world.commit(_of("soon", "ada", deadline=world.now + 9000))
    world.advance(1)
    world.end("runs")
    assert world.states()["soon"] == "Running"
    return world


def _turns(world: World) -> list[str]:
    return [turn.job for turn in world.memory.scheduler_state.turns]


def test_a_turn_that_was_used_is_remembered_until_its_job_starts() -> None:
    world = _passed()
    assert _turns(world) == ["a"]
    world.commit(_of("sooner", "ada", deadline=world.now + 8000))
    world.advance(1)
    for name in ("soon", "b", "sooner"):
        assert world.states()[name] == "Running"
        world.end(name)
    assert world.states()["a"] == "Running"
    assert _turns(world) == []


def test_what_is_held_for_a_while_has_no_earlier_turn_then() -> None:
    world = _passed()
    for suspend in (True, False):
        world.commit(_of("a", "ada", suspend=suspend))
        world.advance(1)
        assert _turns(world) == ["a"]
    world.end("soon")
    assert world.states()["b"] == "Running"


def test_a_job_that_goes_takes_its_turn_with_it() -> None:
    world = _passed()
    world.commit(remove=("a",))
    world.advance(1)
    world.end("soon")
    assert _turns(world) == []


@pytest.mark.parametrize("length_s", [60.0, math.inf])
def test_turns_are_stored(length_s: float) -> None:
    known = SchedulerState(turns=(Turn("a", of=1, order=3, since=5.0, length_s=length_s),))
    assert codec.scheduler_state_of(codec.encode(known)) == known
    older = msgspec.msgpack.encode({"turn": 3})
    assert codec.scheduler_state_of(older).turns == ()
