"""Withdrawals of submissions that wait for git: what becomes of each is a result of its own."""

import asyncio
from typing import Any

from reconciler.model.protocol import loop_messages
from reconciler.operations.changes import remote_changes
from reconciler.server.auth import tokens
from reconciler.server.changes import submission_withdrawal
from reconciler.server.loop_link import LinkDownError
from reconciler.server.override_requests import OverrideRequests

CALLER = tokens.Caller("a@example.org", "user")
CANCEL = remote_changes.SubmittedDocument("cancel", CALLER.name, "train")


def test_a_loop_that_cannot_be_asked_is_a_result_beside_what_was_committed() -> None:
    def down(_: loop_messages.OverrideAsked) -> None:
        raise LinkDownError("the loop is away")

    nothing: Any = None
    way = submission_withdrawal.SubmissionWithdrawal(nothing, OverrideRequests(down), nothing)
    result = asyncio.run(way.withdraw(CALLER, CANCEL))
    assert (result.name, result.status, result.message) == ("train", 503, "the loop is away")
