"""Plans: the effect of a revision before it is merged, as one value for text, JSON and comments.

Two revisions and a live controller's state come in. Changed objects, impact on GPUs, guarantees and
running work, forecasts, findings and a digest go out. Without a controller there is no forecast,
and the plan says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from reconciler.core.safety import impact, service_exits, sync_limits
from reconciler.desired.apply import sync_holds
from reconciler.model import desired
from reconciler.model.state import records, states
from reconciler.model.values import hostlists
from reconciler.model.values.times import format_time
from reconciler.operations.plan import (
    change_notes,
    cluster_snapshot,
    diff,
    document_fields,
    plan_types,
    revisions,
)
from reconciler.operations.validate import introduced

if TYPE_CHECKING:
    from reconciler.simulation.forecast import cluster_forecast, forecast_diff

#: Default horizon of the forecast.
HORIZON_S = 24 * 3600.0
#: Why nothing starts in a forecast.
NO_NODES = "no node is left in service"


def plan(
    found: revisions.Comparison,
    snapshot: cluster_snapshot.DigestedSnapshot | None,
    now: float,
    *,
    no_snapshot: str = "",
    horizon_s: float = HORIZON_S,
    forecast: bool = True,
    not_allowed: str = "",
) -> plan_types.Plan:
    """Put everything together.

    Args:
        found: both revisions.
        snapshot: what a controller knows.
        now: seconds since the epoch.
        no_snapshot: why there is no snapshot.
        horizon_s: how far is looked ahead.
        forecast: whether to look ahead at all.
        not_allowed: why a controller that is there tells nothing of running work.
    """
    observed = snapshot.live.observed if snapshot else records.Observed()
    at = snapshot.live.at if snapshot else now
    before = snapshot.live.held if snapshot else {}
    # as git has them: so the controller judges, and so its digests come out
    found, held, waiting = _apart(found, _held(found, observed, at, before), before)
    base, head = found.base, found.head
    ahead: plan_types.ForecastView | None = None
    reason = no_snapshot if snapshot is None else ""
    if not forecast:
        reason = "it was not asked for (--no-forecast)"
    elif not found.changes:
        reason = reason or "nothing changes"
    elif snapshot is not None:
        ahead, reason = _ahead(found, snapshot, horizon_s)
    measured = impact.measure_impact(base, head, observed, at)
    if ahead is not None and measured.total.leaves_none:
        ahead = _without_nodes(ahead)
    findings = _findings(found)
    refused = any(one.severity == "error" and one.is_new and one.touched for one in findings)
    return plan_types.Plan(
        verdict=_verdict(found, is_refused=refused, is_held=bool(held)),
        held=held,
        waiting=waiting,
        structure_refused=found.structure_refused,
        base=found.base_commit,
        head=found.head_commit,
        merged=found.merged,
        apart=found.apart,
        changes=_changes(found, snapshot),
        impact=_impact_view(measured, base, head, observed),
        forecast=ahead,
        no_forecast=reason,
        findings=findings,
        snapshot=None if snapshot is None else _snapshot_view(snapshot, now),
        digest=_digest(found, snapshot),
        not_allowed=not_allowed,
    )


def _without_nodes(ahead: plan_types.ForecastView) -> plan_types.ForecastView:
    """Return a forecast in which nothing starts because no node is left: it has no other reason."""
    shifts = [
        msgspec.structs.replace(one, reason=NO_NODES) if one.after_s is None else one
        for one in ahead.shifts
    ]
    return msgspec.structs.replace(ahead, shifts=shifts)


def _ahead(
    found: revisions.Comparison, snapshot: cluster_snapshot.DigestedSnapshot, horizon_s: float
) -> tuple[plan_types.ForecastView | None, str]:
    """Both futures beside each other; None, and why, where there is no end to one of them."""
    from reconciler.operations.plan import parallel_forecast  # noqa: PLC0415 - the scheduler, for this alone
    from reconciler.simulation.engine.event_queue import SimulationError  # noqa: PLC0415

    observed, at = snapshot.live.observed, snapshot.live.at
    pools = {pool.name: pool for pool in snapshot.live.pools}
    base, head = _as_run(found.base, pools), _as_run(found.head, pools)
    try:
        both = parallel_forecast.forecast(base, head, observed, at, horizon_s)
    except SimulationError as error:
        return None, f"the simulation found no end: {error}"
    return _forecast_view(both, observed, at), ""


def _digest(found: revisions.Comparison, snapshot: cluster_snapshot.DigestedSnapshot | None) -> str:
    """Names this plan: the revisions, the snapshot and the changes."""
    parts = (
        found.base_commit,
        found.head_commit,
        snapshot.digest if snapshot else "",
        found.changes,
    )
    return "sha256:" + hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _as_run(wanted: desired.Desired, pools: Mapping[str, desired.Pool]) -> desired.Desired:
    """Return the state with what the controller's own options add to its pools."""
    structure = wanted.structure
    changed = {
        name: (
            msgspec.structs.replace(pool, allow_root=True, runs_unmapped=True)
            if name in pools and pools[name].runs_unmapped
            else pool
        )
        for name, pool in structure.pools.items()
    }
    return msgspec.structs.replace(
        wanted, structure=msgspec.structs.replace(structure, pools=changed)
    )


