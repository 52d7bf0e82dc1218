"""The way of jobs that need no file in git: reviewed like submissions, and begun by the loop.

The review is the same that a commit by the controller gets: schema, policies, rights, signatures.
What the person then asks for is done by the loop, durable when this answers, and written into the
access log, because no commit says who it was.
"""

import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from litestar.concurrency import sync_to_thread

from reconciler.model.state import ephemeral_requests
from reconciler.operations.audit import access_audit
from reconciler.operations.changes import remote_changes
from reconciler.operations.views import stored_views
from reconciler.server import errors
from reconciler.server.auth import authorization, tokens
from reconciler.server.changes import change_review
from reconciler.server.override_requests import OverrideRequests
from reconciler.server.server_store import ServerStore

#: Said of what is done without a commit.
DONE = {
    "submit": "submitted, not in git",
    "cancel": "cancelled",
    "hold": "held",
    "release": "released",
    "rerun": "runs again, not in git",
}
WOULD = {
    "submit": "would be submitted, not in git",
    "cancel": "would be cancelled",
    "hold": "would be held",
    "release": "would be released",
    "rerun": "would run again, not in git",
}
#: Warning of a job that is committed while one of its name is alive.
WAITS = (
    "a job of this name that is not in git has not ended: this one starts after its end. To start "
    "it now: cancel the other, or use another name"
)
FORBIDDEN = (
    "the Cluster in force forbids jobs without a file in git. To fix: submit it with a commit "
    "(--commit), or have spec.ephemeral: allowed set in Cluster"
)


class RunMeant(NamedTuple):
    """The run that a change is about: its key, and whose it is."""

    key: str
    owner: str


