"""Reasons of a job at a moment in the past: the cycle of that moment, decided again.

The answer has the shape of the live one, from the records as they were after that cycle. A replay
computes as long as its cycles took, so the server runs this module as a separate process, which
prints the answer as JSON.
"""

import argparse
import contextlib
import os
import sys

import msgspec

from reconciler.core import cycle_journal, observed_state
from reconciler.model.state import records
from reconciler.model.state.pending_reasons import never_starts
from reconciler.model.state.states import AttemptState, JobState
from reconciler.model.values import times
from reconciler.operations.history import cycle_replay
from reconciler.operations.views import array_views, explanation_views, job_views, view_types
from reconciler.store import StoreError, StoreReader

#: A look at the past does not take the processor from the present.
NICENESS = 10


class UnknownJobError(Exception):
    """Error: there was no job of that name then."""


def explain(
    reader: StoreReader, name: str, at: float, limit: int = 100, element: int | None = None
) -> explanation_views.Explained:
    """Return a job as it was after the last cycle at or before ``at``.

    Args:
        reader: the store.
        name: of the job.
        at: seconds since the epoch.
        limit: the most events.
        element: of an array: of the runs until then the newest that has it; None: the newest.

    Raises:
        ReplayError: no cycle of that time can be replayed.
        UnknownJobError: there was no such job.
        StoreError: the store can't be read.
    """
    found = cycle_replay.replay(reader, at=at)
    call = found.call
    after = observed_state.ObservedState.as_of(call.observed)
    after.absorb(call.result)
    status = call.wanted.status
    found_job = _job(reader, name, after, call, element)
    if found_job is None:
        raise UnknownJobError(
            f"there was no Job/{name} at {times.format_time(at)} (cycle {found.cycle}, of "
            f"{times.format_time(call.now)}, revision {status.jobs_revision or 'none'})"
        )
    shown, record, is_earlier = found_job
    spec = None if record is None else record.spec
    queues = {usage.name: usage for usage in call.told.queues}
    queue = queues.get(shown.queue)
    run = record if is_earlier else None
    happened = reader.events(job=name, until=call.now, run=run, limit=limit)
    return explanation_views.Explained(
        job=shown,
        queue=None if queue is None else job_views.queue_view(queue),
        events=[job_views.event_view(event) for event in happened],
        borrowers=explanation_views.borrowers(call.told.queues, shown.queue)
        if shown.reasons
        else [],
        not_reclaimed=explanation_views.not_reclaimed(spec, shown, call.told.queues)
        if spec
        else "",
        silent=explanation_views.silent(
            (one for one in after.attempts.values() if one.job == name), after.nodes
        ),
        is_earlier_run=is_earlier,
        replayed=explanation_views.ReplayedCycle(
            asked=times.format_time(at),
            decided=times.format_time(call.now),
            cycle=found.cycle,
            epoch=found.epoch,
            revision=status.jobs_revision,
            structure_revision=status.structure_revision,
            muster=found.muster,
            disagreements=list(call.disagreements),
        ),
    )


def _job(
    reader: StoreReader,
    name: str,
    then: observed_state.ObservedState,
    call: cycle_journal.JournalledCycle,
    element: int | None,
) -> tuple[view_types.JobView, records.JobRecord | None, bool] | None:
    """Return the job from the records, from git if it could never run, or as it ended, and whether
    it is an earlier run, which has the element that is asked for.
    """
    wanted, now = call.wanted, call.now
    record = then.jobs.get(name)
    if record is None and name in wanted.refused:
        checked_at = wanted.status.checked_at or now
        is_undecided = name in job_views.undecided_jobs(wanted.status)
        why = wanted.refused[name]
        shown = job_views.refused_view(name, why, checked_at, is_undecided=is_undecided)
        return shown, None, False
    if record is None:
        # it may have left the memory before, and come again since; its end is its end
        record = reader.job(name, ended_by=now)
        if record is None:
            return None
    newest, record = record, array_views.run_of_element(reader, record, element)
    tries = _attempts(reader, record, then, now, element)
    view = job_views.job_view(
        record,
        attempts=tries,
        running=sum(one.state is AttemptState.RUNNING for one in tries),
        reasons=then.reasons.get(record.reason_key, ()),
        place=_place(record, then),
        expected=call.told.expected.get(name),
    )
    return array_views.with_indexes(view, record, reader), record, record is not newest


def _attempts(
    reader: StoreReader,
    job: records.JobRecord,
    then: observed_state.ObservedState,
    now: float,
    element: int | None,
) -> list[records.AttemptRecord]:
    """Return the attempts of that moment: active ones as they were, concluded ones as they are.

    Those at the element that is asked for come first.
    """
    most = job_views.ATTEMPTS_IN_JOB
    under_way = [attempt for attempt in then.attempts.values() if attempt.job_key == job.key]
    known = {attempt.id for attempt in under_way}
    stored = reader.attempts(job.key, limit=most)
    if element is not None and job.spec.array_count is not None:
        stored = [*reader.attempts(job.key, element=element, limit=most), *stored]
    concluded = [
        attempt
        for attempt in {one.id: one for one in stored}.values()
        if attempt.id not in known
        and attempt.state is AttemptState.ENDED
        and attempt.ended_at is not None
        and attempt.ended_at <= now
    ]
    found = under_way + concluded
    found.sort(key=lambda a: (a.element != element, a.element, a.try_number, a.group, a.index))
    return found[:most]


def _place(job: records.JobRecord, then: observed_state.ObservedState) -> int | None:
    """Return the place in the queue, in the order of ``StoreReader.places``."""
    if job.state is not JobState.PENDING or _never_starts(job, then):
        return None

    def order(of: records.JobRecord) -> tuple[int, int, str]:
        return (-of.spec.priority, of.order, of.name)

    mine = order(job)
    return 1 + sum(
        one.state is JobState.PENDING
        and one.spec.queue == job.spec.queue
        and order(one) < mine
        and not _never_starts(one, then)
        for one in (then.jobs[name] for name in then.active)
    )


def _never_starts(job: records.JobRecord, then: observed_state.ObservedState) -> bool:
    return never_starts(then.reasons.get(job.reason_key, ()))


def main() -> int:
    """``python -m reconciler.operations.history.past_reasons --store URL --job NAME --at
    SECONDS``."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--store", required=True)
    options.add_argument("--job", required=True)
    options.add_argument("--at", required=True, type=float)
    options.add_argument("--limit", type=int, default=100)
    options.add_argument("--element", type=int)
    given = options.parse_args()
    os.nice(NICENESS)
    try:
        with contextlib.closing(StoreReader.open(given.store)) as reader:
            explained = explain(reader, given.job, given.at, given.limit, given.element)
    except (cycle_replay.ReplayError, UnknownJobError) as error:
        sys.stdout.write(str(error))
        return explanation_views.NOTHING_THERE
    except StoreError as error:
        sys.stdout.write(str(error))
        return explanation_views.UNREADABLE
    sys.stdout.write(msgspec.json.encode(explained).decode())
    return explanation_views.DONE


if __name__ == "__main__":
    sys.exit(main())
