"""A submission is tried first; what git can't take now is kept, or said to be impossible."""

import asyncio

import pytest

from reconciler.model.protocol import loop_messages
from reconciler.model.state import records
from reconciler.operations.changes import remote_changes
from reconciler.server import override_requests
from reconciler.server.changes import waiting_submissions

DOCUMENTS = [remote_changes.SubmittedDocument("submit", "ada@x.org", "a", "text")]


class _Git:
    """A submitter that gives one answer, or none."""

    def __init__(self, answer: remote_changes.RemoteChangeResult | None) -> None:
        self._answer = answer

    async def submit(
        self, documents: list[remote_changes.SubmittedDocument], *, together: bool = False
    ) -> list[remote_changes.RemoteChangeResult]:
        assert together
        if self._answer is None:
            await asyncio.Event().wait()
        return [self._answer or remote_changes.RemoteChangeResult("", 500)] * len(documents)

    async def run(self) -> None:
        """Do nothing in the background."""


def submitted(
    answer: remote_changes.RemoteChangeResult | None, refused: str = ""
) -> tuple[remote_changes.RemoteChangeResult, list[records.Override]]:
    """Submit a job. Return the answer, and what the loop was asked to keep."""
    kept: list[records.Override] = []

    def send(asked: loop_messages.OverrideAsked) -> None:
        assert isinstance(asked.request, records.QueueSubmissions)
        kept.extend(asked.request.items)
        requests.answered(loop_messages.OverrideAnswered(asked.request.id, refused))

    requests = override_requests.OverrideRequests(send)
    waiting = waiting_submissions.WaitingSubmissions(requests, lambda: 5.0, patience_s=0.05)
    (result,) = asyncio.run(waiting.submit(_Git(answer), list(DOCUMENTS)))
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
    assert submitted(answer) == (answer, [])


@pytest.mark.parametrize(
    "answer", [remote_changes.RemoteChangeResult("a", 503, "git is away", is_away=True), None]
)
def test_what_git_can_not_take_now_waits(answer: remote_changes.RemoteChangeResult | None) -> None:
    result, (kept,) = submitted(answer)
    assert (result.status, result.commit) == (202, None)
    assert result.message == waiting_submissions.WAITS
    assert (kept.verb, kept.subject, kept.owner, kept.made_at) == ("submit", "a", "ada@x.org", 5.0)
    assert kept.reason in {"git is away", "git has not answered within 0 s"}
    assert kept.waiting is not None
    assert kept.waiting.text == "text"


def test_without_room_it_is_refused_with_both_reasons() -> None:
    result, _ = submitted(
        remote_changes.RemoteChangeResult("a", 503, "git is away", is_away=True), "too many wait"
    )
    assert result.status == 503
    assert result.message == "git is away; and it can't wait for git: too many wait"
