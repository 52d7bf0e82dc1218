"""Decides what a caller may read of other people's jobs: the verb ``read`` of ``Access``.

Everybody sees that a job is there, its state and its reasons. What its tasks write takes the right.
"""

from collections.abc import Iterable

from reconciler.model import desired
from reconciler.model.policy import access, queue_paths
from reconciler.operations.views import job_views, unread_views, view_types
from reconciler.server import errors
from reconciler.server.auth import authorization, tokens
from reconciler.store import StoreReader


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
            sync = job_views.stored_sync(reader.view(job_views.SYNC))
            if sync.structure_revision is not None:
                self._structure = job_views.stored_structure(reader.view(job_views.STRUCTURE))

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

    def job(self, of: view_types.JobView) -> view_types.JobView:
        """Return as much of a job as the caller may read."""
        return unread_views.job_view(of) if self.why_not(of.name, of.queue, of.owner) else of

    def events(self, of: Iterable[view_types.EventView]) -> list[view_types.EventView]:
        """Return as much of events as the caller may read."""
        found = list(of)
        if self.everything:
            return found
        jobs = {one.job for one in found if unread_views.has_detail(one)}
        hidden = {name for name in jobs if self._is_hidden(name)}
        return [unread_views.event_view(one) if one.job in hidden else one for one in found]

    def _is_hidden(self, name: str) -> bool:
        """Return True if the caller may not read a job, or nobody knows any more whose it was."""
        record = self._reader.job(name)
        if record is None:
            return True
        return bool(self.why_not(name, record.spec.queue, record.spec.owner))