def _apart(
    found: revisions.Comparison, held: list[plan_types.HeldPartView], before: Mapping[str, str]
) -> tuple[revisions.Comparison, list[plan_types.HeldPartView], list[plan_types.HeldPartView]]:
    """Return what the revision itself changes and has held, and what was held before and still is.

    Objects that still wait stay in force, with or without the revision, and are not its changes.

    Args:
        found: both revisions, the second with all that was held before it.
        held: what of that will be held.
        before: jobs whose removal is held already.
    """

    def goes_on(one: plan_types.HeldPartView) -> bool:
        if one.part == "structure":
            return found.while_held is not None
        return before.keys() >= set(one.jobs)

    waiting = [] if found.is_base else [one for one in held if goes_on(one)]
    if not waiting:
        return found, held, []
    head = found.head
    if found.while_held is not None and any(one.part == "structure" for one in waiting):
        head = found.while_held
    jobs = found.base.jobs
    staying = {name: jobs[name] for one in waiting for name in one.jobs}
    head = msgspec.structs.replace(head, jobs={**head.jobs, **staying})
    own = [one for one in held if one not in waiting]
    changes = found.changes_to(head)
    return msgspec.structs.replace(found, head=head, changes=changes), own, waiting


def _held(
    found: revisions.Comparison,
    observed: records.Observed,
    at: float,
    before: Mapping[str, str],
) -> list[plan_types.HeldPartView]:
    """Return what waits after the merge, by the limits in force, as the controller decides it.

    ``before`` are jobs whose removal is held already, with its digest.
    """
    base, head = found.base, found.head
    holds = sync_holds.Holds(dict(before))
    removed = [name for name in base.jobs if name not in head.jobs and name not in head.refused]
    if not removed and base.structure == head.structure:
        return []
    holds.judge(
        sync_limits.SafetyGate(lambda: observed, lambda: at),
        before=base,
        after=head,
        removed=removed,
        approvals=frozenset(found.approvals),
    )
    rules = {
        "structure": [one.rule for one in holds.structure_problems],
        "removal": [one.rule for one in holds.problems],
    }
    return [
        plan_types.HeldPartView(
            part=one.part,
            rules=rules[one.part],
            message=one.message.removeprefix("held: "),
            jobs=list(one.jobs),
            digest=one.digest,
            command=f"muster approve {one.digest}" if one.digest else "",
            until=_looked_at(one),
            reasons=list(one.reasons),
        )
        for one in holds.shown
    ]


def _looked_at(one: desired.HeldPart) -> str | None:
    """Return when a held change is evaluated again; None also if that would change nothing."""
    if one.until is None or any(sync_limits.NO_TIME in reason for reason in one.reasons):
        return None
    return format_time(one.until)


# --- views ----------------------------------------------------------------------------------


def _changes(
    found: revisions.Comparison, snapshot: cluster_snapshot.DigestedSnapshot | None
) -> list[plan_types.ChangeView]:
    return [change_view(one, change_notes.note(one, found, snapshot)) for one in found.changes]


def change_view(of: diff.DocumentDiff, note: str = "") -> plan_types.ChangeView:
    """Return an object that differs, as plans show it."""
    return plan_types.ChangeView(
        of.operation, of.kind, of.name, of.path, of.summary, of.fields, note
    )


def _snapshot_view(of: cluster_snapshot.DigestedSnapshot, now: float) -> plan_types.SnapshotView:
    live = of.live
    return plan_types.SnapshotView(
        format_time(live.at),
        round(cluster_snapshot.age_s(live, now), 1),
        live.revision,
        of.digest,
        live.structure_revision,
    )


_AMOUNTS = {"cpu": "cpu_milli", "memory": "memory_bytes", "gpu": "gpu_milli"}


def _impact_view(
    of: impact.Impact,
    base: desired.Desired,
    head: desired.Desired,
    observed: records.Observed,
) -> plan_types.ImpactView:
    return plan_types.ImpactView(
        gpus_before=of.total.gpus_before,
        gpus_after=of.total.gpus_after,
        gpus_leaving=of.total.gpus_leaving,
        gpus_entering=of.total.gpus_entering,
        nodes_leaving=hostlists.fold(of.total.nodes_leaving),
        nodes_entering=hostlists.fold(of.total.nodes_entering),
        amounts=[_amount_view(one) for one in of.amounts],
        queues_removed=list(of.queues_removed),
        queues_added=list(of.queues_added),
        above=list(_above(base.structure, head.structure, observed)),
        jobs=[
            plan_types.EndedView(
                one.job,
                one.queue,
                one.owner,
                one.how,
                one.gpus,
                round(one.gpu_hours_lost, 4),
                hostlists.fold(one.nodes),
                one.leaves_in_s,
            )
            for one in of.jobs
        ],
        jobs_ended=of.jobs_ended(),
        gpu_hours_lost=round(of.gpu_hours_lost(), 4),
        approval=of.digest,
        exits=[
            plan_types.ServiceExitView(one.pool, hostlists.fold(one.nodes), one.gpus, one.why)
            for one in service_exits.group(of.exits)
        ],
        risks=[
            plan_types.CheckRiskView(one.pool, list(one.checks), one.nodes, one.gpus, one.trial)
            for one in of.risks
        ],
    )


