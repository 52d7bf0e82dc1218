"""Nodes that fall silent, come back, reboot, are drained, or report more or less than assigned."""

from collections.abc import Callable

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState, EndReason, JobState, NodeState
from reconciler.model.values.resources import Resources
from tests.unit.core.world import World, job


def _silence(world: World, name: str, seconds: float) -> None:
    world.nodes[name].silent = True
    world.advance(seconds)


def test_a_silent_node_is_unknown_and_loses_nothing_before_its_lease() -> None:
    world = World(nodes=2, cpu=1)
    world.commit(job("a", lease_s=100, grace_s=10))
    world.settle()
    node = world.attempts("a")[0].node
    _silence(world, node, 91)
    assert world.memory.nodes[node].state is NodeState.UNKNOWN
    assert world.attempts("a")[0].state is AttemptState.UNKNOWN
    assert world.state("a") is JobState.RUNNING
    wake_at = world.outcomes[-1].wake_at
    assert wake_at is not None
    assert wake_at <= world.now - 91 + 100 + 10 + 2
    world.advance(22)
    assert world.state("a") is JobState.RUNNING
    (attempt,) = world.attempts("a")
    assert attempt.node != node, "lease, grace and margin are over: it starts elsewhere"
    assert attempt.try_number == 2
    assert world.memory.jobs["a"].notes[0].retries_spent == 0


def test_work_without_a_lease_waits_for_its_node() -> None:
    world = World(nodes=2, cpu=1)
    world.commit(job("a", lease_s=None))
    world.settle()
    node = world.attempts("a")[0].node
    _silence(world, node, 100_000)
    assert [a.node for a in world.attempts("a")] == [node]
    world.nodes[node].silent = False
    world.advance(1)
    assert world.attempts("a")[0].state is AttemptState.RUNNING
    assert world.memory.nodes[node].state is NodeState.READY


def test_answers_renew_what_reports_do_not() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a", lease_s=100))
    world.settle()
    world.nodes["n0"].silent = True
    world.memory.answered["n0"] = world.now + 80
    world.advance(95)
    assert world.memory.nodes["n0"].state is NodeState.READY


def test_another_boot_has_lost_everything() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a"))
    world.settle()
    node = world.nodes["n0"]
    node.boot_id, node.attempts = "boot-n0-2", {}
    world.settle()
    (attempt,) = world.attempts("a")
    assert (attempt.boot_id, attempt.try_number) == ("boot-n0-2", 2)


def test_an_attempt_the_node_no_longer_knows_is_lost_once_it_was_seen() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a"))
    world.cycle()
    world.nodes["n0"].attempts.clear()
    world.hear()
    world.cycle()
    assert world.attempts("a")[0].state is AttemptState.ASSIGNED, "it may still be on its way"
    attempt_id = world.attempts("a")[0].id
    world.nodes["n0"].attempts[attempt_id] = records.AttemptReport(
        id=attempt_id, state=AttemptState.RUNNING, started_at=world.now
    )
    world.settle()
    world.nodes["n0"].attempts.clear()
    world.settle()
    assert world.attempts("a")[0].try_number == 2


def test_an_older_report_that_crosses_a_newer_one_is_dropped() -> None:
    world = World(nodes=1, cpu=1)
    older = world.nodes["n0"].report(world.now)
    world.commit(job("a"))
    world.settle()
    world.memory.add_report(older)
    world.cycle()
    assert world.attempts("a")[0].state is AttemptState.RUNNING


def test_an_end_that_is_told_twice_is_acknowledged_twice_and_counted_once() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a"))
    world.settle()
    attempt_id = world.attempts("a")[0].id
    told = records.AttemptReport(
        id=attempt_id, state=AttemptState.ENDED, exit_code=0, end_reason=EndReason.EXITED
    )
    for _ in range(2):
        node = world.nodes["n0"]
        node.attempts = {attempt_id: told}
        world.memory.add_report(node.report(world.now))
        result = world.cycle()
        assert outcome.Acknowledge(attempt=attempt_id, node="n0") in result.actions
    assert world.state("a") is JobState.SUCCEEDED
    assert len(world.events("AttemptEnded")) == 1


