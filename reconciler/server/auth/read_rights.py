"""Decides what a caller may read of other people's jobs: the verb ``read`` of ``Access``.

Everybody sees that a job is there, its state and its reasons. What its tasks write takes the right.
"""

import math
from collections.abc import Iterable, Sequence

from reconciler.model import desired
from reconciler.model.policy import access, queue_paths
from reconciler.model.state import identifiers, records
from reconciler.model.values import times
from reconciler.operations.reports import attempt_rows
from reconciler.operations.views import stored_views, unread_views, view_types
from reconciler.server import errors
from reconciler.server.auth import authorization, tokens
from reconciler.store import StoreReader

#: Queue and owner of a run.
_Holder = tuple[str, str]
#: Times are shown in milliseconds.
_ROUNDING_S = 0.001


class ReadRights:
    """Rights of one caller to read, by the rules in force when its request came.

    Args:
        reader: the store.
        caller: the authenticated caller.

    Raises:
        StoreError: the store can't be read.
    """

    def __init__(self, reader: StoreReader, caller: tokens.Caller) -> None:
        self._reader = reader
        self._caller = caller
        self._structure: desired.Structure | None = None
        self._known: dict[str, access.Decision] = {}
        self._is_admin = caller.role == authorization.ADMIN
        if not self._is_admin:
            sync = stored_views.stored_sync(reader.view(stored_views.SYNC))
            if sync.structure_revision is not None:
                self._structure = stored_views.stored_structure(reader.view(stored_views.STRUCTURE))

    @property
    def everything(self) -> bool:
        """True if the caller may read every job."""
        if self._is_admin:
            return True
        return self._structure is not None and not self._structure.access.roles

    def is_of_another(self, owner: str) -> bool:
        """Return True if a job is somebody else's."""
        return owner not in {"", self._caller.name}

    def why_not(self, job: str, queue: str, owner: str) -> str:
        """Return why the caller may not read a job; empty if it may.

        Args:
            job: its name.
            queue: its queue.
            owner: its owner; empty: it is everybody's.
        """
        if self.everything or not self.is_of_another(owner):
            return ""
        if self._structure is None:
            return authorization.NOTHING_IN_FORCE
        if queue not in self._known:
            queues = self._structure.queues
            parents = {name: one.parent for name, one in queues.items()}
            above = queue_paths.ancestors(queue, parents.get)
            found = access.of_queue(self._structure.access, self._caller.name, "read", queue, above)
            self._known[queue] = found
        decision = self._known[queue]
        if decision.allowed:
            return ""
        return (
            f"{decision.why}; job {job} belongs to {owner}. To fix: ask for a role with "
            f"{{verbs: [read], queues: [{queue}]}}"
        )

    def require(self, job: str, queue: str, owner: str) -> None:
        """Do nothing if the caller may read a job.

        Raises:
            Failure: 403, with the rule that is missing.
        """
        why = self.why_not(job, queue, owner)
        if why:
            raise errors.Failure(403, why)

    def may_know_forgotten(self, name: str) -> bool:
        """Return True if the caller may know which runs of a name there were without a record now.

        A key says what was run, and nobody knows any more whose it was. The right to read the
        newest job of the name decides. If there is none, so does the right to have jobs: who
        submits one of the name is told the same.
        """
        if self.everything:
            return True
        newest = self._reader.job(name)
        if newest is not None:
            return not self.why_not(name, newest.spec.queue, newest.spec.owner)
        known = authorization.Once(self._reader)
        return not authorization.why_no_job(known, self._caller.name)

    def job(self, of: view_types.JobView) -> view_types.JobView:
        """Return as much of a job as the caller may read."""
        return unread_views.job_view(of) if self.why_not(of.name, of.queue, of.owner) else of

    def attempt_row(self, of: attempt_rows.AttemptRow) -> attempt_rows.AttemptRow:
        """Return as much of a row as the caller may read; of a run that is forgotten no use."""
        if self.everything:
            return of
        is_known = of.queue is not None and of.owner is not None
        if not is_known or self.why_not(of.job, of.queue or "", of.owner or ""):
            return attempt_rows.without_use(of)
        return of

    def events(self, of: Iterable[view_types.EventView]) -> list[view_types.EventView]:
        """Return as much of events as the caller may read."""
        found = list(of)
        if self.everything:
            return found
        hidden = self._hidden([one for one in found if unread_views.has_detail(one)])
        return [unread_views.event_view(one) if one in hidden else one for one in found]

    def _hidden(self, of: Sequence[view_types.EventView]) -> set[view_types.EventView]:
        """Return those events that the caller may not read.

        An event is its own run's: that of its attempt, or else each that was there at its time. Of
        later jobs of the same name it says nothing. If nobody knows any more whose the run was,
        the event is hidden.
        """
        if not of:
            return set()
        moments = [times.parse_time(one.at) for one in of]
        since, until = min(moments) - _ROUNDING_S, max(moments) + _ROUNDING_S
        found = self._reader.holders_of({one.job for one in of}, since, until)
        by_name: dict[str, list[records.RunHolder]] = {}
        for holder in found:
            by_name.setdefault(holder.name, []).append(holder)
        owned: dict[str, _Holder | None] = {one.key: (one.queue, one.owner) for one in found}
        hidden: set[view_types.EventView] = set()
        for one, at in zip(of, moments, strict=True):
            whose: list[_Holder | None]
            if one.attempt:
                whose = [self._of_run(identifiers.run_key_of(one.attempt), owned)]
            else:
                there = [held for held in by_name.get(one.job, ()) if _was_there(held, at)]
                whose = [(held.queue, held.owner) for held in there] or [None]
            if any(held is None or self.why_not(one.job, *held) for held in whose):
                hidden.add(one)
        return hidden

    def _of_run(self, key: str, owned: dict[str, _Holder | None]) -> _Holder | None:
        """Return queue and owner of a run; None if it is not known any more."""
        if key not in owned:
            record = self._reader.run(key)
            owned[key] = (record.spec.queue, record.spec.owner) if record else None
        return owned[key]


def _was_there(held: records.RunHolder, at: float) -> bool:
    """Return True if a run was there at a time, to the precision with which times are shown."""
    ended_at = math.inf if held.ended_at is None else held.ended_at
    return held.submitted_at - _ROUNDING_S <= at <= ended_at + _ROUNDING_S
