"""Cancels jobs whose submission is not in git: what waits for git is withdrawn.

A cancel of a job that git has is not for here. A job without a file in git may run while another of
its name waits for git: then both are cancelled. The loop forgets the submission, durable when this
answers; only a push that is under way may still commit it.
"""

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from litestar.concurrency import sync_to_thread

from reconciler.model.state import records
from reconciler.operations.audit import access_audit
from reconciler.operations.changes import change_requests, remote_changes
from reconciler.server import errors
from reconciler.server.auth import authorization, tokens
from reconciler.server.override_requests import OverrideRequests
from reconciler.server.server_store import ServerStore
from reconciler.store import StoreReader

DONE = "submission withdrawn; only a push that is under way may still commit it"
WOULD = "its submission would be withdrawn"
#: Of a submission that could not be committed and is only shown still.
FORGOTTEN = "its submission, which was refused, is no longer shown; what git has stays as it is"


def why_not(reader: StoreReader, caller: tokens.Caller, kept: records.Override) -> str:
    """Return why a caller may not withdraw a submission; empty if they may.

    Who submitted it may, and whoever may cancel the job that it would become.

    Raises:
        StoreError: the store can't be read.
    """
    if kept.owner == caller.name:
        return ""
    if not kept.submission:
        return f"{kept.owner} has submitted it, and nothing tells who else may withdraw it"
    asked = remote_changes.SubmittedDocument("cancel", caller.name, kept.subject)
    written = remote_changes.documents_of(kept.submission.text)
    denied = authorization.refusals(reader, caller, [asked], {kept.subject: written})
    return f"{kept.owner} has submitted it, and {denied[0]}" if denied else ""


class KeptSubmission(NamedTuple):
    """A submission whose job is cancelled.

    Attributes:
        override: what is kept of it.
        is_alone: False if there is also a job of its name to cancel, which has not ended.
    """

    override: records.Override
    is_alone: bool


class SubmissionWithdrawal:
    """The way of cancels of jobs that are submitted and not in git.

    Args:
        store: has the submissions.
        loop: is asked to forget them.
        access_log: takes what was done.
    """

    def __init__(
        self, store: ServerStore, loop: OverrideRequests, access_log: access_audit.AccessAudit
    ) -> None:
        self._store = store
        self._loop = loop
        self._access_log = access_log

    async def those(
        self, changes: Sequence[remote_changes.SubmittedDocument]
    ) -> dict[int, KeptSubmission]:
        """Return the positions of cancels that withdraw a submission, with what is kept of it.

        Raises:
            StoreError: the store can't be read.
        """
        if all(one.verb != "cancel" or one.elements for one in changes):
            return {}
        return await sync_to_thread(self._kept, changes)

    async def refusals(
        self, caller: tokens.Caller, kept: Sequence[records.Override]
    ) -> list[remote_changes.RemoteChangeResult]:
        """Return the refusals of submissions that the caller may not withdraw.

        Raises:
            StoreError: the store can't be read.
        """

        def found() -> list[remote_changes.RemoteChangeResult]:
            denied = ((one.subject, why_not(self._store.reader, caller, one)) for one in kept)
            return [
                remote_changes.RemoteChangeResult(name, 403, why) for name, why in denied if why
            ]

        return await sync_to_thread(found)

    async def withdraw(
        self,
        caller: tokens.Caller,
        one: remote_changes.SubmittedDocument,
        kept: records.Override,
    ) -> remote_changes.RemoteChangeResult:
        """Have a submission forgotten that the caller may withdraw.

        That the loop can't be asked is a result as well: others may be changed already.
        """
        if one.dry_run:
            return remote_changes.RemoteChangeResult(one.name, 200, WOULD)
        try:
            why = await self._loop.ask(
                records.ClearOverride(secrets.token_hex(8), "submit", one.name, caller.name)
            )
        except errors.Failure as failure:
            return remote_changes.RemoteChangeResult(one.name, failure.status, failure.message)
        if why:  # it was committed, or withdrawn by somebody else, since it was looked up
            return remote_changes.RemoteChangeResult(
                one.name, 409, "its submission does not wait for git any more; try again"
            )
        self._access_log.note(
            "OverrideChanged", caller.name, "", f"ends submit {one.name}", one.reason
        )
        return remote_changes.RemoteChangeResult(one.name, 200, DONE if kept.waiting else FORGOTTEN)

    async def withdraw_beside(
        self,
        caller: tokens.Caller,
        one: remote_changes.SubmittedDocument,
        kept: records.Override,
        done: remote_changes.RemoteChangeResult,
    ) -> remote_changes.RemoteChangeResult:
        """Have a submission forgotten whose name has a job too, which was cancelled.

        Args:
            caller: who cancels.
            one: the cancel.
            kept: the submission.
            done: what became of the job.

        Returns:
            The same with what became of the submission, which may wait on.

        Raises:
            StoreError: the store can't be read.
        """
        denied = await self.refusals(caller, [kept])
        found = denied[0] if denied else await self.withdraw(caller, one, kept)
        told = f"its {found.message}" if found.message == DONE else found.message
        if found.status >= 400:
            told = f"but the submission of its name was not withdrawn: {found.message}"
        act = change_requests.Act("cancel", one.name)
        said = done.message or change_requests.told(act, dry_run=one.dry_run)
        return msgspec.structs.replace(done, message=f"{said}; {told}")

    def _kept(
        self, changes: Sequence[remote_changes.SubmittedDocument]
    ) -> dict[int, KeptSubmission]:
        reader = self._store.reader
        kept = {one.subject: one for one in reader.overrides() if one.verb == "submit"}
        found: dict[int, KeptSubmission] = {}
        for position, one in enumerate(changes):
            if one.verb != "cancel" or one.elements or one.name not in kept:
                continue
            record, submission = reader.job(one.name), kept[one.name]
            is_alone = record is None or record.removed or record.finished
            if record is not None and not is_alone and record.spec.owner != submission.owner:
                continue  # somebody else's: they have not cancelled it
            if submission.waiting or record is None or record.removed:
                found[position] = KeptSubmission(submission, is_alone)
        return found
