"""What a revision would do before it is merged: one value that text, JSON and comments are made of.

Two revisions, and what a live controller knows, come in. Out come the objects that change, what
that does to GPUs, guarantees and running work, what both futures look like, what is wrong with the
revision, and a digest of all that. Without a controller there is no forecast, and the plan says so.
"""

import argparse
import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from reconciler.core import impact as impacts
from reconciler.model import desired, hostlists, records
from reconciler.model.times import format_time
from reconciler.operations import differences, revisions, snapshots, views, wording
from reconciler.simulation import forecasts
from reconciler.simulation.agenda import SimulationError
from reconciler.store import Reader, StoreError

#: Exit codes of this module as a process.
DONE, NOT_FOUND, UNREADABLE, NOTHING_IN_FORCE = 0, 3, 4, 5

Verdict = Literal["none", "changes", "refused"]


class PlanError(Exception):
    """There is nothing to compare with; says why."""


class _View(msgspec.Struct, frozen=True, rename="camel"):
    """Field names in camel case, as JSON has them."""


class ChangeView(_View, frozen=True):
    """One object that differs; ``fields`` maps dotted paths to (before, after)."""

    operation: str
    kind: str
    name: str
    path: str
    summary: str
    fields: dict[str, tuple[str | None, str | None]]


class AmountView(_View, frozen=True):
    """A guarantee or limit that changes, in the words of documents; null: nothing is said."""

    object: str
    field: str
    before: str | None
    after: str | None


class EndedView(_View, frozen=True):
    """Running work that the change itself touches. ``how`` is a word of ``impact.How``."""

    job: str
    queue: str
    owner: str
    how: str
    gpus: float
    gpu_hours_lost: float
    nodes: str


class ImpactView(_View, frozen=True):
    """The change in the cluster's own units. ``approval`` is what approving it names."""

    gpus_before: int
    gpus_after: int
    gpus_leaving: int
    gpus_entering: int
    nodes_leaving: str
    nodes_entering: str
    amounts: list[AmountView]
    queues_removed: list[str]
    queues_added: list[str]
    jobs: list[EndedView]
    jobs_ended: int
    gpu_hours_lost: float
    approval: str


class EvictionView(_View, frozen=True):
    """An element that has to leave because of the change, for whom, and until when."""

    job: str
    element: int | None
    queue: str
    reason: str
    by: str
    at: str
    in_s: float
    gpu_hours_lost: float
    checkpoints: bool
    back_in_s: float | None


class ShiftView(_View, frozen=True):
    """A job that starts otherwise; seconds from the snapshot on, null: not within the horizon."""

    job: str
    queue: str
    is_new: bool
    before_s: float | None
    after_s: float | None
    later_s: float | None
    estimated: bool
    reason: str


class QueueShiftView(_View, frozen=True):
    """What becomes of the jobs that wait in a queue."""

    queue: str
    waiting: int
    sooner: int
    later: int
    stuck: int
    freed: int
    later_s: float
    preempted: int


class ForecastView(_View, frozen=True):
    """Both futures beside each other."""

    horizon_s: float
    decided_s: float
    shifts: list[ShiftView]
    evictions: list[EvictionView]
    spared: list[EvictionView]
    queues: list[QueueShiftView]
    endless: int
    cycles: int


class FindingView(_View, frozen=True):
    """Something that speaks against the revision. ``isNew``: it was not there before.

    ``waiver``: who may let it pass, and how; empty where nobody may.
    """

    rule: str
    severity: str
    path: str
    line: int
    column: int
    object: str
    field: str
    message: str
    is_new: bool
    waiver: str


class SnapshotView(_View, frozen=True):
    """The cluster that it was planned against."""

    at: str
    age_s: float
    revision: str | None
    digest: str


class Plan(_View, frozen=True):
    """Everything that a reviewer has to know of a revision.

    ``forecast`` is null where there is none, and ``no_forecast`` says why.
    """

    verdict: Verdict
    base: str
    head: str
    merged: bool
    changes: list[ChangeView]
    impact: ImpactView
    forecast: ForecastView | None
    no_forecast: str
    findings: list[FindingView]
    snapshot: SnapshotView | None
    digest: str

    def count(self, operation: str) -> int:
        """How many objects are added, changed or removed."""
        return sum(change.operation == operation for change in self.changes)


