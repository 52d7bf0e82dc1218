"""Second phase: what git asks for, against the runs that there are.

A run is (name, run number, hash of the execution fields) and happens once. This phase begins
runs, takes over fields that may change under a live one, and marks what git no longer wants.
"""

import itertools
import operator
from collections.abc import Iterable, Iterator

import msgspec

from reconciler.core import recall as recalls
from reconciler.core import work as desk
from reconciler.model import desired, outcome
from reconciler.model.states import JobState


class _Compared(recalls.Part):
    """The documents that records were compared with, as of the last outcome that was absorbed."""

    def __init__(self, recall: recalls.Recall) -> None:
        super().__init__(recall)
        self._last = desired.Desired(generation=-1)
        self._next = self._last

    def look(self, work: desk.Work) -> tuple[Iterator[str], Iterable[str]]:
        """Names to look at, for what changed since then: of documents, in order, and of jobs.

        Documents are looked at that are other objects, or whose record is; active jobs, where some
        may be without a document that were not before.
        """
        jobs, before, active = work.desired.jobs, self._last.jobs, work.observed.active
        differ: Iterator[bool]
        if len(before) <= len(jobs) and all(map(operator.eq, before, jobs)):  # some may be new
            same = map(operator.is_, before.values(), jobs.values())
            differ = itertools.chain(map(operator.not_, same), itertools.repeat(True))
            if self._last.generation >= 0 and work.desired.refused == self._last.refused:
                active = frozenset()
        else:
            differ = map(operator.is_not, jobs.values(), map(before.get, jobs))
        look = set(itertools.compress(jobs, differ))
        look |= self.take_jobs(work.touched_jobs())
        self._next = msgspec.structs.replace(work.desired, jobs=dict(jobs))
        return filter(look.__contains__, jobs), itertools.filterfalse(jobs.__contains__, active)

    def absorb(self, result: outcome.Outcome) -> None:
        """What was compared is so now."""
        if self._next.generation == result.desired_generation:
            self._last = self._next


def admit(work: desk.Work) -> None:
    """Compare desired jobs with their records, unless nothing changed since the last time."""
    if work.desired.generation == work.observed.desired_generation:
        return
    known, wanted, refused = work.observed.jobs, work.desired.jobs, work.desired.refused
    names, without = work.recall.part(_Compared).look(work)
    for name in names:
        record, spec = known.get(name), wanted[name]
        if record is None or record.spec is not spec:
            admit_job(work, spec)
    for name in sorted(name for name in without if name not in refused):
        draft = work.draft(name)
        if draft is not None and not draft.removed:
            draft.removed = True
            draft.message = "its document left the repository"
            work.event("JobRemoved", draft.message, job=name)


def admit_successors(work: desk.Work) -> None:
    """Begin what waited for an earlier run of the same name to end in this cycle."""
    for name in work.finished_now:
        spec = work.desired.jobs.get(name)
        draft = work.drafts.get(name)
        if spec is None or draft is None or work.has_been(spec.key):
            continue
        if draft.spec.key != spec.key:
            work.archive_finished(name)
            admit_job(work, spec)


def admit_job(work: desk.Work, spec: desired.Job) -> None:
    """Begin, renew or replace one job's run."""
    record = work.job(spec.name)
    if record is None:
        if not work.has_been(spec.key):
            work.add_job(spec)
        return
    if record.key == spec.key:
        if not record.finished and record.spec != spec:
            _take_over(work, spec)
        return
    if work.has_been(spec.key):
        return
    if record.finished:
        work.add_job(spec)
        return
    draft = work.draft(spec.name)
    if draft is None:
        return
    if spec.run == record.spec.run:
        message = (
            f"what run {spec.run} executes was changed in {spec.path or 'its document'} while it "
            "is alive; the run goes on as it was: raise spec.run to replace it"
        )
        if draft.message != message:
            draft.message = message
            work.event("JobChangeIgnored", message, job=spec.name)
    elif not draft.removed:
        draft.removed = True
        draft.message = f"replaced by run {spec.run}"
        work.event("JobReplaced", draft.message, job=spec.name)


def _take_over(work: desk.Work, spec: desired.Job) -> None:
    """Queue, priority, limits, labels and holds may change under a live run."""
    draft = work.draft(spec.name)
    if draft is None:
        return
    if draft.spec.suspend != spec.suspend:
        if spec.suspend:
            work.event("JobHoldAsked", "it is held by its document", job=spec.name)
        else:
            work.event("JobReleased", "its document holds it no longer", job=spec.name)
            if draft.state is JobState.HELD:
                draft.spec = spec
                work.set_job_state(draft, JobState.PENDING)
    draft.spec = spec