class EphemeralIntake:
    """The way of jobs without a file in git.

    Args:
        store: has the structure in force, and the jobs.
        review: normalises what it has reviewed.
        loop: is asked.
        access_log: takes what was done.
    """

    def __init__(
        self,
        store: ServerStore,
        review: change_review.ChangeReview,
        loop: OverrideRequests,
        access_log: access_audit.AccessAudit,
    ) -> None:
        self._store = store
        self._review = review
        self._loop = loop
        self._access_log = access_log

    async def takes(
        self,
        asked: change_review.ChangesUnderReview,
        changes: Sequence[remote_changes.SubmittedDocument],
    ) -> bool:
        """Return True if reviewed jobs are to begin without a file in git.

        Raises:
            Failure: they have to, and may not.
            StoreError: the store can't be read.
        """
        if not asked.text or asked.ephemeral == "no":
            return False
        is_allowed = await sync_to_thread(self._is_allowed)
        longest = max((len(one.text.encode()) for one in changes), default=0)
        is_small = longest <= ephemeral_requests.DOCUMENT_BYTES_MAX
        if asked.ephemeral == "required":
            if not is_allowed:
                raise errors.Failure(403, FORBIDDEN)
            if not is_small:
                raise errors.Failure(
                    413,
                    f"a document of {longest} bytes; without a file in git it has at most "
                    f"{ephemeral_requests.DOCUMENT_BYTES_MAX}. To fix: submit it with a commit",
                )
        return is_allowed and is_small

    async def begin(
        self, caller: tokens.Caller, wanted: Sequence[remote_changes.SubmittedDocument]
    ) -> list[remote_changes.RemoteChangeResult]:
        """Begin reviewed jobs, all or none. Return one result for each, in order.

        Raises:
            Failure: the loop can't be asked.
            StoreError: the store can't be read.
        """
        if not wanted:
            return []
        try:
            jobs = await sync_to_thread(self._review.normalised, wanted, time.time())
        except remote_changes.UnavailableError as error:
            raise errors.Failure(503, str(error), retry_after_s=1.0) from None
        known = await sync_to_thread(self._known_keys, [one.name for one in jobs])
        new = tuple(one for one in jobs if known.get(one.name) != one.key)
        if new and not wanted[0].dry_run:
            why = await self._loop.ask(
                ephemeral_requests.BeginEphemeral(secrets.token_hex(8), caller.name, new)
            )
            if why:
                return [remote_changes.RemoteChangeResult(one.name, 409, why) for one in wanted]
            for one in new:
                what = f"submit {one.name} of {one.owner or 'nobody'}, not in git: {one.key}"
                self._access_log.note("EphemeralJob", caller.name, "", what, "")
        told = WOULD if wanted[0].dry_run else DONE
        begun = {one.name for one in new}
        return [
            remote_changes.RemoteChangeResult(
                one.name, 200, told["submit"], warnings=one.warnings, is_ephemeral=True
            )
            if one.name in begun
            else msgspec.structs.replace(
                remote_changes.submitted_before(one.name), is_ephemeral=True
            )
            for one in wanted
        ]

    async def those(
        self, changes: Sequence[remote_changes.SubmittedDocument]
    ) -> dict[int, RunMeant]:
        """Return the positions of the changes of jobs that are not in git, and the run of each.

        Who asks means what is there now: rights are judged after this.

        Raises:
            StoreError: the store can't be read.
        """
        asked = [
            position
            for position, one in enumerate(changes)
            if one.verb in ephemeral_requests.EPHEMERAL_VERBS
        ]
        if not asked:
            return {}
        return await sync_to_thread(self._ephemeral, changes, asked)

    async def alive(self, names: Sequence[str]) -> set[str]:
        """Return those of some names that jobs have which are not in git and have not ended.

        Raises:
            StoreError: the store can't be read.
        """
        return await sync_to_thread(self._alive, names) if names else set()

    async def refusals(
        self, caller: tokens.Caller, changes: Sequence[remote_changes.SubmittedDocument]
    ) -> list[remote_changes.RemoteChangeResult | None]:
        """Return why the caller may not make each change of jobs that are not in git, or None.

        Raises:
            StoreError: the store can't be read.
        """
        denied = await sync_to_thread(authorization.refusals, self._store.reader, caller, changes)
        found: list[remote_changes.RemoteChangeResult | None] = []
        for position, one in enumerate(changes):
            if position in denied:
                found.append(remote_changes.RemoteChangeResult(one.name, 403, denied[position]))
            elif one.elements or one.fresh:
                why = (
                    f"Job/{one.name} is not in git: it is cancelled, held, released or run again "
                    "as a whole, and from its checkpoints"
                )
                found.append(remote_changes.RemoteChangeResult(one.name, 409, why))
            else:
                found.append(None)
        return found

    async def change(
        self, caller: tokens.Caller, one: remote_changes.SubmittedDocument, meant: RunMeant
    ) -> remote_changes.RemoteChangeResult:
        """Have a run of a job that is not in git changed, which the caller may do.

        Raises:
            Failure: the loop can't be asked.
        """
        verb = next(verb for verb in ephemeral_requests.EPHEMERAL_VERBS if verb == one.verb)
        if one.dry_run:
            return remote_changes.RemoteChangeResult(one.name, 200, WOULD[verb], is_ephemeral=True)
        why = await self._loop.ask(
            ephemeral_requests.ChangeEphemeral(
                *(secrets.token_hex(8), verb, one.name, caller.name),
                run_key=meant.key,
                owner=meant.owner,
                reason=one.reason,
            )
        )
        if why and why != ephemeral_requests.UNCHANGED:
            return remote_changes.RemoteChangeResult(one.name, 409, why)
        if not why:
            what = f"{verb} {one.name} of {meant.owner or 'nobody'}, not in git: {meant.key}"
            self._access_log.note("EphemeralJob", caller.name, "", what, one.reason)
        return remote_changes.RemoteChangeResult(
            one.name, 200, why or DONE[verb], is_ephemeral=True
        )

    def _alive(self, names: Sequence[str]) -> set[str]:
        reader = self._store.reader
        found = {name: reader.run(one[0]) for name, one in reader.newest_states(names).items()}
        return {
            name
            for name, one in found.items()
            if one is not None and one.ephemeral and not one.finished
        }

    def _is_allowed(self) -> bool:
        structure = stored_views.stored_structure(self._store.reader.view(stored_views.STRUCTURE))
        return structure is not None and structure.settings.ephemeral

    def _known_keys(self, names: Sequence[str]) -> dict[str, str]:
        """Return the key of the newest run of each job that is known."""
        found = {name: self._store.reader.job(name) for name in names}
        return {name: one.key for name, one in found.items() if one is not None}

    def _ephemeral(
        self, changes: Sequence[remote_changes.SubmittedDocument], asked: Sequence[int]
    ) -> dict[int, RunMeant]:
        reader = self._store.reader
        found = ((position, reader.job(changes[position].name)) for position in asked)
        return {
            position: RunMeant(one.key, one.spec.owner)
            for position, one in found
            if one is not None and one.ephemeral
        }