def test_events_of_an_array_say_which_task_of_which_element() -> None:
    world = World(nodes=1, cpu=4)
    world.commit(job("one"), job("many", array_count=3))
    world.settle()
    for name in ("one", "many"):
        for attempt in world.attempts(name):
            world.nodes["n0"].end(attempt.id, world.now, exit_code=1)
    world.settle()
    told = sorted(
        f"{event.kind} {event.job}: {event.message}"
        for result in world.outcomes
        for event in result.events
        if event.kind in ("AttemptEnded", "AttemptRunning")
    )
    assert told == sorted(
        f"{kind} {which}{words}"
        for which in (
            "one: task main-0",
            *(f"many: task main-0 of element {number}" for number in range(3)),
        )
        for kind, words in (
            ("AttemptEnded", ": Exited with status 1"),
            ("AttemptRunning", " runs"),
        )
    )


def test_a_drained_node_finishes_what_it_has_and_takes_nothing_new() -> None:
    world = World(nodes=1, cpu=2)
    world.commit(job("a"))
    world.settle()
    drained = msgspec.structs.replace(
        world.pool, drains={"n0": desired.NodeDrain(reason="fan", owner="ops@x")}
    )
    world.change_structure(pools={"pool": drained})
    world.commit(job("b"))
    world.settle()
    assert world.memory.nodes["n0"].state == "Draining"
    assert world.memory.nodes["n0"].message == "fan (ops@x)"
    assert world.states() == {"a": "Running", "b": "Pending"}
    world.end("a")
    assert world.memory.nodes["n0"].state == "Drained"
    world.change_structure(pools={"pool": world.pool})
    world.settle()
    assert world.state("b") is JobState.RUNNING


def test_a_node_with_less_than_its_pool_declares_is_unhealthy_and_drift() -> None:
    world = World(nodes=1, cpu=2)
    bigger = msgspec.structs.replace(world.pool, node_resources=Resources(64_000, 0, 0))
    world.change_structure(pools={"pool": bigger})
    world.commit(job("a"))
    world.settle()
    assert world.memory.nodes["n0"].state is NodeState.UNHEALTHY
    assert [d.kind for d in world.memory.drift] == ["node-inventory"]
    first_seen = world.memory.drift[0].first_seen
    world.advance(50)
    assert world.memory.drift[0].first_seen == first_seen


def _leave_pool(world: World, node: str) -> None:
    rest = tuple(name for name in world.pool.nodes if name != node)
    world.change_structure(pools={"pool": msgspec.structs.replace(world.pool, nodes=rest)})


def _bury(world: World, node: str) -> None:
    drains = {node: desired.NodeDrain(reason="burnt", owner="ops@x", gone=True)}
    world.change_structure(pools={"pool": msgspec.structs.replace(world.pool, drains=drains)})


@pytest.mark.parametrize(
    ("lease_s", "change", "silent_s", "state", "moved"),
    [
        (200, _leave_pool, 0, "Draining", False),
        (200, _leave_pool, 100, "Unknown", False),
        (200, _leave_pool, 211, "Unknown", False),
        (200, _leave_pool, 213, "Gone", True),
        (None, _leave_pool, 1_000_000, "Unknown", False),
        (200, _bury, 0, "Draining", False),
        (200, _bury, 89, "Draining", False),
        (200, _bury, 91, "Gone", True),
        (None, _bury, 91, "Gone", True),
        (200, None, 211, "Unknown", False),
        (200, None, 213, "Unknown", True),
    ],
)
def test_work_of_a_silent_node_moves_when_nothing_of_it_can_be_running(
    lease_s: int | None,
    change: Callable[[World, str], None] | None,
    silent_s: float,
    state: str,
    moved: bool,
) -> None:
    world = World(nodes=2, cpu=1)
    world.commit(job("a", lease_s=lease_s, grace_s=10))
    world.settle()
    (first,) = world.attempts("a")
    if change is not None:
        change(world, first.node)
    world.settle()
    if silent_s:
        _silence(world, first.node, silent_s)
    assert world.memory.nodes[first.node].state == state
    assert (world.attempts("a")[0].id != first.id) is moved


def test_a_node_in_no_pool_is_gone_in_the_cycle_that_gives_its_work_up() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a", lease_s=200, grace_s=10))
    world.settle()
    _leave_pool(world, "n0")
    world.nodes["n0"].silent = True
    world.advance(100)
    assert "no pool declares it" in world.memory.nodes["n0"].message
    wake_at = world.outcomes[-1].wake_at
    assert wake_at == world.now - 100 + 212
    world.now = wake_at
    result = world.cycle()
    assert [node.state for node in result.nodes] == ["Gone"]
    assert not world.attempts("a")


