"""Submissions that git can't take now: they wait in the loop's store until it can.

A submission is always tried first. Only if git can't be reached is it kept, among the overrides,
and the answer says that it is not committed. ``queued_submissions`` commits it later.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence

import msgspec

from reconciler.model.state import records
from reconciler.operations.changes import remote_changes
from reconciler.server import errors
from reconciler.server.override_requests import OverrideRequests

#: How long git may take before a submission waits for it instead.
GIT_PATIENCE_S = 20.0
#: Status of a submission that is kept, and not committed.
ACCEPTED = 202
#: What is said of it.
WAITS = "accepted; waits for git: it is not committed yet, and does not start before"
#: What is said if a submission is not kept, and its first push goes on.
UNDER_WAY = "; a push of it is under way, and may commit it all the same"
#: The most characters of what git said that are kept.
_REASON_CHARACTERS_MAX = 300


class WaitingSubmissions:
    """Tries submissions as commits, and keeps those that git can't take now.

    Args:
        requests: asks the loop to keep them.
        clock: returns seconds since the epoch.
        patience_s: how long git may take.
    """

    def __init__(
        self,
        requests: OverrideRequests,
        clock: Callable[[], float] = time.time,
        patience_s: float = GIT_PATIENCE_S,
    ) -> None:
        self._requests = requests
        self._clock = clock
        self._patience_s = patience_s

    async def submit(
        self,
        submitter: remote_changes.Submitter,
        documents: list[remote_changes.SubmittedDocument],
    ) -> list[remote_changes.RemoteChangeResult]:
        """Return one result for each submission, in order: all are pushed, or kept, or none.

        Raises:
            Failure: the loop can't be asked to keep them.
        """
        documents = _identified(documents)
        pushing = asyncio.ensure_future(submitter.submit(documents, together=True))
        done, _ = await asyncio.wait({pushing}, timeout=self._patience_s)
        more = ""
        if done:
            results = pushing.result()
            if not any(one.is_away for one in results):
                return results
            why = next(one.message for one in results if one.is_away)
        else:
            why = f"git has not answered within {self._patience_s:.0f} s"
            # what is pushed after all is recognised by its id when it is to be committed
            more = "" if submitter.drop(documents) else UNDER_WAY
        try:
            refused = await self._requests.ask(self._request(documents, why))
        except errors.Failure as failure:
            message = f"{failure.message}{more}"
            raise errors.Failure(
                failure.status, message, retry_after_s=failure.retry_after_s
            ) from None
        if refused:
            message = f"{why}; and it can't wait for git: {refused}{more}"
            return [remote_changes.RemoteChangeResult(one.name, 503, message) for one in documents]
        told = f"{WAITS}: {_line(why)}"
        return [remote_changes.RemoteChangeResult(one.name, ACCEPTED, told) for one in documents]

    def _request(
        self, documents: Sequence[remote_changes.SubmittedDocument], why: str
    ) -> records.QueueSubmissions:
        now = self._clock()
        items = tuple(
            records.Override(
                *("submit", one.name, _line(why), one.identity),
                *(now, now + records.SUBMISSION_S_MAX),
                submission=records.Submission(one.submission or secrets.token_hex(8), one.text),
            )
            for one in documents
        )
        return records.QueueSubmissions(secrets.token_hex(8), items)


def _line(why: str) -> str:
    """Return what git said on one line, cut after some."""
    return " ".join(why.split())[:_REASON_CHARACTERS_MAX].rstrip(". ")


def _identified(
    documents: list[remote_changes.SubmittedDocument],
) -> list[remote_changes.SubmittedDocument]:
    """Return submissions with an id each, unless they are too many to wait."""
    if len(documents) > records.OWNER_SUBMISSIONS_MAX:
        return documents
    return [msgspec.structs.replace(one, submission=secrets.token_hex(8)) for one in documents]
