"""Second phase: compares desired jobs with runs.

A run is (name, run number, hash of the execution fields) and happens once. This phase begins runs,
applies fields that may change while a run is alive, and marks runs whose document was removed.
"""

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from reconciler.core import cycle_cache, cycle_context, job_errors
from reconciler.model import desired
from reconciler.model.state import outcome
from reconciler.model.state.states import JobState

#: Desired state, documents by name, and their changes once the outcome is absorbed.
_Next = tuple[desired.Desired, dict[str, desired.Job], dict[str, desired.Job]]


class _Compared(cycle_cache.CachePart):
    """A cache of the documents that records were compared with, as of the last absorbed outcome."""

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self._last = desired.Desired(generation=-1)
        self._jobs: dict[str, desired.Job] = {}
        self._next: _Next = (self._last, self._jobs, {})

    def look(self, context: cycle_context.CycleContext) -> tuple[Iterator[str], Iterable[str]]:
        """Return names of changed documents, in order, and of jobs without a document.

        A document is compared if it or its record is another object. Active jobs are compared if
        some may have lost their document.
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
        known = context.jobs.known
        touched = {
            name
            for name in self.take_jobs(context.jobs.touched(context.attempts))
            if name in jobs and (name not in known or known[name].spec is not jobs[name])
        }
        if touched <= set(changed):
            return iter(changed), without
        return filter(touched.union(changed).__contains__, jobs), without

    def absorb(self, result: outcome.Outcome) -> None:
        """Remember the documents of this cycle."""
        desired_state, jobs, changed_specs = self._next
        if desired_state.generation == result.desired_generation:
            jobs.update(changed_specs)
            self._last, self._jobs = msgspec.structs.replace(desired_state, jobs={}), jobs


def _differing(
    before: Mapping[str, desired.Job], jobs: Mapping[str, desired.Job]
) -> list[desired.Job] | None:
    """Return the documents that changed, in order, new ones last.

    None: some were removed, or the order changed.
    """
    if len(jobs) < len(before):
        return None
    pairs = zip(before.values(), jobs.values(), strict=False)
    differ = map(operator.is_not, before.values(), jobs.values())
    other = list(itertools.compress(pairs, differ))
    if any(old.name != new.name for old, new in other):
        return None
    return [*[new for _, new in other], *itertools.islice(jobs.values(), len(before), None)]


def admit(context: cycle_context.CycleContext) -> None:
    """Compare desired jobs with their records, unless nothing changed."""
    if context.desired.generation == context.observed.desired_generation:
        return
    known, desired_state, refused = (
        context.jobs.known,
        context.desired.jobs,
        context.desired.refused,
    )
    names, without = context.cache.part(_Compared).look(context)
    for name in names:
        record, spec = known.get(name), desired_state[name]
        if record is None or record.spec is not spec:
            with job_errors.JobErrorScope(name):
                admit_job(context, spec)
    for name in sorted(name for name in without if name not in refused):
        draft = context.jobs.draft(name)
        if draft is not None and not draft.removed:
            draft.removed = True
            draft.message = "its document was removed from git"
            context.events.add("JobRemoved", draft.message, job=name)


def admit_successors(context: cycle_context.CycleContext) -> None:
    """Begin runs that waited for an earlier run of the same name to end in this cycle."""
    for name in context.jobs.finished_now:
        spec = context.desired.jobs.get(name)
        draft = context.jobs.drafts.get(name)
        if spec is None or draft is None or context.jobs.has_begun(spec.key):
            continue
        if draft.spec.key != spec.key:
            with job_errors.JobErrorScope(name):
                context.jobs.archive_finished(name)
                admit_job(context, spec)


def admit_job(context: cycle_context.CycleContext, spec: desired.Job) -> None:
    """Begin, change or replace one job's run."""
    record = context.jobs.before(spec.name)
    if record is None:
        if not context.jobs.has_begun(spec.key):
            context.jobs.add(spec)
        return
    if record.key == spec.key:
        if not record.finished and record.spec != spec:
            _take_over(context, spec)
        return
    if context.jobs.has_begun(spec.key):
        return
    if record.finished:
        context.jobs.add(spec)
        return
    draft = context.jobs.draft(spec.name)
    if draft is None:
        return
    if spec.run == record.spec.run:
        message = (
            f"run {spec.run} is alive, so a change of what it executes is ignored "
            f"({spec.path or 'its document'}). To fix: raise spec.run to replace the run"
        )
        if draft.message != message:
            draft.message = message
            context.events.add("JobChangeIgnored", message, job=spec.name)
    elif not draft.removed:
        draft.removed = True
        draft.message = f"replaced by run {spec.run}"
        context.events.add("JobReplaced", draft.message, job=spec.name)


def _take_over(context: cycle_context.CycleContext, spec: desired.Job) -> None:
    """Apply queue, priority, limits, labels and holds, which may change while a run is alive."""
    draft = context.jobs.draft(spec.name)
    if draft is None:
        return
    if draft.spec.suspend != spec.suspend:
        if spec.suspend:
            context.events.add("JobHoldAsked", "held by its document", job=spec.name)
        else:
            context.events.add("JobReleased", "its document no longer holds it", job=spec.name)
            if draft.state is JobState.HELD:
                draft.spec = spec
                context.jobs.set_state(draft, JobState.PENDING)
    draft.spec = spec
