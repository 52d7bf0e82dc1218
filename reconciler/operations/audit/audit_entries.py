"""Entries of the audit log: one per revision, with its commits, changes and result.

Another kind of entry records that old entries were dropped. ``audit_log`` keeps entries in a file
that shows tampering; ``retention`` drops old ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

import msgspec

from reconciler.core.safety import structure_diff
from reconciler.desired.authorize import commit_signers
from reconciler.desired.git import commit_log
from reconciler.desired.normalise import job_defaults
from reconciler.model import desired

#: The most that is listed of one revision: commits, labels of objects, problems.
LISTED_MAX = 50
_TEXT_MAX = 1000
#: What is in force before the first revision.
NOTHING = desired.Desired(structure=job_defaults.EMPTY.structure)


class CommitEntry(msgspec.Struct, frozen=True):
    """A commit of a revision: its claimed author, its submitter, and its verified signer.

    ``signer`` is the identity, empty if there is none; unset if signatures were not checked.
    """

    id: str
    author: str
    subject: str
    submitter: str = ""
    signer: str | msgspec.UnsetType = msgspec.UNSET


class ProblemEntry(msgspec.Struct, frozen=True):
    """A refusal or a hold."""

    rule: str
    object: str
    message: str


class Dropped(msgspec.Struct, frozen=True):
    """Lines that were dropped since ``retention.audit`` of the ``Cluster`` let them go.

    Attributes:
        begins: the first line that is accounted for, as being there or as having been dropped: 1,
            unless somebody had taken older ones away by hand.
        first, last: the lines that this one is about. hash: of the last of them.
        newest_at: when the newest of them was written, in seconds since the epoch.
        keep_s: how long lines were to be kept.
    """

    begins: int
    first: int
    last: int
    hash: str
    newest_at: float
    keep_s: int


#: What an entry about access says: two kinds of refusal, and what was done.
Action = Literal[
    "Unauthenticated",
    "Forbidden",
    "LogsRead",
    "SnapshotRead",
    "OverrideChanged",
    "TokensChanged",
    "SessionBegan",
    "SessionEnded",
    "NotificationChanged",
    "EphemeralJob",
]
ACTIONS: tuple[Action, ...] = get_args(Action)


class AccessEntry(msgspec.Struct, frozen=True):
    """A call that was refused, or one that reads or overrides what is not the caller's own.

    Attributes:
        action: what happened.
        identity: of the caller; empty if it is unknown.
        address: of the caller.
        request: method and path, without its parameters.
        count: how often it came since the last entry about the same.
    """

    action: Action
    identity: str
    address: str
    request: str
    count: int = 1


class AuditEntry(msgspec.Struct, frozen=True):
    """Result of one revision, or lines that were dropped from this log.

    Attributes:
        at: seconds since the epoch.
        duration_s: time to read and check the revision.
        revision: attempted; for dropped lines, the revision whose retention setting applied.
        result: as ``SyncStatus.sync``.
        structure_revision, jobs_revision: in force afterwards.
        commits: of the revision, oldest first; the last ``LISTED_MAX`` of them.
        added, changed, removed: counts of objects that differ from before, by label.
        objects: the first of them with ``+``, ``~`` or ``-`` in front.
        message, problems: of what was refused or held.
        dropped: lines of this log that were dropped; unset if the entry is about a revision.
        access: a call; unset in the log of revisions.
    """

    at: float
    revision: str
    result: Literal["Synced", "OutOfSync", "Unknown", "Dropped", "Access"]
    structure_revision: str | None = None
    jobs_revision: str | None = None
    duration_s: float = 0.0
    commits: tuple[CommitEntry, ...] = ()
    added: int = 0
    changed: int = 0
    removed: int = 0
    objects: tuple[str, ...] = ()
    message: str = ""
    problems: tuple[ProblemEntry, ...] = ()
    dropped: Dropped | msgspec.UnsetType = msgspec.UNSET
    access: AccessEntry | msgspec.UnsetType = msgspec.UNSET


def entry_of(
    status: desired.SyncStatus,
    line: Sequence[commit_log.Commit],
    *,
    signers: Mapping[str, str] | None = None,
    before: desired.Desired | None,
    after: desired.Desired,
    at: float,
    duration_s: float,
) -> AuditEntry:
    """Return the entry of a revision.

    Args:
        status: after the revision was read.
        line: its commits, oldest first.
        signers: verified signers by commit id, as far as checked; empty: nobody.
        before: what was in force before (``NOTHING``: nothing was); None: unknown.
        after: what is in force now.
        at: seconds since the epoch.
        duration_s: time it took.
    """
    marks = list(_marks(before, after)) if before is not None else []
    counts = {mark: sum(one[0] == mark for one in marks) for mark in "+~-"}
    return AuditEntry(
        at=at,
        revision=status.attempted_revision or "",
        result=status.sync,
        structure_revision=status.structure_revision,
        jobs_revision=status.jobs_revision,
        duration_s=round(duration_s, 3),
        commits=tuple(
            CommitEntry(
                id=one.id,
                author=one.author,
                subject=one.subject[:_TEXT_MAX],
                submitter=", ".join(one.trailer(commit_signers.SUBMITTER))[:_TEXT_MAX],
                signer=(signers or {}).get(one.id, msgspec.UNSET),
            )
            for one in line[-LISTED_MAX:]
        ),
        added=counts["+"],
        changed=counts["~"],
        removed=counts["-"],
        objects=tuple(marks[:LISTED_MAX]),
        message=status.message[:_TEXT_MAX],
        problems=tuple(
            ProblemEntry(one.rule, one.object, one.message[:_TEXT_MAX])
            for one in status.problems[:LISTED_MAX]
        ),
    )


def withdrawing(entry: AuditEntry, numbers: Sequence[int]) -> AuditEntry:
    """Return an entry recording that nothing in earlier entries came into force."""
    several = len(numbers) > 1
    lines_text = (
        f"entr{'ies' if several else 'y'} {', '.join(map(str, sorted(numbers)[-LISTED_MAX:]))} "
        f"{'were' if several else 'was'} written before that was known, and nothing of it came "
        "into force"
    )
    message = entry.message[: _TEXT_MAX - len(lines_text) - 2]
    return msgspec.structs.replace(
        entry, message=f"{message}; {lines_text}" if message else lines_text
    )


def _marks(before: desired.Desired, after: desired.Desired) -> Iterator[str]:
    """Objects that are other than before, with what happened to them in front."""
    if before.structure is not after.structure:
        for label, (old, new) in structure_diff.differences(before.structure, after.structure):
            # of the queue that is there without a document, the first document is new
            added = old is None or before is NOTHING
            yield f"{'+' if added else '-' if new is None else '~'} {label}"
    if before.jobs is after.jobs:
        return
    for name, job in after.jobs.items():
        known = before.jobs.get(name)
        if known is not job and known != job:
            yield f"{'+' if known is None else '~'} Job/{name}"
    for name in before.jobs:
        if name not in after.jobs:
            yield f"- Job/{name}"


def is_news(entry: AuditEntry, last: AuditEntry | None) -> bool:
    """Return True if an entry differs from the last one."""

    def outcome(of: AuditEntry) -> tuple[object, ...]:
        return (of.revision, of.result, of.structure_revision, of.message)

    return last is None or outcome(entry) != outcome(last)
