"""Submissions that wait for git: bounded, in order, each ended once, and starting nothing."""

import msgspec
import pytest

from reconciler.model.state import records
from tests.unit.core.test_overrides import succeed_leader
from tests.unit.core.world import World, job


def waiting(world: World, name: str, owner: str = "ada", text: str = "text") -> records.Override:
    """Return a submission as the server asks for it to be kept."""
    return records.Override(
        *("submit", name, "git is away", owner, world.now, world.now + 1000),
        submission=records.Submission(f"id-{name}", text),
    )


def put(world: World, *items: records.Override) -> str:
    """Ask to keep submissions. Return why that was refused, or nothing."""
    world.memory.ask(records.QueueSubmissions("1", items))
    return world.cycle().answers["1"]


def settle(world: World, name: str, *, commit: str = "", refused: str = "") -> str:
    """Say what became of a submission. Return why that was refused, or nothing."""
    asked = records.SettleSubmission("2", name, f"id-{name}", commit, refused)
    world.memory.ask(asked)
    return world.cycle().answers["2"]


def drifts(world: World) -> list[tuple[str, str]]:
    """Return subjects and states of submissions in the last cycle's drift."""
    return sorted(
        (one.subject, one.found)
        for one in world.memory.drift
        if one.kind == "submission-not-committed"
    )


def subjects(world: World) -> list[str]:
    """Return what is kept, in order."""
    return [one.subject for one in world.memory.overrides]


@pytest.fixture
def world() -> World:
    """Return a cluster in which job ``known`` is in git."""
    made = World()
    made.commit(job("known"))
    made.settle()
    return made


def test_it_waits_over_a_new_leader_starts_nothing_and_ends_with_its_commit(world: World) -> None:
    assert put(world, waiting(world, "b"), waiting(world, "a")) == ""
    succeed_leader(world)
    world.settle()
    assert subjects(world) == ["b", "a"], "in the order of submission"
    assert set(world.memory.jobs) == {"known"}
    assert drifts(world) == [("a", "waits for git"), ("b", "waits for git")]
    assert settle(world, "b", commit="c" * 40) == ""
    assert subjects(world) == ["a"]
    assert world.events("SubmissionCommitted") == ["b"]
    assert "does not wait any more" in settle(world, "b", commit="c" * 40)
    assert world.events("SubmissionCommitted") == ["b"], "it ends once"


def test_a_refused_one_is_listed_for_a_while_and_its_text_is_not_kept(world: World) -> None:
    put(world, waiting(world, "a"), waiting(world, "b"))
    assert settle(world, "a", refused="no role allows it") == ""
    assert drifts(world) == [("a", "refused"), ("b", "waits for git")]
    kept = world.memory.overrides[0].submission
    assert kept == records.Submission("id-a", "", "no role allows it")
    assert world.events("SubmissionRefused") == ["a"]
    assert put(world, waiting(world, "a", text="better")) == "", "it may be submitted again"
    assert subjects(world) == ["b", "a"]
    settle(world, "a", refused="still not")
    world.advance(1001)
    assert subjects(world) == []
    assert world.events("SubmissionRefused") == ["a", "a", "b"], "of the wait that was too long"


def test_a_name_is_taken_once(world: World) -> None:
    assert put(world, waiting(world, "a")) == ""
    assert put(world, waiting(world, "a")) == "", "whoever got no answer asks again"
    assert world.events("SubmissionQueued") == ["a"]
    assert "another submission of Job/a, by ada, waits" in put(world, waiting(world, "a", text="x"))
    assert "another submission" in put(world, waiting(world, "a", owner="bob"))
    assert "Job/known is in git already" in put(world, waiting(world, "b"), waiting(world, "known"))
    assert subjects(world) == ["a"], "all or none"


def test_it_can_be_withdrawn(world: World) -> None:
    put(world, waiting(world, "a"))
    world.memory.ask(records.ClearOverride("3", "submit", "a", "bob"))
    assert world.cycle().answers["3"] == ""
    assert subjects(world) == []
    assert world.events("SubmissionWithdrawn") == ["a"]
    assert "does not wait any more" in settle(world, "a", commit="c" * 40)


def test_they_are_bounded_by_number_and_size_of_one_and_of_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "OWNER_SUBMISSIONS_MAX", 2)
    monkeypatch.setattr(records, "SUBMISSIONS_MAX", 3)
    monkeypatch.setattr(records, "OWNER_SUBMISSION_BYTES_MAX", 20)
    monkeypatch.setattr(records, "SUBMISSION_BYTES_MAX", 27)
    assert "21 bytes" in put(world, waiting(world, "long", text="x" * 21))
    assert put(world, waiting(world, "a"), waiting(world, "b")) == ""
    assert "3 submissions of 12 bytes would wait for git, of ada" in put(world, waiting(world, "c"))
    assert put(world, waiting(world, "c", "bob")) == ""
    assert "of all" in put(world, waiting(world, "d", "eve"))
    settle(world, "a", refused="no")
    assert "of all" in put(world, waiting(world, "e", "eve", "x" * 20)), "28 bytes"
    assert put(world, waiting(world, "d", "eve")) == "", "a refused one takes no room"


def test_few_refused_ones_are_listed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "REFUSED_SUBMISSIONS_MAX", 2)
    put(world, *(waiting(world, name) for name in "abc"))
    for name in "abc":
        settle(world, name, refused="no")
    assert subjects(world) == ["b", "c"]


def test_overrides_are_stored_as_by_versions_without_submissions() -> None:
    one = records.Override("drain", "n0", "smoke", "ada", 1.0, 2.0)
    assert "submission" not in msgspec.to_builtins(one)
