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
from reconciler.core.cycle import cycle_alarm, cycle_jobs
from reconciler.core.drift import detection, remediation
from reconciler.core.jobs import (
    admission,
    late_successes,
    lifecycle,
    quarantined_jobs,
    takeover,
)
from reconciler.core.nodes import check_trials, clock_steps, draining, health, node_reports
from reconciler.core.pools import autoscaling, provisioning
from reconciler.core.quota import budgets, unschedulable
from reconciler.core.snapshot import learned_mix, queue_usage, snapshot_builder, start_history
from reconciler.model import desired
from reconciler.model.state import outcome, records, scheduler_state
from reconciler.scheduling import decisions
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.inputs import snapshots

#: The phases of a cycle that the caller may time, in order. Building the outcome comes last.
Phase = Literal["ingest", "admit", "health", "lifecycle", "leave", "snapshot", "schedule", "place"]


class PhaseFields(NamedTuple):
    """The fields of the context that a phase uses, each as a list in one text.

    Attributes:
        observed: what it reads of the observed state itself, besides what the parts hold.
        reads: parts and values of this cycle that it reads.
        writes: those that it changes or replaces.
    """

    observed: str
    reads: str
    writes: str


#: What each phase reads and writes, in the order in which they run. A test derives the same from
#: the code. Every phase may also read ``now`` and use the cache. ``stops`` and ``losses`` stand
#: for the parts that they change. The desired state and the provisioned pools are passed on.
PHASES: Mapping[str, PhaseFields] = {
    "clock_steps.forget_the_future": PhaseFields(
        observed="attempts leader_since",
        reads="attempts jobs nodes remedies",
        writes="attempts events jobs nodes remedies",
    ),
    "node_reports.apply_reports": PhaseFields(
        observed="answered reports",
        reads="attempts jobs nodes",
        writes="actions attempts events nodes",
    ),
    "admission.admit": PhaseFields(
        observed="active desired_generation scheduler_state",
        reads="attempts jobs",
        writes="events jobs",
    ),
    "late_successes.apply": PhaseFields(
        observed="reports",
        reads="attempts jobs",
        writes="attempts events jobs",
    ),
    "takeover.apply": PhaseFields(
        observed="desired_generation leader_since reports",
        reads="attempts jobs nodes",
        writes="actions attempts events jobs nodes",
    ),
    "overrides.apply": PhaseFields(
        observed="asked overrides",
        reads="jobs nodes override_drains overrides",
        writes="alarm answers events jobs override_drains overrides",
    ),
    "provisioning.apply": PhaseFields(
        observed="provisioned provisions",
        reads="attempts nodes override_drains",
        writes="absent actions alarm events override_drains",
    ),
    "health.watch": PhaseFields(
        observed="leader_since unheard",
        reads="absent attempts jobs nodes override_drains remedies",
        writes="actions alarm attempts events nodes",
    ),
    "check_trials.apply": PhaseFields(
        observed="",
        reads="absent attempts nodes",
        writes="actions events nodes",
    ),
    "lifecycle.progress": PhaseFields(
        observed="watched",
        reads="attempts jobs nodes remedies work",
        writes="actions alarm attempts events jobs remedies work",
    ),
    "quarantined_jobs.end_overdue": PhaseFields(
        observed="quarantined",
        reads="attempts nodes",
        writes="actions alarm attempts",
    ),
    "budgets.enforce": PhaseFields(
        observed="scheduler_state",
        reads="attempts jobs nodes work",
        writes="actions alarm attempts events jobs",
    ),
    "draining.apply": PhaseFields(
        observed="",
        reads="attempts jobs nodes",
        writes="actions alarm attempts events jobs",
    ),
    "admission.admit_successors": PhaseFields(
        observed="scheduler_state",
        reads="attempts jobs",
        writes="events jobs",
    ),
    "lifecycle.progress_successors": PhaseFields(
        observed="",
        reads="attempts jobs nodes",
        writes="actions alarm attempts events jobs",
    ),
    "lifecycle.cancel_unmet": PhaseFields(
        observed="",
        reads="attempts jobs nodes overrides reasons",
        writes="actions alarm attempts events jobs",
    ),
    "remediation.apply": PhaseFields(
        observed="drift remedies reports",
        reads="attempts jobs nodes override_drains remedies",
        writes="actions alarm attempts events jobs override_drains remedies",
    ),
    "garbage_collection.apply": PhaseFields(
        observed="active desired_generation forget_at jobs quarantined",
        reads="forget_at jobs nodes",
        writes="alarm events forget_at left_jobs nodes",
    ),
    "schedule_reuse.valid_inputs": PhaseFields(
        observed="overrides schedule_inputs",
        reads="attempts jobs nodes overrides",
        writes="",
    ),
    "schedule_reuse.due": PhaseFields(
        observed="overrides schedule_inputs",
        reads="nodes overrides",
        writes="",
    ),
    "snapshot_builder.build": PhaseFields(
        observed="desired_generation nominations scheduler_state",
        reads="attempts jobs nodes overrides reasons work",
        writes="alarm",
    ),
    "schedule_reuse.inputs_of": PhaseFields(
        observed="nominations",
        reads="",
        writes="",
    ),
    "apply_schedule.apply": PhaseFields(
        observed="scheduler_state",
        reads="attempts jobs nodes reasons",
        writes="actions attempts events jobs reasons",
    ),
    "autoscaling.decide": PhaseFields(
        observed="attempts jobs nodes",
        reads="attempts jobs nodes override_drains reasons",
        writes="actions alarm events jobs reasons",
    ),
    "detection.detect_drift": PhaseFields(
        observed="drift leader_since",
        reads="absent attempts jobs nodes overrides remedies",
        writes="alarm events nodes",
    ),
}


