"""What became of each revision, as the audit log tells it.

One entry a revision: its commits with who made them, what they changed, and the outcome. Another
kind tells that old entries were dropped. ``auditlog`` keeps them in a file that tells when it was
tampered with; ``auditkeeping`` takes away what is over age.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from reconciler.core.safety import structure_diff
from reconciler.desired.authorize import provenance
from reconciler.desired.git import commit_log
from reconciler.desired.normalise import job_defaults
from reconciler.model import desired

#: The most that is listed of one revision: commits, labels of objects, problems.
LISTED_MAX = 50
_TEXT_MAX = 1000
#: What is in force before the first revision.
NOTHING = desired.Desired(structure=job_defaults.EMPTY.structure)


class CommitEntry(msgspec.Struct, frozen=True):
    """A commit of a revision: who it says made it and for whom, and who has signed that.

    ``signer`` is as whom it counts, empty where that is nobody; unset where nobody looked, and the
    commit is taken at its word.
    """

    id: str
    author: str
    subject: str
    submitter: str = ""
    signer: str | msgspec.UnsetType = msgspec.UNSET


class ProblemEntry(msgspec.Struct, frozen=True):
    """What was refused or held."""

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


class AuditEntry(msgspec.Struct, frozen=True):
    """What became of one revision, or what was dropped of this log.

    Attributes:
        at: when, in seconds since the epoch. duration_s: how long it took to read and judge.
        revision: attempted; where lines were dropped, the one whose setting said so.
        result: as ``SyncStatus.sync``.
        structure_revision, jobs_revision: in force afterwards.
        commits: what it brought, the oldest first; the last ``LISTED_MAX`` of them.
        added, changed, removed: labels of objects that are other than before, by count;
        objects: the first of them with ``+``, ``~`` or ``-`` in front.
        message, problems: of what was refused or held.
        dropped: lines of this log that were dropped; unset where this is about a revision.
    """

    at: float
    revision: str
    result: Literal["Synced", "OutOfSync", "Unknown", "Dropped"]
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
    """What became of a revision.

    Args:
        status: after it was looked at.
        line: its commits, the oldest first.
        signers: as whom they count, by id, as far as that was looked at; empty: as nobody.
        before: what was in force before (``NOTHING``: nothing was); None: that is not known.
        after: what is in force now.
        at: seconds since the epoch. duration_s: how long it took.
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
                submitter=", ".join(one.trailer(provenance.SUBMITTER))[:_TEXT_MAX],
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
    """An entry that says of earlier ones that nothing of what they tell came into force."""
    several = len(numbers) > 1
    told = (
        f"entr{'ies' if several else 'y'} {', '.join(map(str, sorted(numbers)[-LISTED_MAX:]))} "
        f"{'were' if several else 'was'} written before that was known, and nothing of it came "
        "into force"
    )
    message = entry.message[: _TEXT_MAX - len(told) - 2]
    return msgspec.structs.replace(entry, message=f"{message}; {told}" if message else told)


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
    """Whether an entry tells anything that the last one did not."""

    def outcome(of: AuditEntry) -> tuple[object, ...]:
        return (of.revision, of.result, of.structure_revision, of.message)

    return last is None or outcome(entry) != outcome(last)
