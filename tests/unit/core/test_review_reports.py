"""Reports that no agent of ours would send, or in the wrong order: none may raise."""

import math

import msgspec
import pytest

from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason, JobState
from tests.unit.core.world import World, job


def _say(world: World, *attempts: records.AttemptReport, complete: bool = False) -> None:
    report = world.nodes["n0"].report(world.now)
    told = msgspec.structs.replace(report, attempts=attempts, complete=complete)
    world.memory.add_report(told)
    world.cycle()


@pytest.mark.parametrize("first", list(AttemptState)[1:4])
@pytest.mark.parametrize("second", list(AttemptState))
def test_no_order_of_told_states_is_an_error(first: AttemptState, second: AttemptState) -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a"))
    world.cycle()
    (attempt,) = world.attempts("a")
    _say(world, records.AttemptReport(attempt.id, first))
    _say(world, records.AttemptReport(attempt.id, second))
    if second is AttemptState.ENDED:
        assert world.memory.jobs["a"].finished
    else:
        (attempt,) = world.attempts("a")
        assert attempt.state is not AttemptState.UNKNOWN
        if first is AttemptState.STOPPING:
            assert attempt.state is AttemptState.STOPPING, "what leaves does not come back"


@pytest.mark.parametrize("started_at", [math.nan, math.inf, -math.inf, 0.0, 1e12])
def test_a_node_with_a_strange_clock_does_not_bend_time_limits(started_at: float) -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a", time_limit_s=60))
    world.cycle()
    (attempt,) = world.attempts("a")
    world.now += 5
    _say(world, records.AttemptReport(attempt.id, AttemptState.RUNNING, started_at=started_at))
    (attempt,) = world.attempts("a")
    assert attempt.started_at is not None
    assert attempt.assigned_at <= attempt.started_at <= world.now
    wake_at = world.outcomes[-1].wake_at
    assert wake_at is not None
    assert world.now < wake_at <= world.now + 60
    ended = records.AttemptReport(
        attempt.id,
        AttemptState.ENDED,
        ended_at=started_at,
        exit_code=0,
        end_reason=EndReason.EXITED,
    )
    world.now += 5
    world.memory.add_report(
        msgspec.structs.replace(world.nodes["n0"].report(world.now), attempts=(ended,))
    )
    result = world.cycle()
    (attempt,) = result.attempts
    assert attempt.ended_at is not None
    assert attempt.assigned_at <= attempt.ended_at <= world.now


def test_numbers_and_texts_that_no_store_could_hold_are_cut() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a"))
    world.cycle()
    (attempt,) = world.attempts("a")
    told = records.AttemptReport(
        attempt.id,
        AttemptState.ENDED,
        exit_code=2**64 - 1,
        signal=-(2**63),
        message="x" * 10_000_000,
        max_memory_bytes=2**64 - 1,
    )
    world.memory.add_report(
        msgspec.structs.replace(world.nodes["n0"].report(world.now), attempts=(told,))
    )
    result = world.cycle()
    (attempt,) = result.attempts
    assert (attempt.exit_code, attempt.signal) == (None, None)
    assert attempt.max_memory_bytes < 2**63
    assert sum(len(event.message) for event in result.events) < 10_000
    assert world.state("a") is JobState.FAILED
