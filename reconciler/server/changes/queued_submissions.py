"""Commits submissions that have waited for git, in the order in which they came.

Each is judged again as if it came now, with the rights that its owner has now. What may not be
committed any more is refused, and never stops those behind it: nor does what meets an internal
error. A submission is looked for in the history by its id before it is committed, so that a
controller that was killed commits none twice.
"""

import asyncio
import logging
import secrets
from collections.abc import Sequence

import msgspec

from reconciler.model.rules import redaction
from reconciler.model.state import records
from reconciler.operations.changes import remote_changes
from reconciler.server import errors
from reconciler.server.auth import authentication, authorization
from reconciler.server.changes import change_review
from reconciler.server.override_requests import OverrideRequests
from reconciler.server.repository_hints import RepositoryHints
from reconciler.server.server_store import ServerStore
from reconciler.store import StoreError

#: Status of what met an internal error.
_DEFECT = 500
_LOG = logging.getLogger("muster.submissions")

#: How often git is tried while submissions wait, and how often it is looked if any do.
LOOK_EVERY_S = 3.0
#: The most submissions that are tried at once.
TRIED_MAX = 100
#: How many internal errors in a row refuse a submission.
FAILURES_MAX = 5
#: The most characters of a refusal that are kept.
_REFUSAL_CHARACTERS_MAX = 1000


class QueuedSubmissions:
    """Looks now and then if submissions wait, and tries to commit them.

    Args:
        store: has the submissions that wait.
        submitter: pushes.
        review: judges each again.
        requests: tells the loop what has become of each.
        gate: knows who still has a token.
        hints: have the loop look at what was pushed.
    """

    def __init__(
        self,
        store: ServerStore,
        submitter: remote_changes.Submitter,
        review: change_review.ChangeReview,
        *,
        requests: OverrideRequests,
        gate: authentication.Authenticator,
        hints: RepositoryHints,
    ) -> None:
        self._store = store
        self._submitter = submitter
        self._review = review
        self._requests = requests
        self._gate = gate
        self._hints = hints
        #: How often an internal error met a submission that waits, by its id.
        self._failures: dict[str, int] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.look()
            except (StoreError, errors.Failure) as error:
                _LOG.warning("submissions wait on: %s", error)
            except Exception:
                _LOG.exception("an internal error keeps submissions waiting")

    async def look(self) -> None:
        """Try to commit what waits, until git can't be reached or nothing is left.

        Raises:
            StoreError: the store can't be read now.
            Failure: the loop can't be told, or too many wait for a review.
        """
        waiting = await asyncio.to_thread(self._waiting)
        ids = {one.waiting.id for one in waiting if one.waiting is not None}
        self._failures = {one: often for one, often in self._failures.items() if one in ids}
        for start in range(0, len(waiting), TRIED_MAX):
            if not await self._try(waiting[start : start + TRIED_MAX]):
                return

    def _waiting(self) -> list[records.Override]:
        """Return the submissions that wait, in order."""
        return [one for one in self._store.reader.overrides() if one.waiting is not None]

    async def _try(self, waiting: Sequence[records.Override]) -> bool:
        """Try to commit some. Return False if the others have to wait on."""
        refused: dict[int, str] = {}
        wanted: list[remote_changes.SubmittedDocument] = []
        places: list[int] = []
        for place, one in enumerate(waiting):
            found = await self._judged(one)
            if isinstance(found, str):
                refused[place] = found
            elif found is not None:
                wanted.append(found)
                places.append(place)
        results = await self._pushed(wanted)
        committed: dict[int, str] = {}
        for place, result in zip(places, results, strict=True):
            if result.commit is not None and result.status < 300:
                committed[place] = result.commit
            elif result.status < 500:
                refused[place] = result.message
            elif result.status == _DEFECT and (why := self._failed(waiting[place], result.message)):
                refused[place] = why
        if committed:
            self._hints.pushed()
        for place in sorted(committed.keys() | refused.keys()):
            await self._settle(waiting[place], committed.get(place, ""), refused.get(place, ""))
        return not any(one.is_away for one in results)

    async def _pushed(
        self, wanted: list[remote_changes.SubmittedDocument]
    ) -> list[remote_changes.RemoteChangeResult]:
        """Push submissions, and those that met an internal error again, each by itself."""
        results = await self._submitter.submit(wanted)
        if len(wanted) > 1:
            for place, result in enumerate(results):
                if result.status == _DEFECT:
                    (results[place],) = await self._submitter.submit([wanted[place]])
        return results

    def _failed(self, one: records.Override, what: object) -> str | None:
        """Note an internal error. Return why it refuses the submission, after some."""
        submission = one.waiting.id if one.waiting is not None else ""
        often = self._failures[submission] = self._failures.get(submission, 0) + 1
        if often == 1:
            error = what if isinstance(what, Exception) else None
            _LOG.error("Job/%s waits for git on: %s", one.subject, what, exc_info=error)
        if often < FAILURES_MAX:
            return None
        return f"an internal error, {often} times in a row; see the controller's log"

    async def _judged(self, one: records.Override) -> remote_changes.SubmittedDocument | str | None:
        """Return what to commit, or why it may not be; None: that can't be judged now."""
        try:
            return await self._reviewed(one)
        except (StoreError, errors.Failure):
            raise
        except Exception as error:  # it is one submission's, and costs the others nothing
            return self._failed(one, error)

    async def _reviewed(
        self, one: records.Override
    ) -> remote_changes.SubmittedDocument | str | None:
        """Return the same, or raise whatever error a review can."""
        submission = one.waiting
        if submission is None:
            return None
        caller = await asyncio.to_thread(self._gate.holder, one.owner)
        if caller is None:
            return f"{one.owner} has no token any more"
        asked = change_review.ChangesUnderReview(caller, text=submission.text)
        try:
            changes, refused, wanted = await self._review.weigh(asked)
        except remote_changes.InvalidError as error:
            # everybody sees why: what the job runs, and with what, is not quoted
            problems = (redaction.unquoted(one).text() for one in error.problems)
            return "; ".join([str(error), *problems])
        if authorization.NOTHING_IN_FORCE in refused.values():
            return None
        if refused:
            return next(iter(refused.values()))
        if [change.name for change in changes] != [one.subject]:
            return f"its text is not that of Job/{one.subject}"
        return msgspec.structs.replace(
            wanted[0], submission=submission.id, waited_since=one.made_at
        )

    async def _settle(self, one: records.Override, commit: str, refused: str) -> None:
        """Have the loop end a wait."""
        why = await self._requests.ask(
            records.SettleSubmission(
                *(secrets.token_hex(8), one.subject),
                one.waiting.id if one.waiting is not None else "",
                commit,
                refused[:_REFUSAL_CHARACTERS_MAX],
            )
        )
        if why:  # somebody has withdrawn it meanwhile
            _LOG.warning("%s; it is in %s", why, commit[:12] or "no commit")
