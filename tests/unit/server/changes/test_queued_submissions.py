"""What has waited for git is judged again by itself, and what is refused costs others nothing."""

import asyncio
from typing import Any

import msgspec

from reconciler.model import desired
from reconciler.model.state import records
from reconciler.operations.changes import remote_changes
from reconciler.server.auth import tokens
from reconciler.server.changes import change_review, queued_submissions


class Around:
    """Store, submitter, review, loop, tokens and hints of a queue, which note what they get."""

    def __init__(self, *names: str) -> None:
        self.kept = {name: _waiting(name) for name in names}
        self.pushed: list[str] = []
        self.settled: dict[str, records.SettleSubmission] = {}
        self.results: dict[str, remote_changes.RemoteChangeResult] = {}
        self.errors: dict[str, Exception] = {}
        self.reader = self
        self.hints = _Hints()

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
        self.pushed += [one.name for one in documents]
        done = remote_changes.RemoteChangeResult
        return [self.results.get(one.name, done(one.name, 200, "", "c0")) for one in documents]

    async def ask(self, request: records.OverrideRequest) -> str:
        """Settle, as the loop does."""
        assert isinstance(request, records.SettleSubmission)
        self.settled[request.subject] = request
        del self.kept[request.subject]
        return ""

    def look(self, times: int = 1) -> None:
        """Have the queue look so often."""
        around: Any = self

        async def looking() -> None:
            for _ in range(times):
                await queue.look()

        queue = queued_submissions.QueuedSubmissions(
            around, around, around, requests=around, gate=around, hints=around.hints
        )
        asyncio.run(looking())


class _Hints:
    """Hints that nobody needs."""

    def pushed(self) -> None:
        """Do nothing."""


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
