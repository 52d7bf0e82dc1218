"""The one decision function: live, plan, simulation and replay all call it.

desired, observed, now go in; an ``Outcome`` comes out: renewed records, actions, reasons, events,
and the next moment at which time alone changes something. It reads no clock, draws no random
number, and gives the same answer for the same input on any machine.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import msgspec

from reconciler.core import apply_schedule as placing
from reconciler.core import cycle_cache as recalls
from reconciler.core import cycle_context as desk
from reconciler.core import garbage_collection as leaving
from reconciler.core import overrides
from reconciler.core import schedule_reuse as standing
from reconciler.core.drift import detection as drifts
from reconciler.core.drift import remediation as remedies
from reconciler.core.jobs import admission, lifecycle
from reconciler.core.jobs import quarantined_jobs as asides
from reconciler.core.jobs import running_gangs as held
from reconciler.core.nodes import clock_steps as stepping
from reconciler.core.nodes import draining, health
from reconciler.core.nodes import node_reports as ingest
from reconciler.core.pools import autoscaling, provisioning
from reconciler.core.quota import budgets
from reconciler.core.quota import unschedulable as hopeless
from reconciler.core.snapshot import learned_mix as learning
from reconciler.core.snapshot import snapshot_builder as snapshots
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state import scheduler_state as recollections
from reconciler.model.state.states import AttemptState
from reconciler.scheduling import decisions
from reconciler.scheduling.cycle import scheduling_cycle as schedule
from reconciler.scheduling.inputs import snapshots as columns

#: The phases of a cycle, in order; the outcome is put together after the last one.
Phase = Literal["ingest", "admit", "health", "lifecycle", "leave", "snapshot", "schedule", "place"]


def reconcile(
    wanted: desired.Desired,
    observed: records.Observed,
    now: float,
    *,
    always_schedule: bool = False,
    recall: recalls.Recall | None = None,
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
    work = desk.Work(wanted, observed, now, recall)
    _bring_up_to_date(work, ended)
    last = standing.find(work)
    if last is None or always_schedule:
        return _outcome(work, _schedule(work, last, ended))
    return _outcome(work, _let_stand(work, last))


def _bring_up_to_date(work: desk.Work, ended: Callable[[Phase], None]) -> None:
    """Every phase before the schedule: what was reported and asked for, and what follows."""
    stepping.forget_the_future(work)
    ingest.apply_reports(work)
    ended("ingest")
    admission.admit(work)
    overrides.apply(work)
    provisioning.apply(work)
    ended("admit")
    health.watch(work)
    ended("health")
    lifecycle.progress(work)
    asides.end_overdue(work)
    budgets.enforce(work)
    draining.apply(work)
    admission.admit_successors(work)
    lifecycle.progress_successors(work)
    remedies.apply(work)
    ended("lifecycle")
    leaving.apply(work)
    ended("leave")


class _Schedule(NamedTuple):
    """What a schedule, or the one that still stands, adds to an outcome."""

    stands: records.Standing | None
    queues: tuple[outcome.QueueUsage, ...] | None
    promised: Mapping[str, int]
    recollection: recollections.Recollection
    expected: dict[str, outcome.ExpectedStart] | None = None


def _remembered(
    work: desk.Work,
    situation: snapshots.Situation,
    decided: decisions.Decisions,
    usage: tuple[outcome.QueueUsage, ...],
) -> recollections.Recollection:
    """What the scheduler remembers after a schedule."""
    found = learning.renewed(work)
    counts = bool(work.desired.structure.settings.scheduling.usage_strength)
    renewed = msgspec.structs.replace(
        found,
        turn=found.turn + bool(decided.placements),
        kept=learning.rooms_of(decided.kept, situation.node_names),
        turns=learning.turns_of(work, decided.turns),
        used=situation.used,
        offered=situation.offered,
        slices=situation.slices,
        used_at=situation.at if counts else 0.0,
        held={one.name: one.allocated[2] / columns.WHOLE for one in usage} if counts else {},
    )
    return found if renewed == found else renewed


def _let_stand(work: desk.Work, last: records.Standing) -> _Schedule:
    """The schedule that was made before, which would come out the same."""
    known = learning.renewed(work)
    remembered = autoscaling.decide(work, known, scheduled=False)
    stands: records.Standing | None = last
    if known.growing.helped.keys() - remembered.growing.helped.keys():
        stands = None  # what was said of them holds no longer
        work.wake(work.now)
    return _Schedule(stands, None, work.observed.promised, remembered)


def _schedule(
    work: desk.Work, last: records.Standing | None, ended: Callable[[Phase], None]
) -> _Schedule:
    """Make the schedule and apply it; as of the moment of ``last`` where that still stands."""
    at = work.now if last is None else last.at
    situation = snapshots.build(work, at)
    ended("snapshot")
    decided = schedule.schedule(situation.snapshot)
    ended("schedule")
    placing.apply(work, situation, decided)
    ended("place")
    if at < decided.wake_at < math.inf:
        work.wake_schedule(decided.wake_at)
    new = standing.made(work, at, situation.snapshot, decided)
    usage = _queue_usage(work, situation, decided)
    remembered = autoscaling.decide(
        work, _remembered(work, situation, decided, usage), scheduled=True
    )
    if hopeless.kinds(work, situation.capped) != situation.let_last:
        new = None  # quotas let others through by what was told now
        work.wake(work.now + hopeless.AGAIN_S)
    if new is None and work.schedule_at is not None:
        work.wake(work.schedule_at)
    starts = {
        job: outcome.ExpectedStart(
            one.at, one.certain, one.latest if one.certain else None, one.takes_back
        )
        for job, one in decided.estimates.items()
    }
    return _Schedule(new, usage, decided.promised, remembered, starts)


def _outcome(work: desk.Work, schedule_: _Schedule) -> outcome.Outcome:
    stands = schedule_.stands
    if stands is not None and stands.wake_at is not None:
        work.wake(stands.wake_at)
    renewed_jobs = work.renewed_jobs()
    found = drifts.find(work, schedule_.queues)
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
    work: desk.Work, situation: snapshots.Situation, decided: decisions.Decisions
) -> tuple[outcome.QueueUsage, ...]:
    table: columns.QueueColumns = situation.snapshot.queues
    queues = work.desired.structure.queues
    allocated = table.allocated.tolist()
    above = table.parent.tolist()
    row_of = {name: row for row, name in enumerate(table.names)}
    running = {name: len(jobs) for name, jobs in situation.held.running.items()}
    came: set[str] = set()
    for attempt in work.attempts.values():
        if attempt.state is AttemptState.ENDED or attempt.id in work.observed.attempts:
            continue
        spec = held.spec_of(work, attempt.job)
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
    queue: desired.Queue, situation: snapshots.Situation, share: decisions.QueueShare
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
        flavor, one = flavors.get(name, desired.Flavor(name)), by_name[name]
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


_UNMEASURED = (columns.UNLIMITED, columns.UNLIMITED, columns.UNLIMITED)


def _countable(amounts: columns.Vector) -> columns.Vector:
    """What many jobs ask for together may be more than what is stored can hold."""
    cpu, memory, gpu = (min(amount, columns.UNLIMITED) for amount in amounts)
    return (cpu, memory, gpu)


def _measured(share: columns.Vector) -> tuple[int | None, int | None, int | None]:
    cpu, memory, gpu = (None if amount >= columns.UNLIMITED else amount for amount in share)
    return (cpu, memory, gpu)
