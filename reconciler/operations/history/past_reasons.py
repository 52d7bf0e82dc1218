"""Reasons of a job at a moment in the past: the cycle of that moment, decided again.

The answer has the shape of the live one, from the records as they were after that cycle. A replay
computes as long as its cycles took, so the server runs this module as a separate process, which
prints the answer as JSON.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from reconciler.core import cycle_journal, observed_state
from reconciler.core.nodes import health
from reconciler.model import desired
from reconciler.model.rules import quota_limits
from reconciler.model.state import outcome, records
from reconciler.model.state.pending_reasons import ReasonCode, never_starts
from reconciler.model.state.states import AttemptState, JobState
from reconciler.model.values import quantities, times
from reconciler.model.values.resources import Resources
from reconciler.operations.history import cycle_replay
from reconciler.operations.views import array_views, job_views, json_format, view_types
from reconciler.store import StoreError, StoreReader

#: Exit codes of the process; what is printed is an ``Explained`` or a sentence that says why not.
DONE, NOTHING_THERE, UNREADABLE = 0, 4, 5


#: Reasons for which other work could have been evicted.
_OF_ROOM = frozenset({ReasonCode.INSUFFICIENT_RESOURCES.value, ReasonCode.FRAGMENTED.value})
_FORMATS = (quantities.format_cpu, quantities.format_memory, quantities.format_gpu)

#: A look at the past does not take the processor from the present.
NICENESS = 10


class UnknownJobError(Exception):
    """Error: there was no job of that name then."""


class ReplayedCycle(json_format.View, frozen=True):
    """The cycle of an answer about the past.

    ``asked`` is the requested moment, ``decided`` that of the cycle. ``revision`` is the one whose
    jobs were in force, ``structureRevision`` that of all else. ``disagreements`` names the parts of
    the result that differ from the recorded ones.
    """

    asked: str
    decided: str
    cycle: int
    epoch: int
    revision: str | None
    structure_revision: str | None
    muster: str
    disagreements: list[str]


class Borrower(json_format.View, frozen=True):
    """A queue above its guarantee; ``over`` is by how much."""

    name: str
    over: view_types.AmountsView


class SilentNode(json_format.View, frozen=True):
    """A silent node with tasks of the job.

    ``lastHeard`` is null if it never reported; ``givenUp`` is when its tasks start elsewhere at the
    earliest, null if none has a lease; ``endless`` counts tasks without a lease.
    """

    node: str
    pool: str
    last_heard: str | None
    tasks: int
    given_up: str | None
    endless: int


class Explained(json_format.View, frozen=True):
    """A job at a moment, with its queue then and its events until then.

    ``isEarlierRun``: a later run had begun by then, without the element that was asked for.
    """

    job: view_types.JobView
    queue: view_types.QueueView | None
    events: list[view_types.EventView]
    replayed: ReplayedCycle
    borrowers: list[Borrower] = []
    not_reclaimed: str = ""
    silent: list[SilentNode] = []
    is_earlier_run: bool = False


def not_reclaimed(
    spec: desired.Job, view: view_types.JobView, queues: Sequence[outcome.QueueUsage]
) -> str:
    """Return why no other queue returns what it borrowed so that a job fits. It is empty if there
    are other reasons.

    A queue reclaims up to its fair share, and the job would put it above that.
    """
    own = next((one for one in queues if one.name == spec.queue), None)
    if own is None or not view.reasons or view.reasons[0].code not in _OF_ROOM:
        return ""
    if not borrowers(queues, spec.queue):
        return ""
    least = (one.resources.times(one.least) for one in spec.groups)
    requested = sum(least, start=Resources()).as_vector()
    for resource in (2, 0, 1):  # GPUs first
        due, has, more = own.fair_share[resource], own.allocated[resource], requested[resource]
        if due is not None and more and has + more > due:
            text, much = _FORMATS[resource], quota_limits.amount_of(resource, more)
            return (
                f"No queue gives work back for it: with {much} more queue {own.name} "
                f"would have {text(has + more)}, over its fair share of {text(due)}."
            )
    return ""


def borrowers(queues: Sequence[outcome.QueueUsage], own: str, most: int = 5) -> list[Borrower]:
    """Return the leaf queues furthest above their guarantees, first by GPUs.

    ``own`` is left out: it took nothing from itself. CPUs and memory count if some are guaranteed
    to a queue: otherwise they are not rationed.
    """
    parents = {queue.parent for queue in queues}
    over = []
    for queue in queues:
        if queue.name in parents or queue.name == own:
            continue
        held, (cpu_due, memory_due, gpu_due) = queue.allocated, queue.guaranteed
        dues = (
            held[0] if cpu_due is None else cpu_due,
            held[1] if memory_due is None else memory_due,
            gpu_due or 0,
        )
        cpu, _, gpu = more = [max(0, has - due) for has, due in zip(held, dues, strict=True)]
        if gpu or cpu:
            over.append((-gpu, -cpu, queue.name, more))
    return [Borrower(name, job_views.vector(more)) for _, _, name, more in sorted(over)[:most]]


def silent(
    attempts: Iterable[records.AttemptRecord], nodes: Mapping[str, records.NodeRecord]
) -> list[SilentNode]:
    """Return the silent nodes of a job's attempts, by name."""
    found: dict[str, list[records.AttemptRecord]] = {}
    for attempt in attempts:
        node = nodes.get(attempt.node)
        if node is not None and attempt.state is AttemptState.UNKNOWN:
            found.setdefault(node.name, []).append(attempt)
    return [_silent(nodes[name], found[name]) for name in sorted(found)]


def _silent(node: records.NodeRecord, attempts: Sequence[records.AttemptRecord]) -> SilentNode:
    heard_at = health.last_contact(node)
    ends = [health.given_up_at(attempt, heard_at) for attempt in attempts]
    known = [end for end in ends if end is not None]
    return SilentNode(
        node=node.name,
        pool=node.pool,
        last_heard=times.format_time(node.last_report_at) if node.last_report_at else None,
        tasks=len(attempts),
        given_up=times.format_time(max(known)) if known else None,
        endless=len(ends) - len(known),
    )


def explain(
    reader: StoreReader, name: str, at: float, limit: int = 100, element: int | None = None
) -> Explained:
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
    return Explained(
        job=shown,
        queue=None if queue is None else job_views.queue_view(queue),
        events=[job_views.event_view(event) for event in happened],
        borrowers=borrowers(call.told.queues, shown.queue) if shown.reasons else [],
        not_reclaimed=not_reclaimed(spec, shown, call.told.queues) if spec else "",
        silent=silent((one for one in after.attempts.values() if one.job == name), after.nodes),
        is_earlier_run=is_earlier,
        replayed=ReplayedCycle(
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
        return NOTHING_THERE
    except StoreError as error:
        sys.stdout.write(str(error))
        return UNREADABLE
    sys.stdout.write(msgspec.json.encode(explained).decode())
    return DONE


if __name__ == "__main__":
    sys.exit(main())
