"""The one decision function: live, plan, simulation and replay all call it.

desired, observed, now go in; an ``Outcome`` comes out: renewed records, actions, reasons, events,
and the next moment at which time alone changes something. It reads no clock, draws no random
number, and gives the same answer for the same input on any machine.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import msgspec

from reconciler.core import (
    apply_schedule,
    cycle_cache,
    cycle_context,
    garbage_collection,
    overrides,
    schedule_reuse,
)
from reconciler.core.drift import detection, remediation
from reconciler.core.jobs import admission, lifecycle, quarantined_jobs, running_gangs
from reconciler.core.nodes import clock_steps, draining, health, node_reports
from reconciler.core.pools import autoscaling, provisioning
from reconciler.core.quota import budgets, unschedulable
from reconciler.core.snapshot import learned_mix, snapshot_builder
from reconciler.model import desired
from reconciler.model.state import outcome, records, scheduler_state
from reconciler.model.state.states import AttemptState
from reconciler.scheduling import decisions
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.inputs import snapshots

#: The phases of a cycle, in order; the outcome is put together after the last one.
Phase = Literal["ingest", "admit", "health", "lifecycle", "leave", "snapshot", "schedule", "place"]


def reconcile(
    wanted: desired.Desired,
    observed: records.Observed,
    now: float,
    *,
    always_schedule: bool = False,
    recall: cycle_cache.CycleCache | None = None,
    ended: Callable[[Phase], None] = lambda _: None,
) -> outcome.Outcome:
    """Decide one cycle.

    Args:
        wanted: what git asks for.
        observed: every record, and what nodes said since the last cycle.
        now: seconds since the epoch.
        always_schedule: make the schedule also where the last one still stands; what comes out
            is the same (see ``standing``).
        recall: what earlier cycles worked out of these very records (``Memory.recall``); what
            comes out is the same without it, only later.
        ended: told of each phase when it has ended, so that the caller's clock can measure it;
            nothing comes back from it.
    """
    work = cycle_context.CycleContext(wanted, observed, now, recall)
    _bring_up_to_date(work, ended)
    last = schedule_reuse.find(work)
    if last is None or always_schedule:
        return _outcome(work, _schedule(work, last, ended))
    return _outcome(work, _let_stand(work, last))


def _bring_up_to_date(work: cycle_context.CycleContext, ended: Callable[[Phase], None]) -> None:
    """Every phase before the schedule: what was reported and asked for, and what follows."""
    clock_steps.forget_the_future(work)
    node_reports.apply_reports(work)
    ended("ingest")
    admission.admit(work)
    overrides.apply(work)
    provisioning.apply(work)
    ended("admit")
    health.watch(work)
    ended("health")
    lifecycle.progress(work)
    quarantined_jobs.end_overdue(work)
    budgets.enforce(work)
    draining.apply(work)
    admission.admit_successors(work)
    lifecycle.progress_successors(work)
    remediation.apply(work)
    ended("lifecycle")
    garbage_collection.apply(work)
    ended("leave")


class _Schedule(NamedTuple):
    """What a schedule, or the one that still stands, adds to an outcome."""

    stands: records.ScheduleInputs | None
    queues: tuple[outcome.QueueUsage, ...] | None
    promised: Mapping[str, int]
    recollection: scheduler_state.Recollection
    expected: dict[str, outcome.ExpectedStart] | None = None


def _remembered(
    work: cycle_context.CycleContext,
    situation: snapshot_builder.SnapshotResult,
    decided: decisions.Decisions,
    usage: tuple[outcome.QueueUsage, ...],
) -> scheduler_state.Recollection:
    """What the scheduler remembers after a schedule."""
    found = learned_mix.renewed(work)
    counts = bool(work.desired.structure.settings.scheduling.usage_strength)
    renewed = msgspec.structs.replace(
        found,
        turn=found.turn + bool(decided.placements),
        kept=learned_mix.rooms_of(decided.kept, situation.node_names),
        turns=learned_mix.turns_of(work, decided.turns),
        used=situation.used,
        offered=situation.offered,
        slices=situation.slices,
        used_at=situation.at if counts else 0.0,
        held={one.name: one.allocated[2] / snapshots.WHOLE for one in usage} if counts else {},
    )
    return found if renewed == found else renewed


def _let_stand(work: cycle_context.CycleContext, last: records.ScheduleInputs) -> _Schedule:
    """The schedule that was made before, which would come out the same."""
    known = learned_mix.renewed(work)
    remembered = autoscaling.decide(work, known, scheduled=False)
    stands: records.ScheduleInputs | None = last
    if known.growing.helped.keys() - remembered.growing.helped.keys():
        stands = None  # what was said of them holds no longer
        work.wake(work.now)
    return _Schedule(stands, None, work.observed.promised, remembered)


def _schedule(
    work: cycle_context.CycleContext,
    last: records.ScheduleInputs | None,
    ended: Callable[[Phase], None],
) -> _Schedule:
    """Make the schedule and apply it; as of the moment of ``last`` where that still stands."""
    at = work.now if last is None else last.at
    situation = snapshot_builder.build(work, at)
    ended("snapshot")
    decided = scheduling_cycle.schedule(situation.snapshot)
    ended("schedule")
    apply_schedule.apply(work, situation, decided)
    ended("place")
    if at < decided.wake_at < math.inf:
        work.wake_schedule(decided.wake_at)
    new = schedule_reuse.made(work, at, situation.snapshot, decided)
    usage = _queue_usage(work, situation, decided)
    remembered = autoscaling.decide(
        work, _remembered(work, situation, decided, usage), scheduled=True
    )
    if unschedulable.kinds(work, situation.capped) != situation.let_last:
        new = None  # quotas let others through by what was told now
        work.wake(work.now + unschedulable.AGAIN_S)
    if new is None and work.schedule_at is not None:
        work.wake(work.schedule_at)
    starts = {
        job: outcome.ExpectedStart(
            one.at, one.certain, one.latest if one.certain else None, one.takes_back
        )
        for job, one in decided.estimates.items()
    }
    return _Schedule(new, usage, decided.promised, remembered, starts)


def _outcome(work: cycle_context.CycleContext, schedule_: _Schedule) -> outcome.Outcome:
    stands = schedule_.stands
    if stands is not None and stands.wake_at is not None:
        work.wake(stands.wake_at)
    renewed_jobs = work.renewed_jobs()
    found = detection.find(work, schedule_.queues)
    return outcome.Outcome(
        now=work.now,
        desired_generation=work.desired.generation,
        jobs=(*work.replaced, *[renewed_jobs[name] for name in sorted(renewed_jobs)]),
        attempts=tuple(work.attempts.values()),
        nodes=tuple(work.nodes.values()),
        new_runs=tuple(work.new_runs),
        reasons=work.reasons,
        actions=tuple(work.actions),
        events=tuple(work.events),
        drift=found,
        remedies=tuple(work.remedies),
        overrides=work.overrides,
        answers=work.answers,
        provisions={
            name: renewed
            for name, book in work.books.items()
            if (renewed := book.record()) is not work.observed.provisions.get(name)
        },
        queues=schedule_.queues,
        promised=schedule_.promised,
        standing=stands,
        left_jobs=tuple(work.left_jobs),
        left_nodes=tuple(work.left_nodes),
        look_at=work.look_at if work.look_at < math.inf else None,
        recollection=schedule_.recollection,
        expected=schedule_.expected,
        next_order=work.next_order,
        wake_at=work.wake_at,
    )


def _queue_usage(
    work: cycle_context.CycleContext,
    situation: snapshot_builder.SnapshotResult,
    decided: decisions.Decisions,
) -> tuple[outcome.QueueUsage, ...]:
    table: snapshots.QueueColumns = situation.snapshot.queues
    queues = work.desired.structure.queues
    allocated = table.allocated.tolist()
    above = table.parent.tolist()
    row_of = {name: row for row, name in enumerate(table.names)}
    running = {name: len(jobs) for name, jobs in situation.held.running.items()}
    came: set[str] = set()
    for attempt in work.attempts.values():
        if attempt.state is AttemptState.ENDED or attempt.id in work.observed.attempts:
            continue
        spec = running_gangs.spec_of(work, attempt.job)
        if spec is None:
            continue
        if attempt.job not in came and attempt.job not in situation.held.running.get(
            spec.queue, {}
        ):
            running[spec.queue] = running.get(spec.queue, 0) + 1
        came.add(attempt.job)
        row, amounts = row_of.get(spec.queue, -1), attempt.resources.as_vector()
        while row >= 0:
            for resource in range(3):
                allocated[row][resource] += amounts[resource]
            row = above[row]
    nothing = decisions.QueueShare(_UNMEASURED, (0, 0, 0), (0, 0, 0))
    shares = decided.shares or (nothing,) * len(queues)
    return tuple(
        outcome.QueueUsage(
            name=queue.name,
            parent=queue.parent,
            allocated=(amounts[0], amounts[1], amounts[2]),
            guaranteed=queue.guaranteed.as_vector(),
            limit=queue.limit.as_vector(),
            pending_jobs=situation.pending_jobs.get(queue.name, 0),
            running_jobs=running.get(queue.name, 0),
            fair_share=_measured(share.fair_share),
            demand=_countable(share.demand),
            weight=queue.weight,
            priority=queue.priority,
            pools=_by_pool(queue, situation, share),
        )
        for queue, amounts, share in zip(queues.values(), allocated, shares, strict=True)
    )


def _by_pool(
    queue: desired.Queue, situation: snapshot_builder.SnapshotResult, share: decisions.QueueShare
) -> tuple[outcome.PoolUsage, ...]:
    """What a queue has in pools with amounts of their own, those first that it names itself."""
    pools = situation.snapshot.pools
    if pools is None or not share.pools:
        return ()
    by_name = dict(zip(pools.names, share.pools, strict=True))
    flavors = {flavor.pool: flavor for flavor in queue.flavors}
    others = [name for name, one in by_name.items() if name not in flavors and any(one.allocated)]
    found = []
    for name in (*flavors, *others):
        flavor, one = flavors.get(name, desired.QueueFlavor(name)), by_name[name]
        found.append(
            outcome.PoolUsage(
                pool=name,
                allocated=one.allocated,
                guaranteed=flavor.guaranteed.as_vector(),
                limit=flavor.limit.as_vector(),
                fair_share=_measured(one.fair_share),
                demand=_countable(one.demand),
                named=name in flavors,
            )
        )
    return tuple(found)


_UNMEASURED = (snapshots.UNLIMITED, snapshots.UNLIMITED, snapshots.UNLIMITED)


def _countable(amounts: snapshots.Vector) -> snapshots.Vector:
    """What many jobs ask for together may be more than what is stored can hold."""
    cpu, memory, gpu = (min(amount, snapshots.UNLIMITED) for amount in amounts)
    return (cpu, memory, gpu)


def _measured(share: snapshots.Vector) -> tuple[int | None, int | None, int | None]:
    cpu, memory, gpu = (None if amount >= snapshots.UNLIMITED else amount for amount in share)
    return (cpu, memory, gpu)
