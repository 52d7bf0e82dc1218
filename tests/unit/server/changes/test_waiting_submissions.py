"""A submission is tried first; what git can't take now is kept, or said to be impossible."""

import asyncio

import pytest

from reconciler.model.protocol import loop_messages
from reconciler.model.state import records
from reconciler.operations.changes import remote_changes
from reconciler.server import errors, loop_link, override_requests
from reconciler.server.changes import waiting_submissions

DOCUMENTS = [remote_changes.SubmittedDocument("submit", "ada@x.org", "a", "text")]


class _Git:
    """A submitter that gives one answer, or none; it takes back what it is told, or has begun."""

    def __init__(
        self, answer: remote_changes.RemoteChangeResult | None, *, drops: bool = False
    ) -> None:
        self._answer = answer
        self._drops = drops
        self.submitted: list[remote_changes.SubmittedDocument] = []
        self.dropped = False

    async def submit(
        self, documents: list[remote_changes.SubmittedDocument], *, together: bool = False
    ) -> list[remote_changes.RemoteChangeResult]:
        assert together
        self.submitted = documents
        if self._answer is None:
            await asyncio.Event().wait()
        return [self._answer or remote_changes.RemoteChangeResult("", 500)] * len(documents)

    def drop(self, documents: list[remote_changes.SubmittedDocument]) -> bool:
        """Take back what was submitted, unless its push has begun."""
        assert documents is self.submitted
        self.dropped = self._drops
        return self._drops

    async def run(self) -> None:
        """Do nothing in the background."""


def submitted(
    git: _Git, refused: str = ""
) -> tuple[remote_changes.RemoteChangeResult, list[records.Override]]:
    """Submit a job. Return the answer, and what the loop was asked to keep."""
    kept: list[records.Override] = []

    def send(asked: loop_messages.OverrideAsked) -> None:
        assert isinstance(asked.request, records.QueueSubmissions)
        kept.extend(asked.request.items)
        requests.answered(loop_messages.OverrideAnswered(asked.request.id, refused))

    requests = override_requests.OverrideRequests(send)
    waiting = waiting_submissions.WaitingSubmissions(requests, lambda: 5.0, patience_s=0.05)
    (result,) = asyncio.run(waiting.submit(git, list(DOCUMENTS)))
    return result, kept


@pytest.mark.parametrize(
    "answer",
    [
        remote_changes.RemoteChangeResult("a", 200, "", "c"),
        remote_changes.RemoteChangeResult("a", 409, "another document"),
        remote_changes.RemoteChangeResult("a", 503, "the rules can't be read"),
    ],
)
def test_what_git_answers_is_the_answer(answer: remote_changes.RemoteChangeResult) -> None:
    assert submitted(_Git(answer)) == (answer, [])


@pytest.mark.parametrize(
    "answer", [remote_changes.RemoteChangeResult("a", 503, "git is away", is_away=True), None]
)
def test_what_git_can_not_take_now_waits(answer: remote_changes.RemoteChangeResult | None) -> None:
    result, (kept,) = submitted(_Git(answer))
    assert (result.status, result.commit) == (202, None)
    assert result.message == f"{waiting_submissions.WAITS}: {kept.reason}"
    assert (kept.verb, kept.subject, kept.owner, kept.made_at) == ("submit", "a", "ada@x.org", 5.0)
    assert kept.reason in {"git is away", "git has not answered within 0 s"}
    assert kept.waiting is not None
    assert kept.waiting.text == "text"


def test_without_room_it_is_refused_with_both_reasons() -> None:
    result, _ = submitted(
        _Git(remote_changes.RemoteChangeResult("a", 503, "git is away", is_away=True)),
        "too many wait",
    )
    assert result.status == 503
    assert result.message == "git is away; and it can't wait for git: too many wait"


def test_a_push_that_has_begun_is_told_of_and_known_by_the_id_that_waits() -> None:
    git = _Git(None)
    result, (kept,) = submitted(git, "too many wait")
    assert result.message.endswith(f"too many wait{waiting_submissions.UNDER_WAY}")
    assert kept.waiting is not None
    assert kept.waiting.id == git.submitted[0].submission != ""
    assert git.submitted[0].waited_since == 0.0


@pytest.mark.parametrize("refused", ["", "too many wait"])
def test_what_waits_or_is_refused_is_not_pushed_later_by_its_first_try(refused: str) -> None:
    git = _Git(None, drops=True)
    result, _ = submitted(git, refused)
    assert result.status == (503 if refused else 202)
    assert waiting_submissions.UNDER_WAY not in result.message
    assert git.dropped


def test_a_loop_that_does_not_answer_is_told_with_the_push_that_goes_on() -> None:
    def send(_: loop_messages.OverrideAsked) -> None:
        raise loop_link.LinkDownError("the loop is away")

    requests = override_requests.OverrideRequests(send)
    waiting = waiting_submissions.WaitingSubmissions(requests, lambda: 5.0, patience_s=0.0)
    with pytest.raises(errors.Failure) as failed:
        asyncio.run(waiting.submit(_Git(None), list(DOCUMENTS)))
    assert failed.value.message == f"the loop is away{waiting_submissions.UNDER_WAY}"


def test_submissions_that_are_too_many_to_wait_have_no_id() -> None:
    git = _Git(remote_changes.RemoteChangeResult("a", 200, "", "c"))
    requests = override_requests.OverrideRequests(lambda _: None)
    waiting = waiting_submissions.WaitingSubmissions(requests)
    asyncio.run(waiting.submit(git, DOCUMENTS * (records.OWNER_SUBMISSIONS_MAX + 1)))
    assert {one.submission for one in git.submitted} == {""}
