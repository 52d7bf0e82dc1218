"""Overrides: what people cancel and drain while git is down, and how that ends."""

from collections.abc import Callable

import msgspec
import pytest

from reconciler.core import observed_state, overrides
from reconciler.model import desired
from reconciler.model.state import records, states
from tests.unit.core.world import World, job

_N, _J = states.NodeState, states.JobState


def put(
    world: World,
    verb: records.OverrideVerb,
    subject: str,
    *,
    for_s: float = 100.0,
    reason: str = "smoke",
) -> str:
    """Request an override and run a cycle. Return why it was refused, or nothing."""
    one = records.Override(verb, subject, reason, "alice", world.now, world.now + for_s)
    world.memory.ask(records.PutOverride("1", one))
    return world.cycle().answers["1"]


def clear(world: World, verb: records.OverrideVerb, subject: str) -> str:
    """Request the end of an override."""
    world.memory.ask(records.ClearOverride("2", verb, subject, "bob"))
    return world.cycle().answers["2"]


def drifts(world: World) -> list[tuple[str, str]]:
    """Return what the last cycle found, without messages."""
    return [(d.kind, d.subject) for d in world.memory.drift if "override" in d.kind]


def succeed_leader(world: World) -> None:
    """Let another controller continue from the store."""
    held = msgspec.structs.replace(world.memory.observed((), {}), desired_generation=-1)
    world.memory = observed_state.ObservedState(held, world.now)


@pytest.fixture
def world() -> World:
    """Return two nodes; ``runs`` runs, ``waits`` does not fit, ``done`` has ended."""
    made = World()
    made.commit(job("done"), job("runs"), job("waits", cpu=99))
    made.settle()
    made.end("done")
    return made


@pytest.mark.parametrize("name", ["runs", "waits"])
def test_a_cancelled_run_stays_cancelled(world: World, name: str) -> None:
    assert put(world, "cancel", name) == ""
    world.settle()
    assert world.state(name) is _J.CANCELLED
    assert "by override of alice until" in world.memory.jobs[name].message
    assert drifts(world) == [("job-cancelled-by-override", name)]
    assert world.events("OverrideMade") == [name]
    world.advance(101)
    assert world.events("OverrideExpired") == [name]
    assert drifts(world) == []
    assert world.memory.overrides == ()
    world.commit(job("other"))
    world.settle()
    assert world.state(name) is _J.CANCELLED


def test_a_drained_node_comes_back_when_it_expires_and_not_before(world: World) -> None:
    (attempt,) = world.attempts("runs")
    assert put(world, "drain", attempt.node) == ""
    assert world.memory.nodes[attempt.node].state is _N.DRAINING
    assert world.state("runs") is _J.RUNNING
    world.end("runs")
    node = world.memory.nodes[attempt.node]
    assert node.state is _N.DRAINED
    assert node.message == "smoke (alice), an override until 1970-01-12T13:48:20.000Z"
    assert node.drain == desired.NodeDrain("smoke", "alice", world.now + 100)
    (drift,) = [d for d in world.memory.drift if d.kind == "node-drained-by-override"]
    assert drift.severity == "warning"
    assert drift.message == (
        "by override of alice until 1970-01-12T13:48:20.000Z: smoke; "
        f"to commit it: muster drain {attempt.node} --reason 'smoke'"
    )
    started = world.now
    world.advance(99.5)
    assert world.memory.nodes[attempt.node].state is _N.DRAINED
    assert world.memory.drift[0].first_seen == started
    assert world.cycle().wake_at == started + 100
    world.advance(0.5)
    assert world.memory.nodes[attempt.node].state is _N.READY
    assert world.events("OverrideExpired") == [attempt.node]


def test_an_override_is_asked_for_again_to_last_longer(world: World) -> None:
    put(world, "drain", "n0", for_s=10)
    assert put(world, "drain", "n0", for_s=50, reason="still smoke") == ""
    world.advance(20)
    (one,) = world.memory.overrides
    assert one.reason == "still smoke"
    assert world.memory.nodes["n0"].drain == desired.NodeDrain(
        "still smoke", "alice", one.expires_at
    )
    assert put(world, "cancel", "runs", for_s=10) == ""
    world.settle()
    assert put(world, "cancel", "runs", for_s=20) == "", "whoever got no answer asks again"


@pytest.mark.parametrize("verb", ["cancel", "drain"])
def test_whoever_clears_it_is_told_of(world: World, verb: records.OverrideVerb) -> None:
    subject = {"cancel": "runs", "drain": "n0"}[verb]
    put(world, verb, subject)
    world.settle()
    assert clear(world, verb, subject) == ""
    world.settle()
    assert world.memory.overrides == ()
    assert world.events("OverrideCleared") == [subject]
    assert world.memory.nodes["n0"].state is _N.READY
    assert world.state("runs") is (_J.CANCELLED if verb == "cancel" else _J.RUNNING)