def plan(
    found: revisions.Comparison,
    snapshot: snapshots.Snapshot | None,
    now: float,
    *,
    no_snapshot: str = "",
    horizon_s: float = forecasts.HORIZON_S,
    forecast: bool = True,
) -> Plan:
    """Put everything together.

    Args:
        found: both revisions.
        snapshot: what a controller knows.
        now: seconds since the epoch.
        no_snapshot: why there is no snapshot.
        horizon_s: how far is looked ahead.
        forecast: whether to look ahead at all.
    """
    pools = {pool.name: pool for pool in snapshot.live.pools} if snapshot else {}
    base, head = _as_run(found.base, pools), _as_run(found.head, pools)
    observed = snapshot.live.observed if snapshot else records.Observed()
    at = snapshot.live.at if snapshot else now
    ahead: ForecastView | None = None
    reason = no_snapshot if snapshot is None else ""
    if not found.changes:
        reason = reason or "nothing changes"
    elif not forecast:
        reason = reason or "it was not asked for"
    elif snapshot is not None:
        try:
            ahead = _forecast_view(
                forecasts.forecast(base, head, observed, at, horizon_s), observed, at
            )
        except SimulationError as error:
            reason = f"the simulation found no end: {error}"
    findings = _findings(found)
    refused = any(one.severity == "error" and one.is_new for one in findings)
    verdict: Verdict = "refused" if refused else "changes" if found.changes else "none"
    return Plan(
        verdict=verdict,
        base=found.base_commit,
        head=found.head_commit,
        merged=found.merged,
        changes=[_change_view(change) for change in found.changes],
        impact=_impact_view(impacts.find(base, head, observed, at)),
        forecast=ahead,
        no_forecast=reason,
        findings=findings,
        snapshot=None if snapshot is None else _snapshot_view(snapshot, now),
        digest=_digest(found, snapshot),
    )


def _digest(found: revisions.Comparison, snapshot: snapshots.Snapshot | None) -> str:
    """Names this plan: the revisions, the snapshot and the changes."""
    parts = (
        found.base_commit,
        found.head_commit,
        snapshot.digest if snapshot else "",
        found.changes,
    )
    return "sha256:" + hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _as_run(wanted: desired.Desired, pools: Mapping[str, desired.Pool]) -> desired.Desired:
    """The state with what the controller's own options add to its pools."""
    structure = wanted.structure
    changed = {
        name: msgspec.structs.replace(
            pool, allow_root=pool.allow_root or (name in pools and pools[name].allow_root)
        )
        for name, pool in structure.pools.items()
    }
    return msgspec.structs.replace(
        wanted, structure=msgspec.structs.replace(structure, pools=changed)
    )


# --- views ----------------------------------------------------------------------------------


def _change_view(of: differences.Change) -> ChangeView:
    return ChangeView(of.operation, of.kind, of.name, of.path, of.summary, of.fields)


def _snapshot_view(of: snapshots.Snapshot, now: float) -> SnapshotView:
    live = of.live
    return SnapshotView(
        format_time(live.at), round(snapshots.age_s(live, now), 1), live.revision, of.digest
    )


_AMOUNTS = {"cpu": "cpu_milli", "memory": "memory_bytes", "gpu": "gpu_milli"}


def _impact_view(of: impacts.Impact) -> ImpactView:
    return ImpactView(
        gpus_before=of.total.gpus_before,
        gpus_after=of.total.gpus_after,
        gpus_leaving=of.total.gpus_leaving,
        gpus_entering=of.total.gpus_entering,
        nodes_leaving=hostlists.fold(of.total.nodes_leaving),
        nodes_entering=hostlists.fold(of.total.nodes_entering),
        amounts=[_amount_view(one) for one in of.amounts],
        queues_removed=list(of.queues_removed),
        queues_added=list(of.queues_added),
        jobs=[
            EndedView(
                one.job,
                one.queue,
                one.owner,
                one.how,
                one.gpus,
                round(one.gpu_hours_lost, 4),
                hostlists.fold(one.nodes),
            )
            for one in of.jobs
        ],
        jobs_ended=of.jobs_ended(),
        gpu_hours_lost=round(of.gpu_hours_lost(), 4),
        approval=of.digest,
    )


def _amount_view(of: impacts.AmountChange) -> AmountView:
    def shown(amount: int | None) -> str | None:
        if amount is None:
            return None
        single = desired.Amounts(**{_AMOUNTS[of.resource]: amount})
        return wording.fields(single)[of.resource]

    return AmountView(of.object, f"{of.field}.{of.resource}", shown(of.before), shown(of.after))


def _forecast_view(of: forecasts.Forecast, observed: records.Observed, at: float) -> ForecastView:
    def since(moment: float | None) -> float | None:
        return None if moment is None else round(moment - at, 1)

    return ForecastView(
        horizon_s=of.until - of.at,
        decided_s=round(of.decided_until - of.at, 1),
        shifts=[
            ShiftView(
                job=one.job,
                queue=one.queue,
                is_new=one.is_new,
                before_s=since(one.before),
                after_s=since(one.after),
                later_s=None if one.later_s is None else round(one.later_s, 1),
                estimated=one.estimated,
                reason=one.reason,
            )
            for one in of.shifts
        ],
        evictions=[_eviction_view(one, observed, at) for one in of.evictions],
        spared=[_eviction_view(one, observed, at) for one in of.spared],
        queues=[
            QueueShiftView(**{name: getattr(one, name) for name in one.__struct_fields__})
            for one in of.queues
        ],
        endless=of.endless,
        cycles=of.cycles,
    )


