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

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self._last = desired.Desired(generation=-1)
        self._jobs: dict[str, desired.Job] = {}
        self._next: _Next = (self._last, self._jobs, {})

    def look(self, context: cycle_context.CycleContext) -> tuple[Iterator[str], Iterable[str]]:
        """Names to look at, for what changed since then: of documents, in order, and of jobs.

        Documents are looked at that are other objects, or whose record is; active jobs, where some
        may be without a document that were not before.
        """
        jobs, before, active = context.desired.jobs, self._jobs, context.observed.active
        differ = _differing(before, jobs)
        if differ is None:
            changed = [name for name, spec in jobs.items() if before.get(name) is not spec]
            self._next = (context.desired, dict(jobs), {})
        else:
            changed = [spec.name for spec in differ]
            self._next = (context.desired, before, dict(zip(changed, differ, strict=True)))
            if self._last.generation >= 0 and context.desired.refused == self._last.refused:
                active = frozenset()
        without = itertools.filterfalse(jobs.__contains__, active)
        known = context.observed.jobs
        touched = {
            name
            for name in self.take_jobs(context.touched_jobs())
            if name in jobs and (name not in known or known[name].spec is not jobs[name])
        }
        if touched <= set(changed):
            return iter(changed), without
        return filter(touched.union(changed).__contains__, jobs), without

    def absorb(self, result: outcome.Outcome) -> None:
        """What was compared is so now."""
        desired_state, jobs, news = self._next
        if desired_state.generation == result.desired_generation:
            jobs.update(news)
            self._last, self._jobs = msgspec.structs.replace(desired_state, jobs={}), jobs


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


def admit(context: cycle_context.CycleContext) -> None:
    """Compare desired jobs with their records, unless nothing changed since the last time."""
    if context.desired.generation == context.observed.desired_generation:
        return
    known, desired_state, refused = (
        context.observed.jobs,
        context.desired.jobs,
        context.desired.refused,
    )
    names, without = context.cache.part(_Compared).look(context)
    for name in names:
        record, spec = known.get(name), desired_state[name]
        if record is None or record.spec is not spec:
            with context.isolate(name):
                admit_job(context, spec)
    for name in sorted(name for name in without if name not in refused):
        draft = context.draft(name)
        if draft is not None and not draft.removed:
            draft.removed = True
            draft.message = "its document left the repository"
            context.event("JobRemoved", draft.message, job=name)


def admit_successors(context: cycle_context.CycleContext) -> None:
    """Begin what waited for an earlier run of the same name to end in this cycle."""
    for name in context.finished_now:
        spec = context.desired.jobs.get(name)
        draft = context.drafts.get(name)
        if spec is None or draft is None or context.has_been(spec.key):
            continue
        if draft.spec.key != spec.key:
            with context.isolate(name):
                context.archive_finished(name)
                admit_job(context, spec)


def admit_job(context: cycle_context.CycleContext, spec: desired.Job) -> None:
    """Begin, renew or replace one job's run."""
    record = context.job(spec.name)
    if record is None:
        if not context.has_been(spec.key):
            context.add_job(spec)
        return
    if record.key == spec.key:
        if not record.finished and record.spec != spec:
            _take_over(context, spec)
        return
    if context.has_been(spec.key):
        return
    if record.finished:
        context.add_job(spec)
        return
    draft = context.draft(spec.name)
    if draft is None:
        return
    if spec.run == record.spec.run:
        message = (
            f"what run {spec.run} executes was changed in {spec.path or 'its document'} while it "
            "is alive; the run goes on as it was: raise spec.run to replace it"
        )
        if draft.message != message:
            draft.message = message
            context.event("JobChangeIgnored", message, job=spec.name)
    elif not draft.removed:
        draft.removed = True
        draft.message = f"replaced by run {spec.run}"
        context.event("JobReplaced", draft.message, job=spec.name)


def _take_over(context: cycle_context.CycleContext, spec: desired.Job) -> None:
    """Queue, priority, limits, labels and holds may change under a live run."""
    draft = context.draft(spec.name)
    if draft is None:
        return
    if draft.spec.suspend != spec.suspend:
        if spec.suspend:
            context.event("JobHoldAsked", "it is held by its document", job=spec.name)
        else:
            context.event("JobReleased", "its document holds it no longer", job=spec.name)
            if draft.state is JobState.HELD:
                draft.spec = spec
                context.set_job_state(draft, JobState.PENDING)
    draft.spec = spec