def _drain_in_git(world: World) -> None:
    pool = msgspec.structs.replace(world.pool, drains={"n0": desired.NodeDrain("fan")})
    world.change_structure(pools={"pool": pool})


_COMMITS: list[tuple[records.OverrideVerb, str, Callable[[World], None]]] = [
    ("drain", "n0", _drain_in_git),
    ("cancel", "runs", lambda world: world.commit(remove=("runs",))),
    ("cancel", "runs", lambda world: world.commit(job("runs", run=2))),
]


@pytest.mark.parametrize(("verb", "subject", "commit"), _COMMITS)
def test_it_goes_by_itself_when_git_says_the_same(
    world: World, verb: records.OverrideVerb, subject: str, commit: Callable[[World], None]
) -> None:
    put(world, verb, subject)
    world.settle()
    commit(world)
    world.settle()
    assert world.events("OverrideCommitted") == [subject]
    assert (world.memory.overrides, drifts(world)) == ((), [])
    if verb == "drain":
        assert world.memory.nodes["n0"].drain == desired.NodeDrain("fan")
        assert "NodeReady" not in [e.kind for e in world.outcomes[-1].events]


def test_a_repository_that_cannot_be_read_commits_nothing(world: World) -> None:
    put(world, "cancel", "runs")
    world.sync = "Unknown"
    succeed_leader(world)
    world.commit(remove=("runs",))  # as a controller that never read git has it
    world.settle()
    assert [one.subject for one in world.memory.overrides] == ["runs"]
    assert world.state("runs") is _J.CANCELLED
    world.sync = "Synced"
    world.settle()
    assert world.events("OverrideCommitted") == ["runs"]


@pytest.mark.parametrize("verb", ["cancel", "drain"])
def test_it_survives_a_change_of_leader(world: World, verb: records.OverrideVerb) -> None:
    subject = {"cancel": "runs", "drain": "n0"}[verb]
    put(world, verb, subject)
    succeed_leader(world)
    world.settle()
    assert [one.key for one in world.memory.overrides] == [(verb, subject)]
    assert (world.memory.nodes["n0"].state is _N.READY) is (verb == "cancel")
    world.advance(101)
    assert world.events("OverrideExpired") == [subject]


def test_what_was_changed_under_the_cancelled_run_does_not_begin(world: World) -> None:
    world.commit(job("runs", hash="changed"))
    world.settle()
    assert put(world, "cancel", "runs") == ""
    world.settle()
    world.advance(200)
    assert world.state("runs") is _J.CANCELLED
    assert world.memory.jobs["runs"].spec.hash == "0123456789abcdef"
    world.commit(job("runs", run=2, hash="changed"))
    world.settle()
    assert world.state("runs") is _J.RUNNING


def test_a_node_that_leaves_its_pool_and_comes_back_is_still_drained(world: World) -> None:
    put(world, "drain", "n0", for_s=1000)
    pool = world.pool
    world.change_structure(pools={"pool": msgspec.structs.replace(pool, nodes=("n1",))})
    world.settle()
    world.change_structure(pools={"pool": pool})
    world.settle()
    assert world.memory.nodes["n0"].state is not _N.READY


_REFUSED: list[tuple[records.OverrideVerb, str, float, str]] = [
    ("cancel", "nobody", 10, "there is no Job/nobody"),
    ("cancel", "done", 10, "run 1 of it is Succeeded already"),
    ("drain", "nowhere", 10, "there is no Node/nowhere"),
    ("drain", "n0", 0, "it would end before it begins"),
]


@pytest.mark.parametrize(("verb", "subject", "for_s", "why"), _REFUSED)
def test_what_makes_no_sense_is_refused(
    world: World, verb: records.OverrideVerb, subject: str, for_s: float, why: str
) -> None:
    assert put(world, verb, subject, for_s=for_s) == why
    assert world.memory.overrides == ()
    assert clear(world, verb, subject) == f"there is no override that would {verb} {subject}"


def test_what_git_says_already_needs_no_override(world: World) -> None:
    _drain_in_git(world)
    world.settle()
    assert put(world, "drain", "n0") == "NodePool pool drains it in git already: fan"
    world.commit(remove=("runs",))
    world.cycle()
    assert put(world, "cancel", "runs") == "run 1 of it is being cancelled already"


