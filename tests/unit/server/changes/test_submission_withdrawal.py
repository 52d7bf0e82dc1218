"""Withdrawals of submissions that wait for git: what becomes of each is a result of its own."""

import asyncio
import types
from typing import Any

import pytest

from reconciler.model import desired
from reconciler.model.protocol import loop_messages
from reconciler.model.state import records, states
from reconciler.operations.changes import remote_changes
from reconciler.server.auth import tokens
from reconciler.server.changes import submission_withdrawal
from reconciler.server.loop_link import LinkDownError
from reconciler.server.override_requests import OverrideRequests

CALLER = tokens.Caller("a@example.org", "user")
CANCEL = remote_changes.SubmittedDocument("cancel", CALLER.name, "train")


def kept(refused: str = "") -> records.Override:
    submission = records.Submission("s1", "", refused)
    return records.Override(
        "submit", "train", "no answer", CALLER.name, 0.0, 9.0, submission=submission
    )


@pytest.mark.parametrize(
    ("refused", "told"),
    [("", submission_withdrawal.DONE), ("it is there", submission_withdrawal.FORGOTTEN)],
)
def test_only_what_waited_may_still_be_committed(refused: str, told: str) -> None:
    def answer(asked: loop_messages.OverrideAsked) -> None:
        requests.answered(loop_messages.OverrideAnswered(asked.request.id, ""))

    requests = OverrideRequests(answer)
    nothing: Any = None
    notes: Any = types.SimpleNamespace(note=lambda *_: None)
    way = submission_withdrawal.SubmissionWithdrawal(nothing, requests, notes)
    result = asyncio.run(way.withdraw(CALLER, CANCEL, kept(refused)))
    assert (result.status, result.message) == (200, told)


def test_a_loop_that_cannot_be_asked_is_a_result_beside_what_was_committed() -> None:
    def down(_: loop_messages.OverrideAsked) -> None:
        raise LinkDownError("the loop is away")

    nothing: Any = None
    way = submission_withdrawal.SubmissionWithdrawal(nothing, OverrideRequests(down), nothing)
    result = asyncio.run(way.withdraw(CALLER, CANCEL, kept()))
    assert (result.name, result.status, result.message) == ("train", 503, "the loop is away")


@pytest.mark.parametrize(
    ("owner", "state", "is_found"),
    [
        (CALLER.name, states.JobState.RUNNING, True),
        ("b@example.org", states.JobState.RUNNING, False),
        ("b@example.org", states.JobState.SUCCEEDED, True),
    ],
)
def test_who_cancels_a_live_job_withdraws_no_submission_of_somebody_else(
    owner: str, state: states.JobState, *, is_found: bool
) -> None:
    """Of a name whose job has ended the submission is what is meant."""
    spec = desired.Job("train", 1, "0", "default", (), owner=owner)
    record = records.JobRecord(spec, state, b"", 0.0, ended_at=None)
    reader = types.SimpleNamespace(overrides=lambda: [kept()], job=lambda _: record)
    store: Any = types.SimpleNamespace(reader=reader)
    nothing: Any = None
    way = submission_withdrawal.SubmissionWithdrawal(store, nothing, nothing)
    assert set(asyncio.run(way.those([CANCEL]))) == ({0} if is_found else set())