def _above(
    before: desired.Structure, after: desired.Structure, observed: records.Observed
) -> Iterator[plan_types.AboveView]:
    """Queues that hold more than a limit that is lowered, with those below them."""
    for above in impact.above_limits(before, after, observed):
        yield plan_types.AboveView(
            above.queue,
            above.resource,
            _amount(above.resource, above.limit) or "0",
            _amount(above.resource, above.used) or "0",
            above.jobs,
            above.pool,
            above.remedied,
        )


def _amount(resource: str, amount: int | None) -> str | None:
    if amount is None:
        return None
    single = desired.QuotaAmounts(**{_AMOUNTS[resource]: amount})
    return document_fields.fields(single)[resource]


def _amount_view(of: impact.AmountChange) -> plan_types.AmountView:
    before, after = _amount(of.resource, of.before), _amount(of.resource, of.after)
    return plan_types.AmountView(of.object, f"{of.field}.{of.resource}", before, after)


def _forecast_view(
    of: forecast_diff.Forecast, observed: records.Observed, at: float
) -> plan_types.ForecastView:
    def since(moment: float | None) -> float | None:
        return None if moment is None else round(moment - at, 1)

    return plan_types.ForecastView(
        horizon_s=of.until - of.at,
        decided_s=round(of.decided_until - of.at, 1),
        shifts=[
            plan_types.ShiftView(
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
            plan_types.QueueShiftView(
                **{name: getattr(one, name) for name in one.__struct_fields__}
            )
            for one in of.queues
        ],
        endless=of.endless,
        cycles=of.cycles,
    )


def _eviction_view(
    of: cluster_forecast.ForecastEviction, observed: records.Observed, at: float
) -> plan_types.EvictionView:
    record = observed.jobs.get(of.job)
    spec = record.spec if record is not None else None
    return plan_types.EvictionView(
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


def _findings(found: revisions.Comparison) -> list[plan_types.FindingView]:
    """Return what is wrong with the head, new findings first."""
    before = {introduced.identity(one) for one in found.base.status.problems}
    rules = found.base.structure.policies | found.head.structure.policies
    shown = [
        _finding_view(
            one,
            rules,
            is_new=introduced.identity(one) not in before,
            touched=not one.path or one.path in found.paths,
        )
        for one in found.head.status.problems
    ]
    shown.sort(key=lambda one: (not one.is_new, one.severity, one.path, one.line, one.rule))
    return shown


def _waiver(of: desired.Problem, rules: Mapping[str, desired.AdmissionPolicy]) -> str:
    """Return who may waive a violation of a policy, and how; empty if nobody may."""
    rule = rules.get(of.rule.removeprefix("policy/")) if of.rule.startswith("policy/") else None
    if rule is None or of.severity != "error":
        return ""
    approvers = " or ".join(rule.owners) or "who may change it"
    return (
        f"to let it off, ask {approvers}: add to spec.waivers of {rule.path} "
        f"{{object: {of.object}, reason: …, expires: …}}"
    )


def _finding_view(
    of: desired.Problem,
    rules: Mapping[str, desired.AdmissionPolicy],
    *,
    is_new: bool,
    touched: bool,
) -> plan_types.FindingView:
    message = of.message
    if of.found:
        message += plan_types.said_found(of.found)
    if of.expected:
        message += f"; expected {of.expected}"
    return plan_types.FindingView(
        rule=of.rule,
        severity=of.severity,
        path=of.path,
        line=of.line,
        column=of.column,
        object=of.object,
        field=of.field,
        message=message,
        is_new=is_new,
        touched=touched,
        waiver=_waiver(of, rules),
        found=of.found,
    )


def in_force(
    snapshot: cluster_snapshot.DigestedSnapshot | None,
) -> revisions.ControllerRevision | None:
    """Return the state that a revision is compared with; None if it is unknown."""
    live = snapshot.live if snapshot is not None else None
    if live is None or live.revision is None:
        return None
    jobs = live.observed.jobs
    return revisions.ControllerRevision(
        live.revision,
        live.structure_revision,
        staying={name: jobs[name].spec for name in live.held if name in jobs},
        jobs={name: one.spec for name, one in jobs.items() if not one.removed},
        begun={
            name: one.key
            for name, one in jobs.items()
            if one.state not in states.WAITING_JOB_STATES
        },
    )


def _verdict(found: revisions.Comparison, *, is_refused: bool, is_held: bool) -> plan_types.Verdict:
    if is_refused or found.structure_refused:
        return "refused"
    if is_held:
        return "held"
    return "changes" if found.changes else "none"
