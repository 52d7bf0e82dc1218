"""What succeeded on a node that was cut off is not run again if its next try has not begun."""

import msgspec
import pytest

from reconciler import metrics
from reconciler.metrics import usage_accounting
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import EndReason, JobState
from tests.unit.core import world

#: Longer than lease, grace and margin of the jobs here.
LONG_S = 91


def cut_off(cluster: world.World, *names: str) -> None:
    """Let nodes be silent until their work was given up."""
    for name in names:
        cluster.nodes[name].silent = True
    cluster.advance(LONG_S)


def ended_there(
    cluster: world.World,
    attempt: records.AttemptRecord,
    *,
    exit_code: int = 0,
    reason: EndReason = EndReason.EXITED,
) -> None:
    """Let a task end on its silent node, before the node is heard of again."""
    node = cluster.nodes[attempt.node]
    node.end(attempt.id, cluster.now - 80, exit_code=exit_code, reason=reason)
    node.silent = False


def waiting(**changes: object) -> tuple[world.World, records.AttemptRecord]:
    """Return a cluster whose job waits because its node was cut off, and the other is full."""
    cluster = world.World(nodes=2, cpu=1)
    cluster.commit(world.job("busy"))
    cluster.settle()
    cluster.commit(world.job("busy"), world.job("j", lease_s=10, grace_s=5, **changes))
    cluster.settle()
    (attempt,) = cluster.attempts("j")
    cut_off(cluster, attempt.node)
    assert cluster.state("j") is JobState.PENDING
    return cluster, attempt


def test_a_success_counts_while_the_job_waits() -> None:
    cluster, attempt = waiting()
    ended_there(cluster, attempt)
    cluster.settle()
    assert cluster.state("j") is JobState.SUCCEEDED
    told = [one for result in cluster.outcomes for one in result.attempts if one.id == attempt.id]
    assert (told[-1].end_reason, told[-1].exit_code) == (EndReason.EXITED, 0)
    assert told[-1].concluded
    assert told[-1].ended_at == cluster.now - 80
    assert not cluster.attempts("j")
    assert cluster.nodes[attempt.node].attempts == {}, "its end was acknowledged"
    assert cluster.memory.jobs["j"].notes == {}


def test_its_use_is_charged_once() -> None:
    cluster, attempt = waiting()
    ended_there(cluster, attempt)
    cluster.settle()
    meter = usage_accounting.Meter(metrics.Counters())
    for result in cluster.outcomes:
        meter.cycle(result, records.Observed())
    assert sum(used.attempts for used in meter.take().usage.values()) == 1


def test_a_held_job_succeeds_too() -> None:
    cluster, attempt = waiting()
    spec = msgspec.structs.replace(cluster.jobs["j"], suspend=True)
    cluster.commit(spec)
    cluster.settle()
    assert cluster.state("j") is JobState.HELD
    ended_there(cluster, attempt)
    cluster.settle()
    assert cluster.state("j") is JobState.SUCCEEDED


@pytest.mark.parametrize(
    ("exit_code", "reason"),
    [(1, EndReason.EXITED), (0, EndReason.LEASE_EXPIRED), (0, EndReason.CANCELLED)],
)
def test_anything_else_waits_for_its_next_try(exit_code: int, reason: EndReason) -> None:
    cluster, attempt = waiting(retries=desired.Retries(limit=0))
    # its node may not be used, so that the job goes on waiting
    cluster.pool = msgspec.structs.replace(
        cluster.pool, drains={attempt.node: desired.NodeDrain(reason="look")}
    )
    cluster.change_structure(pools={"pool": cluster.pool})
    ended_there(cluster, attempt, exit_code=exit_code, reason=reason)
    cluster.settle()
    assert cluster.state("j") is JobState.PENDING


def test_only_its_own_node_is_believed() -> None:
    cluster, attempt = waiting()
    (other,) = set(cluster.nodes) - {attempt.node}
    cluster.nodes[other].end(attempt.id, cluster.now)
    cluster.nodes[other].end(attempt.id, cluster.now, exit_code=0)
    cluster.settle()
    assert cluster.state("j") is JobState.PENDING


def test_a_newer_try_goes_on() -> None:
    cluster = world.World(nodes=2, cpu=1)
    cluster.commit(world.job("j", lease_s=10, grace_s=5))
    cluster.settle()
    (attempt,) = cluster.attempts("j")
    cut_off(cluster, attempt.node)
    (second,) = cluster.attempts("j")
    ended_there(cluster, attempt)
    cluster.settle()
    assert [one.id for one in cluster.attempts("j")] == [second.id]
    assert cluster.state("j") is JobState.RUNNING


def gang() -> tuple[world.World, list[records.AttemptRecord]]:
    """Return a cluster with a gang on both nodes."""
    cluster = world.World(nodes=2, cpu=1)
    cluster.commit(world.job("j", lease_s=10, grace_s=5, count=2))
    cluster.settle()
    return cluster, cluster.attempts("j")


def test_a_gang_has_succeeded_when_its_cut_off_part_has() -> None:
    cluster, (one, other) = gang()
    cluster.end("j", index=one.index)
    cut_off(cluster, other.node)
    assert cluster.state("j") is JobState.PENDING
    ended_there(cluster, other)
    cluster.settle()
    assert cluster.state("j") is JobState.SUCCEEDED


def test_of_a_gang_that_was_cut_off_every_part_must_have_succeeded() -> None:
    cluster, (one, other) = gang()
    cut_off(cluster, one.node, other.node)
    ended_there(cluster, one)
    cluster.settle()
    assert cluster.state("j") is JobState.PENDING
    ended_there(cluster, other)
    cluster.settle()
    assert cluster.state("j") is JobState.SUCCEEDED


def test_a_gang_that_was_stopped_for_its_lost_part_is_tried_again() -> None:
    cluster, (_, other) = gang()
    cut_off(cluster, other.node)
    ended_there(cluster, other)
    cluster.settle()
    assert cluster.state("j") is JobState.RUNNING, "its next try"
    assert {one.try_number for one in cluster.attempts("j")} == {2}


def test_a_lost_part_that_succeeded_counts_while_the_others_go_on_to_their_end() -> None:
    """The others were ordered to stop, and end well before they do."""
    cluster, (one, other) = gang()
    cluster.nodes[other.node].silent = True
    cluster.now += LONG_S
    cluster.memory.add_report(cluster.nodes[one.node].report(cluster.now))
    cluster.nodes[one.node].silent = True  # it does not hear of the order
    cluster.cycle()
    cluster.nodes[one.node].silent = False
    assert {attempt.id for attempt in cluster.attempts("j")} == {one.id, other.id}
    ended_there(cluster, other)
    cluster.nodes[one.node].end(one.id, cluster.now, exit_code=0)
    cluster.settle()
    assert cluster.state("j") is JobState.SUCCEEDED