def reconcile(
    desired_state: desired.Desired,
    observed: records.Observed,
    now: float,
    *,
    cache: cycle_cache.CycleCache | None = None,
    ended: Callable[[Phase], None] = lambda _: None,
    schedule: Callable[[snapshots.Snapshot], decisions.Decisions] = scheduling_cycle.schedule,
    pace: schedule_reuse.Pace = schedule_reuse.PACE,
) -> outcome.Outcome:
    """Decide one cycle.

    Args:
        desired_state: what git asks for.
        observed: every record, and what nodes reported since the last cycle.
        now: seconds since the epoch.
        cache: what earlier cycles computed from exactly these records (``ObservedState.cache``).
            The outcome is the same without it, but takes longer.
        ended: called with each phase when it ends, so that the caller can time it. It must not
            change anything.
        schedule: decides what starts, from a snapshot.
        pace: how often schedules are made, and how often in full.
    """
    context = cycle_context.CycleContext(desired_state, observed, now, cache)
    in_force, pools = _update(context, desired_state, ended)
    last = schedule_reuse.valid_inputs(context, in_force.generation)
    if last is not None and pace.reuses:
        made = _reuse(context, in_force, pools, last)
    else:
        due = schedule_reuse.due(context, in_force, last)
        made = _schedule(context, in_force, pools, ended, due, pace=pace, schedule=schedule)
    return _outcome(context, in_force, pools, made)


def _update(
    context: cycle_context.CycleContext,
    desired_state: desired.Desired,
    ended: Callable[[Phase], None],
) -> tuple[desired.Desired, provisioning.PoolStates]:
    """Run every phase before the schedule: apply reports, desired state, and the time that passed.

    Phases communicate through the parts of the context, as ``PHASES`` says.

    Returns:
        The desired state in force, which differs from git in what overrides suspend, and the state
        of provisioned pools.
    """
    # reports and the clock -> nodes, attempts
    clock_steps.forget_the_future(context)
    recovers = desired_state.recovery is not None
    node_reports.apply_reports(context, desired_state.structure)
    ended("ingest")
    # desired state -> jobs
    admission.admit(context, desired_state)
    # successes of attempts that were declared lost -> attempts, jobs
    late_successes.apply(context)
    # what nodes run and a store from the past does not know -> attempts, jobs
    takeover.apply(context, desired_state)
    # requested overrides -> overrides, drains, and the desired state that later phases read
    in_force = overrides.apply(context, desired_state)
    structure = in_force.structure
    # results of provisioner scripts -> pools
    pools = provisioning.apply(context, structure)
    ended("admit")
    # nodes, their checks and leases -> states of nodes, lost attempts
    health.watch(context, structure, recovers=recovers)
    # what nodes have made of changed checks -> checks that each is given
    check_trials.apply(context, structure)
    ended("health")
    # attempts, time limits, holds, budgets, drains -> verdicts, states of jobs, stop orders
    awaiting = desired_state.awaiting
    lifecycle.progress(context, structure, awaiting)
    quarantined_jobs.end_overdue(context, awaiting)
    budgets.enforce(context, structure)
    draining.apply(context)
    admission.admit_successors(context, in_force)
    lifecycle.progress_successors(context)
    # dependencies that the last cycle found can't be met -> states of jobs
    lifecycle.cancel_unmet(context, structure, awaiting)
    # differences that the last cycle listed -> remediations
    remediation.apply(context, structure, pools)
    ended("lifecycle")
    # finished jobs, nodes that are gone -> records to forget
    garbage_collection.apply(context, in_force)
    ended("leave")
    return in_force, pools


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
    in_force: desired.Desired,
    pools: provisioning.PoolStates,
    ended: Callable[[Phase], None],
    due: schedule_reuse.Due,
    *,
    pace: schedule_reuse.Pace,
    schedule: Callable[[snapshots.Snapshot], decisions.Decisions],
) -> _Schedule:
    """Make a schedule and apply it.

    Args:
        context: of this cycle, up to date.
        in_force: the desired state.
        pools: the provisioned pools. They may grow or shrink.
        ended, pace, schedule: see ``reconcile``.
        due: the moment for which it is made, and whether a quick one is enough.
    """
    structure, at = in_force.structure, due.at
    built = snapshot_builder.build(context, in_force, at, quick_since=due.quick_since)
    ended("snapshot")
    decided = schedule(built.snapshot)
    ended("schedule")
    apply_schedule.apply(context, structure.pools, built, decided)
    ended("place")
    if at < decided.wake_at < math.inf:
        context.alarm.wake_schedule(decided.wake_at)
    inputs = schedule_reuse.inputs_of(context, in_force, built.snapshot, decided, due, pace=pace)
    queues = queue_usage.usage_of_queues(
        structure.queues, context.jobs, context.attempts, built, decided
    )
    held = None
    if structure.settings.scheduling.usage_strength:
        held = {queue.name: queue.allocated[2] / snapshots.WHOLE for queue in queues}
    learned = _learned(context, structure)
    remembered = _scheduler_state(learned, context.jobs, built, decided, held)
    state = autoscaling.decide(context, in_force, pools, remembered, scheduled=True)
    kinds = unschedulable.unschedulable_kinds(
        structure, context.jobs, context.reasons, built.pending.capped
    )
    if kinds != built.pending.let_last:
        inputs = None  # quotas now count other jobs first
        context.alarm.wake(context.now + unschedulable.AGAIN_S)
    if inputs is None and context.alarm.schedule_at is not None:
        context.alarm.wake(context.alarm.schedule_at)
    state = start_history.renewed(state, context.jobs, decided.estimates, at)
    if due.quick_since is not None:
        if learned.growing.helped.keys() - state.growing.helped.keys():
            inputs = None  # as in ``_reuse``
            context.alarm.wake(context.now)
        return _Schedule(inputs, queues, decided.promised, state)
    expected = start_history.expected_starts(state, context.jobs, decided.estimates, at)
    work = len(built.snapshot.lines) + len(built.snapshot.holdings)
    inputs = _until_lapsed(context.alarm, inputs, start_history.lapses_at(expected, at, work))
    return _Schedule(inputs, queues, decided.promised, state, expected)


