"""Decides if a signer has the right to a change of one object.

The identity of a commit and the difference of an object come in; why the change does not count
goes out. Owners of jobs are remembered, because a job whose document cannot be read has one too.
"""

from collections.abc import Mapping

import msgspec

from reconciler.desired.authorize import authority, signatures
from reconciler.desired.documents import object_changes
from reconciler.model import desired
from reconciler.model.policy import access


class ChangeRights:
    """The rights to changes along one walk.

    Args:
        jobs_folder: below it the controller may change jobs for people, and nowhere else.
        jobs: in force at the start of the walk, by name.
    """

    def __init__(self, jobs_folder: str, jobs: Mapping[str, desired.Job]) -> None:
        self._jobs_folder = jobs_folder
        self._jobs = jobs
        #: Owner of a job as of the last commit that counts; None: the job is gone.
        self._owners: dict[str, _JobOwner | None] = {}

    def refusal(
        self, query: authority.AuthorityQuery, label: str, change: object_changes.ObjectChange
    ) -> signatures.SignatureRefusal | None:
        """Return why a change of an object does not count; None if it does."""
        why = self._refusal_by(query, label, change)
        if why is not None or query.also is None:
            return why
        why = self._refusal_by(query.also, label, change)
        return why and signatures.SignatureRefusal(
            why.rule, f"{why.message}, by the Access in force"
        )

    def record_owner(
        self, label: str, change: object_changes.ObjectChange, *, readable: bool
    ) -> None:
        """Record the owner of a job, from a change that counts.

        Args:
            label: of the job; other kinds are ignored.
            change: the difference.
            readable: True if all files that may hold the job now can be read.
        """
        specs = object_changes.jobs_of(change.after)
        if specs:
            queues, owners = zip(*specs, strict=True)
            self._owners[label] = _JobOwner(queues, owners)
        elif change.paths and not change.after and readable:
            self._owners[label] = None

    def _refusal_by(
        self, query: authority.AuthorityQuery, label: str, change: object_changes.ObjectChange
    ) -> signatures.SignatureRefusal | None:
        """Return why it does not count under one authority."""
        signer = query.signer
        if isinstance(signer, signatures.SignatureRefusal):
            return signer
        if signer.acts == "submitter" and not self._is_submission(label, change):
            return signatures.SignatureRefusal(
                "not-a-submission",
                "the controller's key counts for jobs below "
                f"{self._jobs_folder} and for nothing else; commit it yourself",
            )
        decision = self._decision(signer.who, label, change, query)
        if decision.allowed:
            return None
        return signatures.SignatureRefusal("not-allowed", decision.why)

    def _decision(
        self,
        who: str,
        label: str,
        change: object_changes.ObjectChange,
        query: authority.AuthorityQuery,
    ) -> access.Decision:
        """Decide if somebody may change an object like this.

        A job whose document was unreadable before still has an owner: the right to its last
        readable version is required.
        """
        if label.startswith("Job/"):
            before = object_changes.jobs_of(change.before)
            after = object_changes.jobs_of(change.after)
            queues = [queue for queue, _ in (*before, *after)]
            had = [owner for _, owner in before]
            known = None if before else self._last_owner(label)
            if known is not None:
                queues += known.queues
                had += known.owners
            owners = access.JobOwners(tuple(had), tuple(owner for _, owner in after))
            priorities = object_changes.new_priorities(change.before, change.after)
            asked = access.JobChange(tuple(queues), owners, priorities)
            return access.of_job(query.known, who, asked, query.parents)
        verb: access.Verb = "drain" if object_changes.only_drains(change) else "change"
        return access.of_object(query.known, who, verb, label)

    def _last_owner(self, label: str) -> "_JobOwner | None":
        """Return the owner of a job whose document cannot be read."""
        if label in self._owners:
            return self._owners[label]
        job = self._jobs.get(label.removeprefix("Job/"))
        return _JobOwner((job.queue,), (job.owner,)) if job is not None else None

    def _is_submission(self, label: str, change: object_changes.ObjectChange) -> bool:
        return label.startswith("Job/") and all(
            path.startswith(self._jobs_folder) for path in change.paths
        )


class _JobOwner(msgspec.Struct, frozen=True):
    """Queues and owner of a job."""

    queues: tuple[str, ...]
    owners: tuple[str, ...]
