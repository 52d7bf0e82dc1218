"""Second phase: compares desired jobs with runs.

A run is (name, run number, hash of the execution fields) and happens once. This phase begins runs,
applies fields that may change while a run is alive, and marks runs whose document was removed.
"""

import functools
import itertools
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from reconciler.core import cycle_attempts, cycle_cache, cycle_context, job_draft, job_errors
from reconciler.core.cycle import cycle_events, cycle_jobs
from reconciler.core.jobs import run_terms
from reconciler.model import desired
from reconciler.model.rules import past_runs
from reconciler.model.state import outcome, records, scheduler_state
from reconciler.model.state.states import AttemptState, JobState
from reconciler.model.values import index_ranges

#: Desired state, documents by name, and their changes once the outcome is absorbed.
_Next = tuple[desired.Desired, dict[str, desired.Job], dict[str, desired.Job]]


class _Compared(cycle_cache.CachePart):
    """A cache of the documents that records were compared with, as of the last absorbed outcome."""

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self._last = desired.Desired(generation=-1)
        self._jobs: dict[str, desired.Job] = {}
        self._next: _Next = (self._last, self._jobs, {})
        #: Names of jobs whose records may not hold their documents.
        self._apart: set[str] = set()
        #: What backfill had reserved when runs were last judged by it.
        self._room: Collection[scheduler_state.KeptRoom] | None = None
        self._next_room: Collection[scheduler_state.KeptRoom] | None = None

    def kept_to_time(
        self,
        jobs: Mapping[str, desired.Job],
        known: Mapping[str, records.JobRecord],
        room: Collection[scheduler_state.KeptRoom],
        touched_jobs: Iterable[str],
    ) -> list[str]:
        """Return the names of runs that may get the longer time of their documents now, in order.

        Of all that a run is judged by, only what backfill reserves and where its tasks are change
        while the desired state does not.

        Args:
            jobs: documents by name, which are compared already.
            known: records when the cycle began, by name.
            room: what backfill has reserved.
            touched_jobs: names of jobs that this cycle may have changed.
        """
        fresh = self.take_jobs(touched_jobs)
        self._apart = _apart(self._apart | fresh, jobs, known)
        names, self._next_room = self._apart, room
        if room == self._room:
            names = names & fresh
        return sorted(
            name
            for name in names
            if name in known
            and not known[name].finished
            and known[name].key == jobs[name].key
            and run_terms.is_longer(known[name].spec, jobs[name])
        )

    def look(
        self,
        desired_state: desired.Desired,
        known: Mapping[str, records.JobRecord],
        active: AbstractSet[str],
        touched_jobs: Iterable[str],
    ) -> tuple[Iterator[str], Iterable[str]]:
        """Return names of changed documents, in order, and of jobs without a document.

        A document is compared if it or its record is another object, and as long as its record does
        not hold it. Active jobs are compared if some may have lost their document.

        Args:
            desired_state: what git asks for.
            known: records when the cycle began, by name.
            active: names of those that are not finished.
            touched_jobs: names of jobs that this cycle may have changed.
        """
        jobs, before = desired_state.jobs, self._jobs
        differ = _differing(before, jobs)
        if differ is None:
            changed = [name for name, spec in jobs.items() if before.get(name) is not spec]
            self._next = (desired_state, dict(jobs), {})
        else:
            changed = [spec.name for spec in differ]
            self._next = (desired_state, before, dict(zip(changed, differ, strict=True)))
            if self._last.generation >= 0 and desired_state.refused == self._last.refused:
                active = frozenset()
        without = itertools.filterfalse(jobs.__contains__, active)
        touched = _apart(self._apart | self.take_jobs(touched_jobs), jobs, known)
        self._apart = {
            name
            for name in touched.union(changed)
            if name in known and not known[name].finished and known[name].spec is not jobs[name]
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
        self._room = self._next_room


def _apart(
    names: Iterable[str], jobs: Mapping[str, desired.Job], known: Mapping[str, records.JobRecord]
) -> set[str]:
    """Return the names of jobs that have a document which their record does not hold."""
    return {
        name
        for name in names
        if name in jobs and (name not in known or known[name].spec is not jobs[name])
    }


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


def admit(context: cycle_context.CycleContext, desired_state: desired.Desired) -> None:
    """Compare desired jobs with their records.

    While the desired state is as it was, only those are compared whose time backfill holds back.
    """
    jobs, events, documents = context.jobs, context.events, desired_state.jobs
    compared, touched = context.cache.part(_Compared), jobs.touched(context.attempts)
    if desired_state.generation == context.observed.desired_generation:
        room = context.observed.scheduler_state.kept
        for name in compared.kept_to_time(documents, jobs.known, room, touched):
            with job_errors.JobErrorScope(name):
                admit_job(context, documents[name], desired_state)
        return
    names, without = compared.look(desired_state, jobs.known, context.observed.active, touched)
    for name in names:
        record, spec = jobs.known.get(name), documents[name]
        if record is None or record.spec is not spec or record.described:
            with job_errors.JobErrorScope(name):
                admit_job(context, spec, desired_state)
    recovery = desired_state.recovery
    for name in sorted(recovery.ephemeral) if recovery is not None else ():
        draft = jobs.drafts.get(name)
        if draft is not None and draft.is_new:
            draft.ephemeral = True
    for name in sorted(name for name in without if name not in desired_state.refused):
        record = jobs.before(name)
        if record is not None and record.ephemeral:
            continue  # it has never been in git
        draft = jobs.draft(name)
        if draft is not None and not draft.removed:
            draft.removed = True
            draft.message = desired_state.why_removed(name)
            events.add("JobRemoved", draft.message, job=name)


def admit_successors(context: cycle_context.CycleContext, desired_state: desired.Desired) -> None:
    """Begin runs that waited for an earlier run of the same name to end in this cycle.

    Runs whose last task has left its node in this cycle take over what they kept until then.
    """
    jobs = context.jobs
    for name in context.jobs.finished_now:
        spec = desired_state.jobs.get(name)
        draft = context.jobs.drafts.get(name)
        if spec is None or draft is None:
            continue
        if context.jobs.has_begun(spec.key):
            past = spec.key if draft.spec.key != spec.key else ""
            _describe_again(jobs, context.events, draft.record(), past)
        elif draft.spec.key != spec.key:
            with job_errors.JobErrorScope(name):
                context.jobs.archive_finished(name)
                admit_job(context, spec, desired_state)
    for name, draft in list(jobs.drafts.items()):
        spec = desired_state.jobs.get(name)
        if spec is None or draft.spec is spec or draft.finished or draft.removed:
            continue
        is_same = (draft.spec.key, draft.spec.owner) == (spec.key, spec.owner)
        if is_same and not draft.live_count():
            with job_errors.JobErrorScope(name):
                admit_job(context, spec, desired_state)


def admit_job(
    context: cycle_context.CycleContext, spec: desired.Job, desired_state: desired.Desired
) -> None:
    """Begin, change or replace one job's run."""
    jobs, events = context.jobs, context.events
    record = jobs.before(spec.name)
    if record is None:
        if not jobs.has_begun(spec.key):
            jobs.add(spec)
        return
    if record.key == spec.key:
        _describe_again(jobs, events, record, "")
        if record.ephemeral and spec.path and record.spec.owner == spec.owner:
            _take_into_git(jobs, spec)
        if not record.finished and record.spec != spec:
            if record.spec.owner == spec.owner:
                _take_over(context, spec, desired_state)
            else:
                _keep_owner(jobs, events, spec, record.spec.owner)
        return
    if jobs.has_begun(spec.key):
        if record.finished:
            _describe_again(jobs, events, record, spec.key)
        return
    if record.finished:
        jobs.add(spec)
        return
    draft = jobs.draft(spec.name)
    if draft is None:
        return
    if record.ephemeral:
        _wait_for_ephemeral(events, draft, spec)
    elif spec.run == record.spec.run:
        message = (
            f"run {spec.run} is alive, so a change of what it executes is ignored "
            f"({spec.path or 'its document'}). To fix: raise spec.run to replace the run"
        )
        if draft.message != message:
            draft.message = message
            events.add("JobChangeIgnored", message, job=spec.name)
    elif not draft.removed:
        draft.removed = True
        draft.message = f"replaced by run {spec.run}"
        events.add("JobReplaced", draft.message, job=spec.name)


def _describe_again(
    jobs: cycle_jobs.CycleJobs,
    events: cycle_events.CycleEvents,
    record: records.JobRecord,
    key: str,
) -> None:
    """Note that a document describes an earlier run again; ``key`` empty: that it does not.

    Nothing starts. Whoever asks for the job gets the run that the document describes.
    """
    if record.described == key or (draft := jobs.draft(record.name)) is None:
        return
    draft.described = key
    if key:
        why = past_runs.why_not_again(key, "over", record.spec.run)
        events.add("JobChangeIgnored", why, job=record.name)


def _take_into_git(jobs: cycle_jobs.CycleJobs, spec: desired.Job) -> None:
    """Let a document that came into git describe the same run, which had none until now."""
    draft = jobs.draft(spec.name)
    if draft is not None:
        draft.ephemeral = False


def _wait_for_ephemeral(
    events: cycle_events.CycleEvents, draft: job_draft.JobDraft, spec: desired.Job
) -> None:
    """Let a document wait for the end of a job of its name that is alive and not in git.

    Whoever pushes need not have a right to end that job, whatever run number is written.
    """
    message = (
        f"a job of this name that is not in git, of {draft.spec.owner or 'nobody'}, has not ended: "
        f"the document ({spec.path or 'in git'}) comes into force then. To fix: wait, cancel the "
        "job, or use another name"
    )
    if draft.message != message and not draft.removed:
        draft.message = message
        events.add("JobChangeIgnored", message, job=spec.name)


def _nodes_of(attempts: cycle_attempts.CycleAttempts, job: str) -> set[str]:
    """Return the nodes on which tasks of a job are."""
    elements = attempts.elements(job)
    found = (one for element in elements for one in attempts.of_element(job, element))
    return {one.node for one in found if one.state is not AttemptState.ENDED}


def _keep_owner(
    jobs: cycle_jobs.CycleJobs, events: cycle_events.CycleEvents, spec: desired.Job, owner: str
) -> None:
    """Leave a run whose document is now somebody else's as it is.

    What it has written belongs to whoever started it, and its owner tells who may read that.
    """
    message = (
        f"run {spec.run} is {owner or 'nobody'}'s, so a document of {spec.owner or 'nobody'} with "
        f"the same work does not change it ({spec.path or 'its document'}). To fix: raise spec.run "
        "to begin a run of the new owner"
    )
    draft = jobs.draft(spec.name)
    if draft is not None and draft.message != message and not draft.removed:
        draft.message = message
        events.add("JobChangeIgnored", message, job=spec.name)


def _tell_elements(
    events: cycle_events.CycleEvents,
    draft: job_draft.JobDraft,
    taken: desired.Job,
    desired_state: desired.Desired,
) -> None:
    """Tell which elements of a run that have not ended are now cancelled, held or released."""
    spec, open_codes = draft.spec, {job_draft.PENDING, *job_draft.LIVE_CODES}
    ended = {element for element, code in enumerate(draft.elements) if code not in open_codes}
    if cancelled := taken.newly_cancelled(spec) - ended:
        for told in desired_state.why_elements_cancelled(spec.name, cancelled):
            events.add("ElementsCancelled", told, job=spec.name)
            if not draft.message or draft.message.startswith(job_draft.OF_ELEMENTS):
                draft.message = told
    before, after = map(index_ranges.parse, (spec.array_held, taken.array_held))
    if held := set(after).difference(before, ended):
        told = f"{desired.elements_text(held)} held by its document"
        events.add("JobHoldAsked", told, job=spec.name)
    if released := set(before).difference(after, ended):
        told = f"its document no longer holds {desired.elements_text(released)}"
        events.add("JobReleased", told, job=spec.name)


def _take_over(
    context: cycle_context.CycleContext, spec: desired.Job, desired_state: desired.Desired
) -> None:
    """Apply queue, priority, limits, labels and holds, which may change while a run is alive.

    What its tasks could not have started under waits until none of them is on a node.
    """
    jobs, events = context.jobs, context.events
    draft = jobs.draft(spec.name)
    if draft is None:
        return
    kept: tuple[str, ...] = ()
    if draft.live_count():
        room = context.observed.scheduler_state.kept
        nodes = functools.partial(_nodes_of, context.attempts, spec.name)
        kept = run_terms.kept_fields(
            desired_state.structure, draft.spec, spec, run_terms.Reserved(room, nodes)
        )
    taken = run_terms.keep_folder(draft.spec, run_terms.keep(draft.spec, spec, kept))
    if draft.spec.suspend != taken.suspend:
        if taken.suspend:
            events.add("JobHoldAsked", "held by its document", job=spec.name)
        else:
            events.add("JobReleased", "its document no longer holds it", job=spec.name)
            if draft.state is JobState.HELD:
                draft.spec = taken
                jobs.set_state(draft, JobState.PENDING)
    if draft.spec.array_count is not None:
        _tell_elements(events, draft, taken, desired_state)
    draft.spec = taken
    if kept:
        message = run_terms.message(kept)
        if draft.message != message:
            draft.message = message
            events.add("JobChangeWaits", message, job=spec.name)
    elif draft.message.startswith(run_terms.WAITS):
        draft.message = ""
