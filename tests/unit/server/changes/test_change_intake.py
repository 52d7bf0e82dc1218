"""Changes are pushed all or none, and what stays is said, each reason once."""

import asyncio
from typing import Any

import pytest

from reconciler.model.protocol import loop_messages
from reconciler.operations.changes import held_changes, remote_changes
from reconciler.server import errors
from reconciler.server.auth import tokens
from reconciler.server.changes import change_intake, change_review, ephemeral_intake

NOT_LED = held_changes.not_led("the controller on vm leads")
CALLER = tokens.Caller("a@example.org", "user")


class Surroundings:
    """Review, submitter, hints, audit and link of an intake, which note what they get."""

    published: loop_messages.Published | None = None

    def __init__(self, *, refused: dict[int, str] | None = None, withheld: str = "") -> None:
        self.refused = refused or {}
        self.withheld = withheld
        self.results: dict[str, remote_changes.RemoteChangeResult] = {}
        self.submitted: list[str] = []
        self.hints = 0
        self.notes: list[tuple[str, ...]] = []

    async def weigh(self, asked: change_review.ChangesUnderReview) -> change_review.Weighed:
        """Let all changes pass that are not refused."""
        wanted = [one for at, one in enumerate(asked.changes) if at not in self.refused]
        return change_review.Weighed(asked.changes, self.refused, wanted)

    async def told(self, _verb: remote_changes.Verb) -> str:
        """Return why commits do not apply."""
        return self.withheld

    async def submit(
        self, documents: list[remote_changes.SubmittedDocument], *, together: bool = False
    ) -> list[remote_changes.RemoteChangeResult]:
        """Push."""
        self.submitted += [one.name for one in documents]
        pushed = remote_changes.RemoteChangeResult
        return [self.results.get(n.name, pushed(n.name, 200, "", "c")) for n in documents]

    async def takes(self, *_: object) -> bool:
        """Let all jobs have a file in git."""
        return False

    async def alive(self, names: list[str]) -> set[str]:
        """Know one job without a file in git that has not ended."""
        return {"alive"}.intersection(names)

    async def those(self, _: object) -> list[int]:
        """Know no job without a file in git."""
        return []

    def pushed(self) -> None:
        """Take a hint."""
        self.hints += 1

    def note(self, *words: str) -> None:
        """Take an entry."""
        self.notes.append(words)

    def intake(self) -> change_intake.ChangeIntake:
        """An intake with all of this around it."""
        around: Any = self
        return change_intake.ChangeIntake(
            *(around, around, around, around, around),
            uncommitted=change_intake.UncommittedWays(around, around),
            ephemeral=around,
        )

    def push(self, verb: remote_changes.Verb, *names: str) -> change_intake.Results:
        """Ask for a change of each name."""
        changes = [remote_changes.SubmittedDocument(verb, CALLER.name, name) for name in names]
        asked = change_review.ChangesUnderReview(CALLER, changes)
        return asyncio.run(self.intake().push(asked))


def test_what_is_pushed_is_hinted_at() -> None:
    around = Surroundings()
    results = around.push("cancel", "a", "b")
    assert [(one.name, one.status, one.commit) for one in results.items] == [
        ("a", 200, "c"),
        ("b", 200, "c"),
    ]
    assert (around.submitted, around.hints, around.notes) == (["a", "b"], 1, [])


def test_one_refusal_keeps_all_from_being_pushed() -> None:
    around = Surroundings(refused={1: "no rule allows it"})
    with pytest.raises(errors.Failure) as failed:
        around.push("cancel", "a", "b")
    assert failed.value.status == 403
    assert failed.value.message == "b: no rule allows it; nothing was changed"
    assert (around.submitted, around.hints) == ([], 0)


def test_a_file_that_stays_keeps_no_other_one_and_is_written_down() -> None:
    around = Surroundings(refused={0: "no rule allows it"})
    results = around.push("prune", "a", "b")
    assert [(one.name, one.status) for one in results.items] == [("a", 403), ("b", 200)]
    why = change_intake.STAYS + "no rule allows it"
    assert around.submitted == ["b"]
    assert around.notes == [("Forbidden", CALLER.name, "", "prune a", why)]


def test_a_reason_of_many_is_said_once_and_a_pusher_that_is_away_is_worth_another_try() -> None:
    around = Surroundings()
    for name in ("a", "b"):
        around.results[name] = remote_changes.RemoteChangeResult(name, 503, "git is away")
    with pytest.raises(errors.Failure) as failed:
        around.push("cancel", "a", "b", "c")
    assert failed.value.message == "a, b: git is away; 1 of 3 were pushed"
    assert failed.value.retry_after_s == 1.0


def test_only_what_is_committed_can_be_held() -> None:
    around = Surroundings(withheld="held")
    around.results["b"] = remote_changes.RemoteChangeResult("b", 200, "it is so already")
    results = around.push("drain", "a", "b")
    judged = asyncio.run(around.intake().judged(results, "drain"))
    assert [one.message for one in judged.items] == ["held", "it is so already"]


@pytest.mark.parametrize(
    ("verb", "blocked", "warned"),
    [
        ("submit", "the controller on vm leads", [[NOT_LED], []]),
        ("submit", "", [[], []]),
        ("cancel", "the controller on vm leads", [[], []]),
    ],
)
def test_who_submits_to_a_controller_that_leads_nothing_is_warned(
    verb: remote_changes.Verb, blocked: str, warned: list[list[str]]
) -> None:
    around = Surroundings()
    around.results["b"] = remote_changes.RemoteChangeResult("b", 200, "it is so already")
    results = around.push("cancel", "a", "b")
    around.published = loop_messages.Published(
        epoch=1, cycle=1, at=1.0, ready=True, poll_s=1.0, metrics=b"", blocked=blocked
    )
    judged = asyncio.run(around.intake().judged(results, verb))
    assert [one.warnings for one in judged.items] == warned


def test_without_a_repository_nothing_is_taken() -> None:
    around: Any = Surroundings()
    intake = change_intake.ChangeIntake(
        None,
        around,
        around,
        around,
        around,
        uncommitted=change_intake.UncommittedWays(around, around),
        ephemeral=around,
    )
    with pytest.raises(errors.Failure) as failed:
        intake.require_repository()
    assert failed.value.status == 501


def test_who_submits_a_name_of_a_job_that_is_not_in_git_is_told_that_it_waits() -> None:
    around = Surroundings()
    results = around.push("release", "alive", "new")  # they are pushed alike
    judged = asyncio.run(around.intake().judged(results, "submit"))
    assert [one.warnings for one in judged.items] == [[ephemeral_intake.WAITS], []]