def test_a_node_that_keeps_endless_work_says_what_gives_it_up() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a", lease_s=None))
    world.settle()
    _leave_pool(world, "n0")
    _silence(world, "n0", 100)
    assert "gone: true" in world.memory.nodes["n0"].message


def test_a_node_that_is_gone_stays_so_over_a_change_of_leader() -> None:
    world = World(nodes=2, cpu=1)
    _bury(world, "n0")
    _silence(world, "n0", 100)
    world.memory.leader_since = world.now
    world.cycle()
    assert world.memory.nodes["n0"].state == "Gone"
    world.nodes["n0"].silent = False
    world.settle()
    assert world.memory.nodes["n0"].state == "Drained", "it speaks: it is not gone"


@pytest.mark.parametrize("declared", [True, False])
def test_a_node_that_is_away_does_not_come_back_because_more_silence_is_allowed(
    declared: bool,
) -> None:
    world = World(nodes=2, cpu=1, settings=desired.ClusterSettings(node_silence_s=2))
    world.settle()
    if not declared:
        world.pool = msgspec.structs.replace(world.pool, nodes=("n0",))
        world.change_structure(pools={"pool": world.pool})
    _silence(world, "n1", 3)
    away = NodeState.UNKNOWN if declared else NodeState.GONE
    assert world.memory.nodes["n1"].state is away
    world.change_structure(settings=desired.ClusterSettings(node_silence_s=600))
    world.advance(1)
    assert world.memory.nodes["n1"].state is away
    world.nodes["n1"].silent = False
    world.advance(1)
    back = NodeState.READY if declared else NodeState.DRAINED
    assert world.memory.nodes["n1"].state is back


def test_losses_in_a_row_wait_longer_and_longer() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a"))
    world.settle()
    waits = []
    for number in range(2, 8):
        node = world.nodes["n0"]
        node.boot_id, node.attempts = f"boot-{number}", {}
        world.settle()
        waits.append(world.memory.jobs["a"].notes[0].not_before - world.now)
        world.advance(61)
        assert world.state("a") is JobState.RUNNING
    assert [max(0.0, wait) for wait in waits] == [0, 0, 0, 2, 4, 8]


def test_no_unix_user_where_root_is_not_allowed() -> None:
    world = World(nodes=1, cpu=1)
    strict = msgspec.structs.replace(world.pool, runs_unmapped=False)
    world.change_structure(pools={"pool": strict})
    node = world.nodes["n0"]
    report = node.report(world.now)
    assert report.inventory is not None
    as_root = msgspec.structs.replace(report.inventory, runs_as_root=True)
    world.memory.add_report(msgspec.structs.replace(report, inventory=as_root))
    world.commit(job("a", owner="alice@x"))
    world.cycle()
    assert world.reason("a") == "NoUnixUser"
    world.change_structure(unix_users={"alice@x": "alice"})
    world.cycle()
    assert world.attempts("a")


def test_ranks_that_fail_because_their_sibling_is_lost_spend_no_retry() -> None:
    world = World(nodes=3, cpu=2)
    world.commit(job("g", count=4, lease_s=10, grace_s=1))
    world.settle()
    dead, alive = sorted({attempt.node for attempt in world.attempts("g")})
    world.nodes[dead].silent = True
    index = next(a.index for a in world.attempts("g") if a.node == alive)
    world.end("g", index=index, exit_code=1)
    assert world.state("g") is JobState.STARTING or world.state("g") is JobState.RUNNING
    world.advance(120)
    assert world.state("g") is JobState.RUNNING
    assert dead not in {attempt.node for attempt in world.attempts("g")}
    assert world.memory.jobs["g"].notes[0].retries_spent == 0


def test_a_node_that_comes_back_is_not_told_to_have_what_was_given_up() -> None:
    world = World(nodes=2, cpu=1)
    world.commit(job("a", lease_s=10, grace_s=1))
    world.cycle()
    given_up = world.attempts("a")[0]
    world.nodes[given_up.node].silent = True
    world.advance(120)
    assert world.attempts("a")[0].node != given_up.node
    actions = [action for result in world.outcomes for action in result.actions]
    assert outcome.WithdrawAttempt(attempt=given_up.id, node=given_up.node) in actions
