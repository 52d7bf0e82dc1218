"""A job that sound nodes can't start is not tried for ever: after some tries it has failed."""

import pytest

from reconciler.core.jobs import verdicts
from reconciler.model import desired
from reconciler.model.observed import health_checks
from reconciler.model.state.states import EndReason, JobState
from tests.unit.core.world import World, job

MOST = verdicts.UNSTARTED_MAX


def tried(world: World, times: int, name: str = "a") -> None:
    """Let a job be tried so often, on nodes that can't start it."""
    for _ in range(times):
        assert world.attempts(name), world.states()
        world.end(name, exit_code=None, reason=EndReason.CHECK_FAILED)
        world.advance(verdicts.LOSS_WAIT_S_MAX)


@pytest.mark.parametrize("limit", [0, 2])
def test_a_job_that_no_sound_node_can_start_spends_its_retries_and_has_failed(limit: int) -> None:
    world = World(nodes=3)
    world.commit(job("a", retries=desired.Retries(limit=limit, backoff_s=10)))
    world.settle()
    for retry in range(limit):
        tried(world, MOST)
        (told,) = world.events("JobRetried")[retry : retry + 1]
        assert told == "a"
        assert world.memory.jobs["a"].notes[0].retries_spent == retry + 1
    tried(world, MOST - 1)
    assert world.state("a") is JobState.RUNNING, "one more is free"
    tried(world, 1)
    record = world.memory.jobs["a"]
    assert record.state is JobState.FAILED
    begin = (
        f"it could not start in {MOST} tries in a row, on nodes without a fault; the last: task "
    )
    assert record.message.startswith(begin)


def test_a_try_that_began_breaks_the_row() -> None:
    world = World()
    world.commit(job("a", retries=desired.Retries(limit=1, backoff_s=10)))
    world.settle()
    tried(world, MOST - 1)
    world.end("a", exit_code=None, reason=EndReason.NODE_STOPPED)
    world.advance(verdicts.LOSS_WAIT_S_MAX)
    tried(world, MOST - 1)
    assert world.state("a") is JobState.RUNNING
    assert world.memory.jobs["a"].notes[0].retries_spent == 0


def test_nodes_with_a_fault_of_their_own_cost_the_job_nothing() -> None:
    """Such a node is out until it is well, so it is not tried at once; nor does it count."""
    world = World(nodes=1)
    world.commit(job("a"))
    world.settle()
    (node,) = world.nodes.values()
    for _ in range(MOST + 5):
        bad = health_checks.CheckResult("task-start", "failed", "no group")
        node.checks = (bad,)
        world.end("a", exit_code=None, reason=EndReason.CHECK_FAILED)
        assert world.memory.nodes[node.name].state.value == "Unhealthy"
        node.checks = ()
        world.advance(600)
    assert world.state("a") is JobState.RUNNING
    note = world.memory.jobs["a"].notes[0]
    assert (note.unstarted, note.retries_spent) == (0, 0)
