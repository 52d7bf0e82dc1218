"""The one decision function: live, plan, simulation and replay all call it.

desired, observed, now go in; an ``Outcome`` comes out: renewed records, actions, reasons, events,
and the next moment at which time alone changes something. It reads no clock, draws no random
number, and gives the same answer for the same input on any machine.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal

from reconciler.core import (
    admission,
    drifts,
    health,
    ingest,
    leaving,
    lifecycle,
    overrides,
    placing,
    snapshots,
    standing,
)
from reconciler.core import work as desk
from reconciler.model import desired, outcome, records
from reconciler.model.states import AttemptState
from reconciler.scheduling import schedule
from reconciler.scheduling import snapshot as columns

#: The phases of a cycle, in order; the outcome is put together after the last one.
Phase = Literal["ingest", "admit", "health", "lifecycle", "leave", "snapshot", "schedule", "place"]


def reconcile(
    wanted: desired.Desired,
    observed: records.Observed,
    now: float,
    *,
    always_schedule: bool = False,
    ended: Callable[[Phase], None] = lambda _: None,
) -> outcome.Outcome:
    """Decide one cycle.

    Args:
        wanted: what git asks for.
        observed: every record, and what nodes said since the last cycle.
        now: seconds since the epoch.
        always_schedule: make the schedule also where the last one still stands; what comes out
            is the same (see ``standing``).
        ended: told of each phase when it has ended, so that the caller's clock can measure it;
            nothing comes back from it.
    """
    work = desk.Work(wanted, observed, now)
    ingest.apply_reports(work)
    ended("ingest")
    admission.admit(work)
    overrides.apply(work)
    ended("admit")
    health.watch(work)
    ended("health")
    lifecycle.progress(work)
    admission.admit_successors(work)
    lifecycle.progress_successors(work)
    ended("lifecycle")
    leaving.apply(work)
    ended("leave")
    last = standing.find(work)
    if last is not None and not always_schedule:
        return _outcome(work, last, None, observed.promised)
    at = now if last is None else last.at
    situation = snapshots.build(work, at)
    ended("snapshot")
    decided = schedule.schedule(situation.snapshot)
    ended("schedule")
    placing.apply(work, situation, decided)
    ended("place")
    new = standing.made(work, at, situation.snapshot, decided)
    if new is None and work.schedule_at is not None:
        work.wake(work.schedule_at)
    return _outcome(work, new, _queue_usage(work, situation), decided.promised)


def _outcome(
    work: desk.Work,
    stands: records.Standing | None,
    queues: tuple[outcome.QueueUsage, ...] | None,
    promised: Mapping[str, int],
) -> outcome.Outcome:
    if stands is not None and stands.wake_at is not None:
        work.wake(stands.wake_at)
    jobs = list(work.replaced)
    for draft in work.drafts.values():
        record = draft.record()
        if draft.is_new or record is not draft.base:
            jobs.append(record)
    known = {drift.key: drift.first_seen for drift in work.observed.drift}
    return outcome.Outcome(
        now=work.now,
        desired_generation=work.desired.generation,
        jobs=tuple(jobs),
        attempts=tuple(work.attempts.values()),
        nodes=tuple(work.nodes.values()),
        new_runs=tuple(work.new_runs),
        reasons=work.reasons,
        actions=tuple(work.actions),
        events=tuple(work.events),
        drift=drifts.find(work, known),
        overrides=work.overrides,
        answers=work.answers,
        queues=queues,
        promised=promised,
        standing=stands,
        left_jobs=tuple(work.left_jobs),
        left_nodes=tuple(work.left_nodes),
        look_at=work.look_at if work.look_at < math.inf else None,
        next_order=work.next_order,
        wake_at=work.wake_at,
    )


def _queue_usage(work: desk.Work, situation: snapshots.Situation) -> tuple[outcome.QueueUsage, ...]:
    table: columns.QueueColumns = situation.snapshot.queues
    queues = work.desired.structure.queues
    allocated = table.allocated.copy()
    row_of = {name: row for row, name in enumerate(table.names)}
    running: dict[str, set[str]] = {}
    for attempt in work.live_attempts():
        spec = _spec_of(work, attempt.job)
        if spec is not None:
            running.setdefault(spec.queue, set()).add(attempt.job)
    for attempt in work.attempts.values():
        if attempt.state is AttemptState.ENDED or attempt.id in work.observed.attempts:
            continue
        spec = _spec_of(work, attempt.job)
        row = row_of.get(spec.queue, -1) if spec is not None else -1
        while row >= 0:
            allocated[row] += attempt.resources.as_vector()
            row = int(table.parent[row])
    return tuple(
        outcome.QueueUsage(
            name=queue.name,
            parent=queue.parent,
            allocated=(int(amounts[0]), int(amounts[1]), int(amounts[2])),
            guaranteed=queue.guaranteed.as_vector(),
            limit=queue.limit.as_vector(),
            pending_jobs=situation.pending_jobs.get(queue.name, 0),
            running_jobs=len(running.get(queue.name, ())),
        )
        for queue, amounts in zip(queues.values(), allocated, strict=True)
    )


def _spec_of(work: desk.Work, job: str) -> desired.Job | None:
    draft = work.drafts.get(job)
    if draft is not None:
        return draft.spec
    record = work.observed.jobs.get(job)
    return record.spec if record else None