def _until_lapsed(
    alarm: cycle_alarm.CycleAlarm,
    inputs: records.ScheduleInputs | None,
    lapses_at: float | None,
) -> records.ScheduleInputs | None:
    """Return inputs of a schedule that stands until the first estimate has passed, and wake then.

    Who waits is told estimates, so they are made anew when one did not come true.
    """
    if lapses_at is None:
        return inputs
    alarm.wake(lapses_at)
    if inputs is None or (inputs.wake_at is not None and inputs.wake_at <= lapses_at):
        return inputs
    return msgspec.structs.replace(inputs, wake_at=lapses_at)


def _learned(
    context: cycle_context.CycleContext, structure: desired.Structure
) -> scheduler_state.SchedulerState:
    """Return what the scheduler remembers, after the arrivals and ends of this cycle."""
    before, arrived = context.observed.scheduler_state, context.jobs.arrived
    return learned_mix.renewed(before, structure, context.work, arrived, context.now)


def _scheduler_state(
    learned: scheduler_state.SchedulerState,
    jobs: cycle_jobs.CycleJobs,
    built: snapshot_builder.SnapshotResult,
    decided: decisions.Decisions,
    held: dict[str, float] | None,
) -> scheduler_state.SchedulerState:
    """Return what the scheduler remembers after a schedule.

    Args:
        learned: the same before it.
        jobs: of this cycle.
        built: the snapshot.
        decided: the schedule.
        held: GPUs of each queue; None if use over time does not count.
    """
    renewed = msgspec.structs.replace(
        learned,
        turn=learned.turn + bool(decided.placements),
        kept=learned_mix.rooms_of(decided.kept, built.node_names),
        turns=learned_mix.turns_of(jobs, decided.turns),
        used=built.use.used,
        offered=built.use.offered,
        slices=built.use.slices,
        used_at=0.0 if held is None else built.at,
        held=held or {},
    )
    return learned if renewed == learned else renewed


def _reuse(
    context: cycle_context.CycleContext,
    in_force: desired.Desired,
    pools: provisioning.PoolStates,
    last: records.ScheduleInputs,
) -> _Schedule:
    """Keep the last schedule, because a new one would be the same."""
    learned = _learned(context, in_force.structure)
    state = autoscaling.decide(context, in_force, pools, learned, scheduled=False)
    inputs: records.ScheduleInputs | None = last
    if learned.growing.helped.keys() - state.growing.helped.keys():
        inputs = None  # these jobs' reasons no longer hold
        context.alarm.wake(context.now)
    return _Schedule(inputs, None, context.observed.nominations, state)


def _outcome(
    context: cycle_context.CycleContext,
    in_force: desired.Desired,
    pools: provisioning.PoolStates,
    schedule: _Schedule,
) -> outcome.Outcome:
    """Collect everything that the cycle changed."""
    if schedule.inputs is not None and schedule.inputs.wake_at is not None:
        context.alarm.wake(schedule.inputs.wake_at)
    renewed_jobs = context.jobs.renewed()
    drift = detection.detect_drift(context, in_force, pools, schedule.queues)
    return outcome.Outcome(
        now=context.now,
        desired_generation=in_force.generation,
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
