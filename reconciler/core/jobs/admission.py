"""Second phase: what git asks for, against the runs that there are.

A run is (name, run number, hash of the execution fields) and happens once. This phase begins
runs, takes over fields that may change under a live one, and marks what git no longer wants.
"""

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from reconciler.core import cycle_cache, cycle_context
from reconciler.model import desired
from reconciler.model.state import outcome
from reconciler.model.state.states import JobState

#: What is wanted, documents by name, and what they are to be renewed by once it is so.
_Next = tuple[desired.Desired, dict[str, desired.Job], dict[str, desired.Job]]


class _Compared(cycle_cache.CachePart):
    """The documents that records were compared with, as of the last outcome that was absorbed."""

    def __init__(self, recall: cycle_cache.CycleCache) -> None:
        super().__init__(recall)
        self._last = desired.Desired(generation=-1)
        self._jobs: dict[str, desired.Job] = {}
        self._next: _Next = (self._last, self._jobs, {})

    def look(self, work: cycle_context.CycleContext) -> tuple[Iterator[str], Iterable[str]]:
        """Names to look at, for what changed since then: of documents, in order, and of jobs.

        Documents are looked at that are other objects, or whose record is; active jobs, where some
        may be without a document that were not before.
        """
        jobs, before, active = work.desired.jobs, self._jobs, work.observed.active
        differ = _differing(before, jobs)
        if differ is None:
            changed = [name for name, spec in jobs.items() if before.get(name) is not spec]
            self._next = (work.desired, dict(jobs), {})
        else:
            changed = [spec.name for spec in differ]
            self._next = (work.desired, before, dict(zip(changed, differ, strict=True)))
            if self._last.generation >= 0 and work.desired.refused == self._last.refused:
                active = frozenset()
        without = itertools.filterfalse(jobs.__contains__, active)
        known = work.observed.jobs
        touched = {
            name
            for name in self.take_jobs(work.touched_jobs())
            if name in jobs and (name not in known or known[name].spec is not jobs[name])
        }
        if touched <= set(changed):
            return iter(changed), without
        return filter(touched.union(changed).__contains__, jobs), without

    def absorb(self, result: outcome.Outcome) -> None:
        """What was compared is so now."""
        wanted, jobs, news = self._next
        if wanted.generation == result.desired_generation:
            jobs.update(news)
            self._last, self._jobs = msgspec.structs.replace(wanted, jobs={}), jobs


def _differing(
    before: Mapping[str, desired.Job], jobs: Mapping[str, desired.Job]
) -> list[desired.Job] | None:
    """Documents that are others than before, in order, the new ones last.

    None: some have gone, or the order is another one.
    """
    if len(jobs) < len(before):
        return None
    kept = zip(before.values(), jobs.values(), strict=False)
    differ = map(operator.is_not, before.values(), jobs.values())
    other = list(itertools.compress(kept, differ))
    if any(old.name != new.name for old, new in other):
        return None
    return [*[new for _, new in other], *itertools.islice(jobs.values(), len(before), None)]


def admit(work: cycle_context.CycleContext) -> None:
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


def admit_successors(work: cycle_context.CycleContext) -> None:
    """Begin what waited for an earlier run of the same name to end in this cycle."""
    for name in work.finished_now:
        spec = work.desired.jobs.get(name)
        draft = work.drafts.get(name)
        if spec is None or draft is None or work.has_been(spec.key):
            continue
        if draft.spec.key != spec.key:
            work.archive_finished(name)
            admit_job(work, spec)


def admit_job(work: cycle_context.CycleContext, spec: desired.Job) -> None:
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


def _take_over(work: cycle_context.CycleContext, spec: desired.Job) -> None:
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
