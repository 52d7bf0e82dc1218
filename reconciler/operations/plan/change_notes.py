"""Notes on changes in a plan: those that have more or less effect than it seems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reconciler.core import job_draft
from reconciler.core.jobs import run_terms
from reconciler.model import desired
from reconciler.model.state.states import AttemptState
from reconciler.operations.plan import diff, revisions

if TYPE_CHECKING:
    from reconciler.operations.plan import cluster_snapshot


def note(
    change: diff.DocumentDiff,
    found: revisions.Comparison,
    snapshot: cluster_snapshot.DigestedSnapshot | None,
) -> str:
    """Return why a change of an object has more or less effect than it seems; empty if it
    has not.
    """
    if change.kind != "Job" or found.runs_known:
        return _ignored(change, found.base, found.head, snapshot)
    if change.operation == "remove" and change.name not in found.base.jobs:
        return (
            "a run of it that was admitted before is cancelled (only a controller with this base "
            "in force knows if there is one)"
        )
    if change.operation == "add" and change.name in found.base.refused:
        return (
            "its old document was refused: a run of it that was admitted before keeps running "
            "(only a controller with this base in force knows if there is one)"
        )
    return _ignored(change, found.base, found.head, snapshot)


def _ignored(
    change: diff.DocumentDiff,
    base: desired.Desired,
    head: desired.Desired,
    snapshot: cluster_snapshot.DigestedSnapshot | None,
) -> str:
    """Return why a change of execution fields has no effect on a job's run; empty if it has one."""
    if (change.operation, change.kind) != ("change", "Job"):
        return ""
    old, new = base.jobs.get(change.name), head.jobs.get(change.name)
    if old is None or new is None:
        return ""
    if old.key == new.key:
        return _waiting(new, head.structure, snapshot)
    run = f"run {new.run}"
    if snapshot is None:
        is_ignored, alive = old.run == new.run, f"if {run} of it is alive, it"
    else:
        record = snapshot.live.observed.jobs.get(change.name)
        is_ignored = (
            record is not None
            and not (record.finished or record.removed)
            and (record.spec.run, record.key == new.key) == (new.run, False)
        )
        alive = f"{run} of it is alive and"
    if not is_ignored:
        return ""
    return (
        f"{alive} goes on as it was: what it executes is another only once that has ended; raise "
        "spec.run to replace it now"
    )


def _waiting(
    new: desired.Job,
    structure: desired.Structure,
    snapshot: cluster_snapshot.DigestedSnapshot | None,
) -> str:
    """Return which changes of a job wait until its tasks have left their nodes; empty: none."""
    if snapshot is None:
        return ""
    observed = snapshot.live.observed
    record = observed.jobs.get(new.name)
    if record is None or record.finished or record.key != new.key:
        return ""
    if not any(record.elements.count(code) for code in job_draft.LIVE_CODES):
        return ""
    reserved = run_terms.Reserved(
        observed.scheduler_state.kept,
        lambda: {
            one.node
            for one in observed.attempts.values()
            if one.job == new.name and one.state is not AttemptState.ENDED
        },
    )
    kept = run_terms.kept_fields(structure, record.spec, new, reserved)
    return run_terms.message(kept) if kept else ""