def _eviction_view(of: forecasts.Eviction, observed: records.Observed, at: float) -> EvictionView:
    record = observed.jobs.get(of.job)
    spec = record.spec if record is not None else None
    return EvictionView(
        job=of.job,
        element=of.element if spec is not None and spec.array_count is not None else None,
        queue="" if spec is None else spec.queue,
        reason=of.reason,
        by=of.by,
        at=format_time(of.at),
        in_s=round(of.at - at, 1),
        gpu_hours_lost=round(of.lost_gpu_s / 3600, 4),
        checkpoints=spec is not None and spec.checkpoint is not None,
        back_in_s=None if of.back_at is None else round(of.back_at - at, 1),
    )


def _findings(found: revisions.Comparison) -> list[FindingView]:
    """What is wrong with the head, what is new first."""
    before = {_identity(one) for one in found.base.status.problems}
    rules = found.base.structure.policies | found.head.structure.policies
    shown = [
        _finding_view(one, _identity(one) not in before, rules)
        for one in found.head.status.problems
    ]
    shown.sort(key=lambda one: (not one.is_new, one.severity, one.path, one.line, one.rule))
    return shown


def _identity(of: desired.Problem) -> tuple[str, ...]:
    """What makes a problem the same one in another revision, wherever it stands there."""
    return (of.rule, of.path, of.object, of.field, of.message, of.found)


def _waiver(of: desired.Problem, rules: Mapping[str, desired.Policy]) -> str:
    """Who may let a violation of a policy pass, and how; empty for what nobody may."""
    rule = rules.get(of.rule.removeprefix("policy/")) if of.rule.startswith("policy/") else None
    if rule is None or of.severity != "error":
        return ""
    asked = " or ".join(rule.owners) or "who may change it"
    return (
        f"to let it off, ask {asked}: add to spec.waivers of {rule.path} "
        f"{{object: {of.object}, reason: …, expires: …}}"
    )


def _finding_view(
    of: desired.Problem,
    is_new: bool,  # noqa: FBT001 - one caller
    rules: Mapping[str, desired.Policy],
) -> FindingView:
    message = of.message
    if of.found:
        message += f"; found {of.found}"
    if of.expected:
        message += f"; expected {of.expected}"
    return FindingView(
        rule=of.rule,
        severity=of.severity,
        path=of.path,
        line=of.line,
        column=of.column,
        object=of.object,
        field=of.field,
        message=message,
        is_new=is_new,
        waiver=_waiver(of, rules),
    )


# --- in the controller ----------------------------------------------------------------------


def of_store(
    repository: Path, sub_path: str, *, head: str, base: str | None, reader: Reader, now: float
) -> Plan:
    """The plan of a revision of the repository that is in force.

    Raises:
        PlanError: nothing is in force yet.
        RevisionError: the repository or a revision can't be read.
        StoreError: the store can't be read.
    """
    sync = views.stored_sync(reader.view(views.SYNC))
    if sync.jobs_revision is None:
        raise PlanError("no revision is in force yet; there is nothing to compare with")
    snapshot = snapshots.unpack(snapshots.take(reader, now), "the store")
    found = revisions.compare(
        repository, sub_path, base or sync.jobs_revision, head, before=before_of(snapshot)
    )
    return plan(found, snapshot, now)


def before_of(snapshot: snapshots.Snapshot | None) -> Sequence[str]:
    """Revisions of which something is in force besides the newest."""
    kept = snapshot.live.structure_revision if snapshot is not None else None
    return (kept,) if kept else ()


def main(arguments: list[str]) -> int:
    """Print the plan of a revision against a store, as JSON."""
    parser = argparse.ArgumentParser(prog="python -m reconciler.operations.planning")
    parser.add_argument("--store", required=True)
    parser.add_argument("--repository", required=True, type=Path)
    parser.add_argument("--path", default="")
    parser.add_argument("--head", required=True)
    parser.add_argument("--base")
    given = parser.parse_args(arguments)
    os.nice(5)
    try:
        with contextlib.closing(Reader.open(given.store)) as reader:
            found = of_store(
                given.repository,
                given.path,
                head=given.head,
                base=given.base,
                reader=reader,
                now=time.time(),
            )
    except revisions.RevisionError as error:
        sys.stdout.write(str(error))
        return NOT_FOUND
    except PlanError as error:
        sys.stdout.write(str(error))
        return NOTHING_IN_FORCE
    except (StoreError, snapshots.SnapshotError) as error:
        sys.stdout.write(str(error))
        return UNREADABLE
    sys.stdout.write(msgspec.json.encode(found).decode())
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
