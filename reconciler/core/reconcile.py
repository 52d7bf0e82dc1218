"""The one decision function. Live cycles, plans, simulations and replays all call it.

Desired state, observed state and a time go in; an ``Outcome`` comes out: renewed records, actions,
reasons, events, and the next moment at which time alone changes something. It reads no clock, draws
no random number, and returns the same for the same input on any machine.
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
from reconciler.core.jobs import admission, lifecycle, quarantined_jobs
from reconciler.core.nodes import clock_steps, draining, health, node_reports
from reconciler.core.pools import autoscaling, provisioning
from reconciler.core.quota import budgets, unschedulable
from reconciler.core.snapshot import learned_mix, queue_usage, snapshot_builder
from reconciler.model import desired
from reconciler.model.state import outcome, records, scheduler_state
from reconciler.scheduling import decisions
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.inputs import snapshots

#: The phases of a cycle that the caller may time, in order. Building the outcome comes last.
Phase = Literal["ingest", "admit", "health", "lifecycle", "leave", "snapshot", "schedule", "place"]


def reconcile(
    desired_state: desired.Desired,
    observed: records.Observed,
    now: float,
    *,
    always_schedule: bool = False,
    cache: cycle_cache.CycleCache | None = None,
    ended: Callable[[Phase], None] = lambda _: None,
) -> outcome.Outcome:
    """Decide one cycle.

    Args:
        desired_state: what git asks for.
        observed: every record, and what nodes reported since the last cycle.
        now: seconds since the epoch.
        always_schedule: make the schedule even if the last one is still valid. The outcome is the
            same (see ``schedule_reuse``).
        cache: what earlier cycles computed from exactly these records (``ObservedState.cache``).
            The outcome is the same without it, but takes longer.
        ended: called with each phase when it ends, so that the caller can time it. It must not
            change anything.
    """
    context = cycle_context.CycleContext(desired_state, observed, now, cache)
    pools = _update(context, ended)
    last = schedule_reuse.valid_inputs(context)
    if last is None or always_schedule:
        schedule = _schedule(context, pools, last, ended)
    else:
        schedule = _reuse(context, pools, last)
    return _outcome(context, pools, schedule)


def _update(
    context: cycle_context.CycleContext, ended: Callable[[Phase], None]
) -> provisioning.PoolStates:
    """Run every phase before the schedule: apply reports, desired state, and the time that passed.

    Phases communicate through the drafts of jobs, attempts and nodes in the context. Only the
    state of provisioned pools is passed on explicitly. Overrides replace the desired state that
    later phases read.
    """
    # reports and the clock -> nodes, attempts
    clock_steps.forget_the_future(context)
    node_reports.apply_reports(context)
    ended("ingest")
    # desired state -> jobs
    admission.admit(context)
    # requested overrides -> overrides, drains; context.desired, in which queues are suspended
    overrides.apply(context)
    # results of provisioner scripts -> pools
    pools = provisioning.apply(context)
    ended("admit")
    # nodes, their checks and leases -> states of nodes, lost attempts
    health.watch(context)
    ended("health")
    # attempts, time limits, holds, budgets, drains -> verdicts, states of jobs, stop orders
    lifecycle.progress(context)
    quarantined_jobs.end_overdue(context)
    budgets.enforce(context)
    draining.apply(context)
    admission.admit_successors(context)
    lifecycle.progress_successors(context)
    # differences that the last cycle listed -> remediations
    remediation.apply(context, pools)
    ended("lifecycle")
    # finished jobs, nodes that are gone -> records to forget
    garbage_collection.apply(context)
    ended("leave")
    return pools


class _Schedule(NamedTuple):
    """The part of the outcome that a new or a reused schedule adds.

    Attributes:
        inputs: for which the schedule stays valid; None: the next cycle makes a new one.
        queues: use of each queue; None: unchanged.
        nominations: nodes by job, for capacity that comes free.
        state: what the scheduler remembers for the next cycle.
        expected: start of each pending job; None: unchanged.
    """

    inputs: records.ScheduleInputs | None
    queues: tuple[outcome.QueueUsage, ...] | None
    nominations: Mapping[str, int]
    state: scheduler_state.SchedulerState
    expected: dict[str, outcome.ExpectedStart] | None = None


def _schedule(
    context: cycle_context.CycleContext,
    pools: provisioning.PoolStates,
    last: records.ScheduleInputs | None,
    ended: Callable[[Phase], None],
) -> _Schedule:
    """Make a schedule and apply it.

    Args:
        context: of this cycle, up to date.
        pools: the provisioned pools. They may grow or shrink.
        last: inputs of the last schedule if it is still valid. The new one is then made for the
            same moment.
        ended: see ``reconcile``.
    """
    structure = context.desired.structure
    at = context.now if last is None else last.at
    built = snapshot_builder.build(context, at)
    ended("snapshot")
    decided = scheduling_cycle.schedule(built.snapshot)
    ended("schedule")
    apply_schedule.apply(context, built, decided)
    ended("place")
    if at < decided.wake_at < math.inf:
        context.alarm.wake_schedule(decided.wake_at)
    inputs = schedule_reuse.inputs_of(
        at,
        built.snapshot,
        decided,
        generation=context.desired.generation,
        nominations=context.observed.nominations,
        schedule_at=context.alarm.schedule_at,
    )
    queues = queue_usage.usage_of_queues(
        structure.queues, context.jobs, context.attempts, built, decided
    )
    state = autoscaling.decide(
        context, pools, _scheduler_state(context, built, decided, queues), scheduled=True
    )
    kinds = unschedulable.unschedulable_kinds(
        structure, context.jobs, context.reasons, built.pending.capped
    )
    if kinds != built.pending.let_last:
        inputs = None  # quotas now count other jobs first
        context.alarm.wake(context.now + unschedulable.AGAIN_S)
    if inputs is None and context.alarm.schedule_at is not None:
        context.alarm.wake(context.alarm.schedule_at)
    return _Schedule(inputs, queues, decided.promised, state, _expected_starts(decided))


def _expected_starts(decided: decisions.Decisions) -> dict[str, outcome.ExpectedStart]:
    """Return when each pending job is expected to start, by job."""
    return {
        job: outcome.ExpectedStart(
            start.at, start.certain, start.latest if start.certain else None, start.takes_back
        )
        for job, start in decided.estimates.items()
    }


def _scheduler_state(
    context: cycle_context.CycleContext,
    built: snapshot_builder.SnapshotResult,
    decided: decisions.Decisions,
    queues: tuple[outcome.QueueUsage, ...],
) -> scheduler_state.SchedulerState:
    """Return what the scheduler remembers after a schedule."""
    learned = learned_mix.renewed(
        context.observed.scheduler_state,
        context.desired.structure,
        context.work,
        context.jobs.arrived,
        context.now,
    )
    counts_usage = bool(context.desired.structure.settings.scheduling.usage_strength)
    gpus = {queue.name: queue.allocated[2] / snapshots.WHOLE for queue in queues}
    renewed = msgspec.structs.replace(
        learned,
        turn=learned.turn + bool(decided.placements),
        kept=learned_mix.rooms_of(decided.kept, built.node_names),
        turns=learned_mix.turns_of(context.jobs, decided.turns),
        used=built.use.used,
        offered=built.use.offered,
        slices=built.use.slices,
        used_at=built.at if counts_usage else 0.0,
        held=gpus if counts_usage else {},
    )
    return learned if renewed == learned else renewed


def _reuse(
    context: cycle_context.CycleContext,
    pools: provisioning.PoolStates,
    last: records.ScheduleInputs,
) -> _Schedule:
    """Keep the last schedule, because a new one would be the same."""
    learned = learned_mix.renewed(
        context.observed.scheduler_state,
        context.desired.structure,
        context.work,
        context.jobs.arrived,
        context.now,
    )
    state = autoscaling.decide(context, pools, learned, scheduled=False)
    inputs: records.ScheduleInputs | None = last
    if learned.growing.helped.keys() - state.growing.helped.keys():
        inputs = None  # these jobs' reasons no longer hold
        context.alarm.wake(context.now)
    return _Schedule(inputs, None, context.observed.nominations, state)


def _outcome(
    context: cycle_context.CycleContext, pools: provisioning.PoolStates, schedule: _Schedule
) -> outcome.Outcome:
    """Collect everything that the cycle changed."""
    if schedule.inputs is not None and schedule.inputs.wake_at is not None:
        context.alarm.wake(schedule.inputs.wake_at)
    renewed_jobs = context.jobs.renewed()
    drift = detection.detect_drift(context, pools, schedule.queues)
    return outcome.Outcome(
        now=context.now,
        desired_generation=context.desired.generation,
        jobs=(*context.jobs.replaced, *[renewed_jobs[name] for name in sorted(renewed_jobs)]),
        attempts=tuple(context.attempts.renewed.values()),
        nodes=tuple(context.nodes.renewed.values()),
        new_runs=tuple(context.jobs.new_runs),
        reasons=context.reasons.renewed,
        actions=tuple(context.actions),
        events=tuple(context.events.all),
        drift=drift,
        remedies=tuple(context.remedies),
        overrides=context.overrides,
        answers=context.answers,
        provisions={
            name: renewed
            for name, pool in pools.items()
            if (renewed := pool.record()) is not context.observed.provisions.get(name)
        },
        queues=schedule.queues,
        nominations=schedule.nominations,
        schedule_inputs=schedule.inputs,
        left_jobs=tuple(context.left_jobs),
        left_nodes=tuple(context.nodes.left),
        forget_at=context.forget_at if context.forget_at < math.inf else None,
        scheduler_state=schedule.state,
        expected=schedule.expected,
        next_order=context.jobs.next_order,
        wake_at=context.alarm.wake_at,
    )
