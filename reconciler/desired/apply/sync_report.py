"""Makes the values of ``Desired``, with their sync status.

The state in force and the result of a look at the branch come in. A value goes out: the last one
with a fresh status if nothing else changed, else one of the next generation.
"""

import collections
from typing import Literal, NamedTuple

import msgspec

from reconciler.desired.apply import revision_in_force, sync_holds
from reconciler.desired.documents import document_reader
from reconciler.model import desired
from reconciler.model.rules import review_findings


class BranchLook(NamedTuple):
    """The result of one look at the branch.

    Attributes:
        at: seconds since the epoch.
        sync: does the state in force match the branch.
        attempted: head of the branch, if it is known.
        message: for people.
        extra: problems besides those of the state in force.
    """

    at: float
    sync: Literal["Synced", "OutOfSync", "Unknown"]
    attempted: str | None
    message: str
    extra: tuple[desired.Problem, ...] = ()


class SyncReport:
    """The last value of ``Desired``.

    Attributes:
        last: the value.
        generation: number of the last value that differs in more than its status.
    """

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.last = desired.Desired()

    def forget(self) -> None:
        """Forget the last value; the next one has a new generation."""
        self.last = desired.Desired()

    def update(self, view: revision_in_force.RevisionView, look: BranchLook) -> desired.Desired:
        """Return the value after a look at the branch."""
        before, status = self.last, _status(view, look)
        if view.revision is None:
            self.last = msgspec.structs.replace(before, status=status)
            return self.last
        same = (
            before.generation > 0
            and before.structure is view.structure
            and (before.jobs is view.jobs or before.jobs == view.jobs)
            and before.refused == view.refused
            and before.quarantined == view.quarantined
        )
        if same:
            self.last = msgspec.structs.replace(before, status=status)
        else:
            self.generation += 1
            self.last = desired.Desired(
                generation=self.generation,
                structure=view.structure,
                jobs=view.jobs,
                refused=view.refused,
                status=status,
                quarantined=view.quarantined,
                removals=view.removals,
            )
        return self.last


def look_at_applied(
    view: revision_in_force.RevisionView, now: float, head: str | None
) -> BranchLook:
    """Return the result of a look after which the head is in force, as far as it is valid."""
    errors = sum(problem.severity == "error" for problem in view.problems)
    if not errors:
        return BranchLook(now, "Synced", head, "")
    return BranchLook(now, "OutOfSync", head, _summary(view, errors))


def _status(view: revision_in_force.RevisionView, look: BranchLook) -> desired.SyncStatus:
    held, problems = view.held, view.problems
    if any(one.rule in {*review_findings.WHOLE, review_findings.EMPTIED} for one in look.extra):
        held, problems = sync_holds.beyond_approval(held, problems)
    return desired.SyncStatus(
        sync=look.sync,
        attempted_revision=look.attempted,
        structure_revision=view.structure_revision,
        jobs_revision=view.jobs_revision,
        message=look.message,
        checked_at=look.at,
        problems=look.extra + _listed(problems),
        held=held,
        suspended=view.suspended,
    )


def _listed(problems: tuple[desired.Problem, ...]) -> tuple[desired.Problem, ...]:
    """Return problems with at most ``LISTED_MAX`` errors of each file, and the number of others."""
    if len(problems) <= document_reader.LISTED_MAX:
        return problems
    found: list[desired.Problem] = []
    errors: collections.Counter[str] = collections.Counter()
    for one in problems:
        errors[one.path] += one.severity == "error"
        if one.severity != "error" or errors[one.path] <= document_reader.LISTED_MAX + 1:
            found.append(one)
    for path, count in errors.items():
        left = count - document_reader.LISTED_MAX - 1  # with the one that counts faults
        if left > 0:
            message = (
                f"and {left} more errors in this file: `muster validate` in a clone tells them"
            )
            found.append(desired.Problem(document_reader.MORE_FAULTS, "error", path, message))
    return tuple(found)


def _summary(view: revision_in_force.RevisionView, errors: int) -> str:
    """Return one line about the errors of the state in force."""
    if view.held:
        others = errors - sum(p.rule in review_findings.RULES for p in view.problems)
        more = f"; and {others} error{'s' if others > 1 else ''} besides" if others > 0 else ""
        return view.held[0].message + more
    message = f"{errors} error{'s' if errors > 1 else ''}"
    if view.structure_refused:
        revision = view.structure_revision
        message += "; " + (
            f"all structure of {revision[:12]} was in force, and objects stay as they were since"
            if revision
            else "its structure is refused, and none was accepted before"
        )
    return message