def test_nobody_takes_the_room_of_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each owner may cancel so many running jobs. Drains and suspensions are not limited."""
    monkeypatch.setattr(records, "OVERRIDES_MAX", 2)
    names = ["a", "b", "c", "d"]
    world.commit(*(job(name, cpu=1) for name in names))
    world.settle()
    asked = [
        records.PutOverride(name, records.Override("cancel", name, "no", "bob", 1.0, 2e9))
        for name in names
    ]
    for one in asked:
        world.memory.ask(one)
    answers = world.cycle().answers
    assert [answers[name] for name in names[:2]] == ["", ""]
    assert answers["c"] == answers["d"]
    assert answers["c"].startswith("bob has 2 overrides that cancel runs which are not over")
    assert put(world, "cancel", "c") == "", "somebody else's are counted apart"
    assert [put(world, "drain", node) for node in ("n0", "n1")] == ["", ""]
    assert put(world, "suspend", "cluster") == ""
    assert put(world, "cancel", "a", for_s=500) == "", "one that is there may be renewed"


def test_of_cancels_whose_runs_are_over_the_newest_are_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "OVERRIDES_MAX", 2)
    names = ["a", "b", "c", "d"]
    world.commit(*(job(name, cpu=99) for name in names))
    world.settle()
    for name in names:
        assert put(world, "cancel", name) == "", "what never ran is over at once, and counts not"
        world.settle()
        world.advance(1)
    assert [one.subject for one in world.memory.overrides] == ["c", "d"]
    assert world.events("OverrideExpired") == ["a", "b"]
    assert {world.state(name) for name in names} == {_J.CANCELLED}


def test_the_command_that_commits_it_quotes_the_reason() -> None:
    one = records.Override("drain", "n0", "it's hot", "alice", 1.0, 2.0)
    assert overrides.commit_command(one) == "muster drain n0 --reason 'it'\\''s hot'"


_SUSPENDED = ["cluster", "queue/default"]


def _suspend_in_git(world: World, subject: str) -> None:
    structure = world.structure
    if subject == "cluster":
        settings = msgspec.structs.replace(structure.settings, suspend=True)
        world.change_structure(settings=settings)
    else:
        queue = msgspec.structs.replace(structure.queues["default"], suspend=True)
        world.change_structure(queues={"default": queue})


@pytest.mark.parametrize("subject", _SUSPENDED)
def test_nothing_starts_in_what_is_suspended_until_that_ends(world: World, subject: str) -> None:
    assert put(world, "suspend", subject) == ""
    world.commit(job("late"))
    world.settle()
    assert world.state("runs") is _J.RUNNING, "what runs goes on"
    assert world.state("late") is _J.PENDING
    assert drifts(world) == [("suspended-by-override", subject)]
    (drift,) = [d for d in world.memory.drift if d.kind == "suspended-by-override"]
    assert drift.message.endswith(f"to commit it: muster suspend {subject} --reason 'smoke'")
    (reason,) = world.memory.reasons[world.memory.jobs["late"].reason_key]
    assert reason.code.value == "Held"
    what = "the cluster" if subject == "cluster" else "queue default"
    assert reason.message.startswith(f"{what} is suspended by override of alice until 1970-")
    assert reason.unblocks == f"run `muster resume {subject} --override`, or wait until that ends"
    world.advance(101)
    world.settle()
    assert drifts(world) == []
    assert world.state("late") is _J.RUNNING


@pytest.mark.parametrize("subject", _SUSPENDED)
def test_who_waits_is_told_when_a_suspension_lasts_longer(world: World, subject: str) -> None:
    put(world, "suspend", subject)
    world.commit(job("late"))
    world.settle()
    assert put(world, "suspend", subject, for_s=500, reason="more smoke") == ""
    (reason,) = world.memory.reasons[world.memory.jobs["late"].reason_key]
    (one,) = world.memory.overrides
    assert overrides.describe(one) in reason.message
    assert one.reason == "more smoke"


@pytest.mark.parametrize("subject", _SUSPENDED)
def test_a_suspension_takes_hold_and_ends_though_nothing_else_changes(
    world: World, subject: str
) -> None:
    world.commit(job("next", cpu=4), job("after", cpu=4))
    world.settle()
    (waits,) = [name for name in ("next", "after") if world.state(name) is _J.PENDING]
    assert put(world, "suspend", subject) == ""
    assert "suspended" in world.memory.reasons[world.memory.jobs[waits].reason_key][0].message
    assert clear(world, "suspend", subject) == ""
    told = world.memory.reasons[world.memory.jobs[waits].reason_key][0].message
    assert "suspended" not in told


@pytest.mark.parametrize("subject", _SUSPENDED)
def test_a_suspension_outlives_its_leader_and_goes_when_git_says_it(
    world: World, subject: str
) -> None:
    put(world, "suspend", subject)
    succeed_leader(world)
    world.commit(job("late"))
    world.settle()
    assert world.state("late") is _J.PENDING
    _suspend_in_git(world, subject)
    world.settle()
    assert (world.memory.overrides, drifts(world)) == ((), [])
    assert world.state("late") is _J.PENDING
    assert put(world, "suspend", subject) == "git suspends it already"


@pytest.mark.parametrize("subject", ["queue/nobody", "pool/default", "default"])
def test_what_is_not_there_is_not_suspended(world: World, subject: str) -> None:
    assert put(world, "suspend", subject).startswith("there is no ")
    assert world.memory.overrides == ()
