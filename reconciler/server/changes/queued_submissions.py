"""Commits submissions that have waited for git, in the order in which they came.

Each is judged again as if it came now, with the rights that its owner has now. What may not be
committed any more is refused, and never stops those behind it. A submission is looked for in the
history by its id before it is committed, so that a controller that was killed commits none twice.
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

_LOG = logging.getLogger("muster.submissions")

#: How often git is tried while submissions wait, and how often it is looked if any do.
LOOK_EVERY_S = 3.0
#: The most submissions that are tried at once.
TRIED_MAX = 100
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
        results = await self._submitter.submit(wanted)
        committed: dict[int, str] = {}
        for place, result in zip(places, results, strict=True):
            if result.commit is not None and result.status < 300:
                committed[place] = result.commit
            elif result.status < 500:
                refused[place] = result.message
        if committed:
            self._hints.pushed()
        for place in sorted(committed.keys() | refused.keys()):
            await self._settle(waiting[place], committed.get(place, ""), refused.get(place, ""))
        return not any(one.is_away for one in results)

    async def _judged(self, one: records.Override) -> remote_changes.SubmittedDocument | str | None:
        """Return what to commit, or why it may not be; None: that can't be judged now."""
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
