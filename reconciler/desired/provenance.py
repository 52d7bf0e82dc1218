"""Who answers for what a revision changes, and whether they may: commit by commit.

The commits from the revision in force to a new head come in, the oldest first. Each answers for the
difference to the one before it, object by object, and is measured by the Access and the mode that
held before it, so that no commit authorises itself. Out come the objects whose last change nobody
answers for who may (they stay as they are in force), and the approvals that count.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from reconciler.desired import collecting, documents, people, signatures, source
from reconciler.model import access, desired
from reconciler.model.documents import access as access_documents
from reconciler.model.documents import cluster, fields, job, nodepool

Mode = Literal["off", "warn", "required"]
APPROVE = "Muster-Approve"
SUBMITTER = "Muster-Submitter"
#: Below this folder the controller may change jobs for people, and nowhere else.
JOBS_FOLDER = "jobs"
_DIGEST_CHARACTERS = 16
TRUSTED_KINDS = ("Access", "Cluster")


class Denial(msgspec.Struct, frozen=True):
    """A change that does not count: what is said of it, and what the object was before."""

    problem: desired.Problem
    was: str


class Trust(msgspec.Struct, frozen=True):
    """What commits are measured by, as of the last revision; it outlives the controller.

    Attributes:
        mode: whether what is not signed by somebody who may is refused.
        documents: what each document of ``Access`` says, by label.
        denied: by label, the objects that stay as they are in force.
    """

    mode: Mode = "off"
    documents: dict[str, access.Access] = {}
    denied: dict[str, Denial] = {}

    def whole(self) -> access.Access:
        """The access of all documents together."""
        found = access.Access()
        for one in self.documents.values():
            found = found.merged(one)
        return found

    def renewed(self, label: str, part: fields.Part | None) -> "Trust":
        """With a document as somebody who may has left it; ``part`` None: it is gone."""
        if isinstance(part, cluster.Cluster):
            return msgspec.structs.replace(self, mode=part.spec.verification.mode)
        if label.startswith("Cluster/"):
            return msgspec.structs.replace(self, mode="off") if part is None else self
        known = {name: one for name, one in self.documents.items() if name != label}
        if isinstance(part, access_documents.Access):
            known[label] = people.access_of(part.spec, collecting.Faults())
        return msgspec.structs.replace(self, documents=known)


def trusted(parts: Mapping[str, fields.Part]) -> Trust:
    """What a revision says that is taken as it is: the first one, or without verification."""
    found = Trust()
    for label, part in sorted(parts.items()):
        found = found.renewed(label, part)
    return found


class Walk(msgspec.Struct, frozen=True):
    """What came of a walk: what holds after it, and digests that were approved."""

    trust: Trust
    approvals: tuple[str, ...] = ()


class _Change(msgspec.Struct, frozen=True):
    """One object before and after a commit; None where it is not there."""

    path: str
    before: documents.Document | None
    after: documents.Document | None
    paths: tuple[str, ...] = ()


class Provenance:
    """Walks along the commits of one repository. Close it when done."""

    def __init__(self, repository: source.Source, clock: Callable[[], float]) -> None:
        self._source = repository
        self._clock = clock
        self._verifier = signatures.Verifier(repository)

    def close(self) -> None:
        """Forget the keys."""
        self._verifier.close()

    def walk(
        self, line: list[source.Commit], trust: Trust, parents: Mapping[str, str | None]
    ) -> Walk:
        """Go along ``line``, the oldest first.

        Args:
            line: what leads from the last revision to the new one.
            trust: what held at the last revision.
            parents: the parent of each queue in force.

        Raises:
            GitError: a commit can't be read, or git can't verify at all.
        """
        approvals: list[str] = []
        for commit in line:
            asked = commit.trailer(APPROVE)
            if trust.mode == "off":
                approvals += asked
                continue
            known = trust.whole()
            signer = self._signer(commit, known)
            for label, change in self._changes(commit).items():
                why = self._refusal(signer, label, change, known=known, parents=parents)
                trust = _judged(trust, commit, label, change, why)
            if asked and (isinstance(signer, _Signer) or trust.mode == "warn"):
                counts = trust.mode == "warn" or (
                    isinstance(signer, _Signer) and access.of_approval(known, signer.who).allowed
                )
                approvals += asked if counts else []
        return Walk(trust, tuple(approvals))

    def _signer(
        self, commit: source.Commit, known: access.Access
    ) -> "_Signer | signatures.Refusal":
        """As whom a commit counts."""
        found = self._verifier.verify(commit, known, self._clock())
        if isinstance(found, signatures.Refusal):
            return found
        who = found.email
        if found.acts == "submitter":
            named = commit.trailer(SUBMITTER)
            if len(named) != 1:
                return signatures.Refusal(
                    "no-submitter",
                    f"it is signed with the key of {who} and has {len(named)} lines {SUBMITTER}; "
                    "one is expected",
                )
            who = named[0]
        elif found.acts == "author":
            who = commit.author
        if who not in known.identities:
            return signatures.Refusal("unknown-person", f"{who} is nobody that Access knows")
        return _Signer(who, found.acts)

    def _changes(self, commit: source.Commit) -> dict[str, _Change]:
        """Objects that a commit changes, by label."""
        entries = self._source.differences(commit.parent, commit.id)
        blobs = [blob for _, *sides in entries for blob in sides if blob is not None]
        data = dict(zip(blobs, self._source.blobs(blobs), strict=True))
        sides: tuple[dict[str, tuple[str, documents.Document]], ...] = ({}, {})
        for path, *pair in entries:
            for side, blob in zip(sides, pair, strict=True):
                if blob is None:
                    continue
                for document in documents.read(data[blob]).documents:
                    if document.label:
                        side.setdefault(document.label, (path, document))
        found = {}
        for label in sorted(sides[0].keys() | sides[1].keys()):
            old, new = sides[0].get(label), sides[1].get(label)
            if old is not None and new is not None and _same(old[1], new[1]):
                continue
            places = tuple(one[0] for one in (old, new) if one is not None)
            found[label] = _Change(places[-1], old and old[1], new and new[1], places)
        return found

    def _refusal(
        self,
        signer: "_Signer | signatures.Refusal",
        label: str,
        change: _Change,
        *,
        known: access.Access,
        parents: Mapping[str, str | None],
    ) -> signatures.Refusal | None:
        """Why a change of an object does not count; None where it does."""
        if isinstance(signer, signatures.Refusal):
            return signer
        if signer.acts == "submitter" and not self._is_submission(label, change):
            return signatures.Refusal(
                "not-a-submission",
                "the controller's key counts for jobs below "
                f"{self._jobs_folder} and for nothing else; commit it yourself",
            )
        decision = _decision(signer.who, label, change, known, parents)
        if decision.allowed:
            return None
        return signatures.Refusal("not-allowed", decision.why)

    @property
    def _jobs_folder(self) -> str:
        prefix = f"{self._source.sub_path}/" if self._source.sub_path else ""
        return f"{prefix}{JOBS_FOLDER}/"

    def _is_submission(self, label: str, change: _Change) -> bool:
        return label.startswith("Job/") and all(
            path.startswith(self._jobs_folder) for path in change.paths
        )


class _Signer(msgspec.Struct, frozen=True):
    """As whom a commit counts, and by what kind of key."""

    who: str
    acts: access.Acts


def _same(old: documents.Document, new: documents.Document) -> bool:
    return (old.part, old.hash, old.faults) == (new.part, new.hash, new.faults)


def _content(document: documents.Document | None) -> str:
    """What tells one version of an object from another."""
    if document is None:
        return ""
    body = repr((document.part, document.hash, document.faults)).encode()
    return hashlib.sha256(body).hexdigest()[:_DIGEST_CHARACTERS]


def _judged(
    trust: Trust,
    commit: source.Commit,
    label: str,
    change: _Change,
    why: signatures.Refusal | None,
) -> Trust:
    """What holds after a commit has changed one object."""
    before = trust.denied.get(label)
    if before is not None and before.problem.path not in change.paths and why is None:
        return trust  # what was denied stands in another file, and this says nothing of it
    denied = {name: one for name, one in trust.denied.items() if name != label}
    if why is not None:
        was = before.was if before is not None else _content(change.before)
        if _content(change.after) != was:  # else it is back to what is in force
            problem = desired.Problem(
                rule=why.rule,
                severity="error" if trust.mode == "required" else "warning",
                path=change.path,
                message=f"commit {commit.id[:12]} changes it, and {why.message}",
                object=label,
            )
            denied[label] = Denial(problem, was)
    counts = why is None or trust.mode != "required"
    trust = msgspec.structs.replace(trust, denied=denied)
    if counts and label.split("/", 1)[0] in TRUSTED_KINDS:
        after = change.after
        if after is None or after.part is not None:
            trust = trust.renewed(label, after.part if after else None)
    return trust


def _decision(
    who: str,
    label: str,
    change: _Change,
    known: access.Access,
    parents: Mapping[str, str | None],
) -> access.Decision:
    """Whether somebody may change an object so."""
    parts = [one.part if one else None for one in (change.before, change.after)]
    if label.startswith("Job/"):
        specs = [part.spec for part in parts if isinstance(part, job.Job)]
        return access.of_job(
            known, who, [s.queue for s in specs], [s.owner or "" for s in specs], parents
        )
    verb: access.Verb = "drain" if _only_drains(parts) else "change"
    return access.of_object(known, who, verb, label)


def _only_drains(parts: list[fields.Part | None]) -> bool:
    """Whether nothing of a pool differs but its overrides."""
    pools = [part for part in parts if isinstance(part, nodepool.NodePool)]
    if len(pools) != 2:
        return False
    plain = [
        msgspec.structs.replace(pool, spec=msgspec.structs.replace(pool.spec, overrides=[]))
        for pool in pools
    ]
    return plain[0] == plain[1]
