"""The jobs of one cycle: those observed, and drafts of those that a phase may change.

Every change of state is checked against the tables of ``model.state.states``, and is an event.
"""

from collections.abc import Set as AbstractSet

import msgspec

from reconciler.core import cycle_attempts, cycle_cache, job_draft
from reconciler.core.cycle import cycle_events
from reconciler.model import desired
from reconciler.model.state import records, states
from reconciler.model.state.states import ELEMENT_CODE, JobState


class CycleJobs:
    """The records of jobs, and the runs that begin and end in this cycle.

    Args:
        observed: jobs and keys of runs are read from it.
        cache: indexes of these.
        events: of this cycle.
        now: seconds since the epoch.

    Attributes:
        known: records when the cycle began, by name.
        drafts: jobs that a phase may have changed, by name.
        new_reason_keys: keys of new pending reasons of jobs that are otherwise unchanged.
        new_runs: keys of runs that began, or may never begin.
        cancelled_runs: keys of runs that were cancelled before they could begin.
        replaced: runs that finished in this cycle and that newer ones have replaced.
        finished_now: names of jobs that finished in this cycle.
        arrived: jobs that began in this cycle.
        next_order: number of the next job that begins.
    """

    def __init__(
        self,
        observed: records.Observed,
        cache: cycle_cache.CycleCache,
        events: cycle_events.CycleEvents,
        now: float,
    ) -> None:
        self.known = observed.jobs
        self.drafts: dict[str, job_draft.JobDraft] = {}
        self.new_reason_keys: dict[str, str] = {}
        self.new_runs: list[str] = []
        self.cancelled_runs: set[str] = set()
        self.replaced: list[records.JobRecord] = []
        self.finished_now: list[str] = []
        self.arrived: list[desired.Job] = []
        self.next_order = observed.next_order
        self._quarantined = observed.quarantined
        self._past_runs = observed.past_runs
        self._cache = cache
        self._events = events
        self._now = now

    # -- reading

    def before(self, name: str) -> records.JobRecord | None:
        """Return the newest run of a job as it was before this cycle, for reading only."""
        draft = self.drafts.get(name)
        if draft is not None:
            return draft.base
        for record in reversed(self.replaced):
            if record.name == name:
                return record
        return self.known.get(name)

    def record_of(self, name: str) -> records.JobRecord | None:
        """Return the current record of a job."""
        draft = self.drafts.get(name)
        return draft.record() if draft is not None else self.known.get(name)

    def spec_of(self, name: str) -> desired.Job | None:
        """Return the current spec of a job."""
        held = self.drafts.get(name) or self.known.get(name)
        return held.spec if held is not None else None

    def spec_or_aside(self, name: str) -> desired.Job | None:
        """Return the current spec of a job, also of a quarantined one, because its use counts."""
        draft = self.drafts.get(name)
        if draft is not None:
            return draft.spec
        record = self.known.get(name) or self.aside(name)
        return record.spec if record else None

    def aside(self, name: str) -> records.JobRecord | None:
        """Return the record of a quarantined job. It keeps its resources; nobody preempts it."""
        record = self._quarantined.get(name)
        if record is None:
            return None
        spec = msgspec.structs.replace(record.spec, preemptible=False)
        return msgspec.structs.replace(record, spec=spec)

    def elements_of(self, name: str) -> bytes:
        """Return the current states of a job's elements; empty if there is no such job."""
        held = self.drafts.get(name) or self.known.get(name)
        return bytes(held.elements) if held is not None else b""

    def state_of(self, name: str) -> JobState | None:
        """Return the current state of a job."""
        held = self.drafts.get(name) or self.known.get(name)
        return held.state if held is not None else None

    def is_declared_over(self, name: str) -> bool:
        """Return True if somebody said that a job counts as done."""
        held = self.drafts.get(name) or self.known.get(name)
        return held is not None and held.declared_over

    def reason_key(self, name: str) -> str:
        """Return the key of a job's pending reasons; empty if it has none."""
        held = self.drafts.get(name) or self.known.get(name)
        return self.new_reason_keys.get(name, held.reason_key if held is not None else "")

    def has_begun(self, key: str) -> bool:
        """Return True if a run with this key has begun before, or may never begin."""
        return key in self._past_runs or key in self.cancelled_runs

    def renewed(self) -> dict[str, records.JobRecord]:
        """Return the records that are new or changed."""
        found: dict[str, records.JobRecord] = {}
        for name, draft in self.drafts.items():
            record = draft.record()
            if draft.is_new or record is not draft.base:
                found[name] = record
        for name, key in self.new_reason_keys.items():
            found[name] = msgspec.structs.replace(self.known[name], reason_key=key)
        return found

    def active_names(self) -> list[str]:
        """Return the names of unfinished jobs, sorted, with those of this cycle."""
        alive = {name: not draft.finished for name, draft in self.drafts.items()}
        return self._cache.active.with_drafts(alive)

    def waiting_names(self) -> list[str]:
        """Return the names of active jobs that are not simply running, sorted.

        Jobs that this cycle has touched are included in any state.
        """
        alive = {name: not draft.finished for name, draft in self.drafts.items()}
        return self._cache.waiting.with_drafts(alive)

    def names_besides(self, some: AbstractSet[str]) -> list[str]:
        """Return some active jobs and those that this cycle has touched, sorted."""
        drafts = self.drafts
        found = {name for name in some if name not in drafts}
        found.update(name for name, draft in drafts.items() if not draft.finished)
        return sorted(found)

    def touched(self, attempts: cycle_attempts.CycleAttempts) -> set[str]:
        """Return the jobs that this cycle may have changed, or an attempt of which it has."""
        return {attempt.job for attempt in attempts.renewed.values()} | self.drafts.keys()

    def changed(self, attempts: cycle_attempts.CycleAttempts) -> set[str]:
        """Return the jobs that this cycle has changed, or an attempt of which it has."""
        found = {attempt.job for attempt in attempts.renewed.values()}
        found.update(name for name, draft in self.drafts.items() if draft.changed)
        return found

    # -- writing

    def draft(self, name: str) -> job_draft.JobDraft | None:
        """Return the draft of a job, or None if there is no such job."""
        draft = self.drafts.get(name)
        if draft is None:
            record = self.known.get(name)
            if record is None:
                return None
            draft = self.drafts[name] = job_draft.JobDraft(record)
            draft.reason_key = self.new_reason_keys.pop(name, record.reason_key)
        return draft

    def add(self, spec: desired.Job, *, ephemeral: bool = False) -> job_draft.JobDraft:
        """Begin a run that has never been; ``ephemeral``: no file in git describes it."""
        state = JobState.HELD if spec.suspend else JobState.PENDING
        record = records.JobRecord(
            spec=spec,
            state=state,
            elements=_first_states(spec),
            submitted_at=self._now,
            order=self.next_order,
            ephemeral=ephemeral,
        )
        self.next_order += 1
        draft = job_draft.JobDraft(record)
        draft.is_new = True
        self.drafts[spec.name] = draft
        self.new_runs.append(spec.key)
        self.arrived.append(spec)
        message = f"run {spec.run} waits in queue {spec.queue}"
        message += "; it is not in git" if ephemeral else ""
        self._events.add("JobSubmitted", message, job=spec.name)
        return draft

    def bar_run(self, key: str) -> None:
        """Prevent a run that was cancelled before it could begin."""
        self.cancelled_runs.add(key)
        self.new_runs.append(key)

    def archive_finished(self, name: str) -> None:
        """Set aside a run that finished in this cycle, so that a newer one can begin."""
        draft = self.drafts.pop(name)
        self.replaced.append(draft.record())

    def set_state(self, draft: job_draft.JobDraft, state: JobState, message: str = "") -> None:
        """Change a job's state as the table of states allows. A change is an event."""
        if state is draft.state:
            return
        states.check(f"job {draft.spec.name}", draft.state, state)
        draft.state = state
        if message:
            draft.message = message
        if state in states.FINISHED_JOB_STATES:
            draft.ended_at = self._now
            draft.reason_key = ""
            self.finished_now.append(draft.spec.name)
        why = draft.spec.suspend_reason if state is JobState.HELD else ""
        self._events.add(f"Job{state.value}", message or why, job=draft.spec.name)


def _first_states(spec: desired.Job) -> bytes:
    """Return the states of the elements of a new run: those it does not have are done."""
    if not (spec.array_only or spec.array_indexes):
        return bytes(spec.element_count)
    states = bytearray([ELEMENT_CODE[JobState.SUCCEEDED]]) * spec.element_count
    for element in spec.run_elements:
        states[element] = ELEMENT_CODE[JobState.PENDING]
    return bytes(states)
