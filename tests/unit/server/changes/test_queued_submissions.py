"""What has waited for git is judged again by itself, and what is refused costs others nothing."""

import asyncio
from typing import Any

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.state import records
from reconciler.operations.changes import remote_changes
from reconciler.server.auth import tokens
from reconciler.server.changes import change_review, queued_submissions
from reconciler.store import StoreError


class Around:
    """Store, submitter, review, loop, tokens and hints of a queue, which note what they get."""

    def __init__(self, *names: str) -> None:
        self.kept = {name: _waiting(name) for name in names}
        self.tried: list[str] = []
        self.settled: dict[str, records.SettleSubmission] = {}
        self.results: dict[str, remote_changes.RemoteChangeResult] = {}
        self.errors: dict[str, Exception] = {}
        self.breaks = ""
        self.reader = self
        around: Any = self
        self._queue = queued_submissions.QueuedSubmissions(
            around, around, around, requests=around, gate=around, hints=around
        )

    def overrides(self) -> list[records.Override]:
        """Return what waits."""
        return list(self.kept.values())

    def holder(self, name: str) -> tokens.Caller:
        """Let everybody have a token."""
        return tokens.Caller(name, "user")

    async def weigh(self, asked: change_review.ChangesUnderReview) -> change_review.Weighed:
        """Judge a submission, whose text is its job's name."""
        if asked.text in self.errors:
            raise self.errors[asked.text]
        found = remote_changes.SubmittedDocument("submit", asked.caller.name, asked.text)
        return change_review.Weighed([found], {}, [found])

    async def submit(
        self, documents: list[remote_changes.SubmittedDocument], *, together: bool = False
    ) -> list[remote_changes.RemoteChangeResult]:
        """Push."""
        assert not together
        self.tried += [one.name for one in documents]
        done = remote_changes.RemoteChangeResult
        if self.breaks in [one.name for one in documents]:
            return [done(one.name, 500, "an internal error while pushing") for one in documents]
        return [self.results.get(one.name, done(one.name, 200, "", "c0")) for one in documents]

    async def ask(self, request: records.OverrideRequest) -> str:
        """Settle, as the loop does."""
        assert isinstance(request, records.SettleSubmission)
        self.settled[request.subject] = request
        del self.kept[request.subject]
        return ""

    def pushed(self) -> None:
        """Take a hint that something was pushed."""

    def look(self, times: int = 1) -> None:
        """Have a queue look so often."""

        async def looking() -> None:
            for _ in range(times):
                await self._queue.look()

        asyncio.run(looking())


def _waiting(name: str) -> records.Override:
    submission = records.Submission(f"id-{name}", name)
    return records.Override("submit", name, "git is away", "a@x", 0.0, 9e9, submission=submission)


def test_why_a_submission_is_refused_quotes_to_nobody_what_it_runs() -> None:
    around = Around("a")
    said = desired.Problem("policy", "error", "submission", "no tokens", object="Job/a")
    quoted = msgspec.structs.replace(said, field="spec.environment.TOKEN", found='"hunter2"')
    shown = msgspec.structs.replace(said, field="spec.timeLimit", found='"9d"')
    around.errors["a"] = remote_changes.InvalidError("2 problems", (quoted, shown))
    around.look()
    refused = around.settled["a"].refused
    assert "hunter2" not in refused
    assert "spec.environment.TOKEN" in refused
    assert 'found "9d"' in refused


def test_an_internal_error_of_one_costs_the_others_nothing_and_refuses_it_in_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    around = Around("bad", "b", "c")
    around.errors["bad"] = RuntimeError("met by this document alone")
    around.look()
    assert sorted(around.settled) == ["b", "c"]
    around.look(queued_submissions.FAILURES_MAX - 1)
    assert around.settled["bad"].refused.startswith("an internal error, 5 times in a row")
    assert "met by" not in around.settled["bad"].refused
    assert caplog.text.count("met by this document alone") == 2, "once, as message and in the trace"


def test_what_breaks_a_push_is_found_alone() -> None:
    around = Around("b", "bad", "c")
    around.breaks = "bad"
    around.look(queued_submissions.FAILURES_MAX)
    assert sorted(around.settled) == ["b", "bad", "c"]
    assert around.settled["b"].commit == around.settled["c"].commit == "c0"
    assert around.settled["bad"].refused


def test_what_the_repository_refuses_is_refused_and_what_it_can_not_take_waits_on() -> None:
    around = Around("refused", "b", "undecided", "away")
    result = remote_changes.RemoteChangeResult
    around.results["refused"] = result("refused", 403, "the repository refuses it")
    around.results["undecided"] = result("undecided", 503, "the rules can't be read")
    around.results["away"] = result("away", 503, "git is away", is_away=True)
    around.look(10)
    assert list(around.kept) == ["undecided", "away"]
    assert around.settled["refused"].refused == "the repository refuses it"
    assert around.settled["b"].commit == "c0"


def test_a_store_that_can_not_be_read_ends_a_look_and_refuses_nothing() -> None:
    around = Around("a")
    around.errors["a"] = StoreError("busy")
    with pytest.raises(StoreError):
        around.look()
    assert not around.settled
