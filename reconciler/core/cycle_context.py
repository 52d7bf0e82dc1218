"""The desk of one cycle: what is observed below, what the phases renew on top.

Phases read jobs, attempts and nodes through a ``CycleContext`` and see what earlier phases of the
same cycle wrote; nothing they read is ever changed in place, so that ``reconcile`` stays a
function. Every change of state passes through here and is checked against the tables of
``model.states``.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from reconciler.core import cycle_cache, job_draft
from reconciler.model import desired
from reconciler.model.observed import task_reports
from reconciler.model.policy import drift_kinds
from reconciler.model.state import events, outcome, records, states
from reconciler.model.state.pending_reasons import Reason
from reconciler.model.state.states import AttemptState, EndReason, JobState

_NOTHING: Mapping[int, dict[str, None]] = {}


class JobError(Exception):
    """An error that the core raised while it processed one job; the error itself is its cause."""

    def __init__(self, job: str) -> None:
        super().__init__(f"an error occurred while job {job} was processed")
        self.job = job


class _Isolation:
    """A block about one job; what it raises becomes a ``JobError``."""

    __slots__ = ("_job",)

    def __init__(self, job: str) -> None:
        self._job = job

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Name the job if the block raises."""
        if isinstance(error, Exception) and not isinstance(error, JobError):
            raise JobError(self._job) from error


def job_of_error(error: Exception) -> str | None:
    """Return the job that an error names, if any."""
    return error.job if isinstance(error, JobError) else None


class Ended(msgspec.Struct, frozen=True):
    """A task, or all tasks of a try, that came to an end in this cycle.

    ``gpu_s``: GPU-seconds it used, 0 where they were lost to a node; ``ran_s``: how long an
    element ran that has succeeded, None for others.
    """

    spec: desired.Job
    gpu_s: float
    ran_s: float | None = None


class CycleContext:
    """What one cycle reads and what it renews."""

    def __init__(
        self,
        desired_state: desired.Desired,
        observed: records.Observed,
        now: float,
        cache: cycle_cache.CycleCache | None = None,
    ) -> None:
        """``recall``: what earlier cycles with these very records worked out.

        Raises:
            ValueError: it knows other records.
        """
        if cache is None:
            cache = cycle_cache.CycleCache.of(observed)
        elif cache.attempts is not observed.attempts:
            raise ValueError("what is recalled is of other records than those observed")
        self.cache = cache
        self.desired = desired_state
        self.observed = observed
        self.now = now
        self.drafts: dict[str, job_draft.JobDraft] = {}
        #: Jobs that nothing happens to but that they wait for another reason, with its key.
        self.pointed: dict[str, str] = {}
        self.attempts: dict[str, records.AttemptRecord] = {}
        self.nodes: dict[str, records.NodeRecord] = {}
        self.events: list[events.Event] = []
        self.actions: list[outcome.Action] = []
        self.new_runs: list[str] = []
        self.replaced: list[records.JobRecord] = []
        self.reasons: dict[str, tuple[Reason, ...]] = {}
        self.finished_now: list[str] = []
        #: Jobs that began in this cycle, and work that ended: what the scheduler learns from.
        self.arrived: list[desired.Job] = []
        self.ended: list[Ended] = []
        #: Elements (``JOB/ELEMENT``) that run with fewer tasks than they need, and since when.
        self.short_since: dict[str, float] = {}
        self.overrides: tuple[records.Override, ...] = observed.overrides
        #: Tries to make differences right, oldest first; by cause on demand.
        self.remedies: list[drift_kinds.DriftRemedy] = list(observed.remedies)
        self._by_cause: dict[str, list[drift_kinds.DriftRemedy]] | None = None
        self._on_node: dict[str, drift_kinds.DriftRemedy] | None = None
        self.answers: dict[str, str] = {}
        #: Drains that are in force though git does not say them, by node.
        self.override_drains: dict[str, desired.NodeDrain] = {}
        #: Names of provisioned nodes behind which no machine is to be.
        self.absent: set[str] = set()
        #: Keys of runs that somebody cancelled before they could begin.
        self.barred: set[str] = set()
        self.next_order = observed.next_order
        self.wake_at: float | None = None
        #: When something that waits for a moment may be scheduled.
        self.schedule_at: float | None = None
        #: What leaves the memory, and when to look for more (see ``leaving``).
        self.left_jobs: list[str] = []
        self.left_nodes: list[str] = []
        self.look_at = 0.0
        #: Ids of attempts that this cycle adds, by job and element, and by node.
        self._added_by_job: dict[str, dict[int, list[str]]] = {}
        self._added_by_node: dict[str, list[str]] = {}

    @staticmethod
    def isolate(job: str) -> _Isolation:
        """Return a block in which an error is attributed to a job, which is then quarantined."""
        return _Isolation(job)

    # -- reading

    def job(self, name: str) -> records.JobRecord | None:
        """The newest run of a job as it stands before this cycle, for reading only."""
        draft = self.drafts.get(name)
        if draft is not None:
            return draft.base
        for record in reversed(self.replaced):
            if record.name == name:
                return record
        return self.observed.jobs.get(name)

    def has_been(self, key: str) -> bool:
        """Whether a run of this key began before, or may never begin."""
        return key in self.observed.past_runs or key in self.barred

    def job_state(self, name: str) -> JobState | None:
        """The state of a job as this cycle has it so far."""
        draft = self.drafts.get(name)
        if draft:
            return draft.state
        record = self.observed.jobs.get(name)
        return record.state if record else None

    def draft(self, name: str) -> job_draft.JobDraft | None:
        """The job to work on, or None if there is none of that name."""
        draft = self.drafts.get(name)
        if draft is None:
            record = self.observed.jobs.get(name)
            if record is None:
                return None
            draft = self.drafts[name] = job_draft.JobDraft(record)
            draft.reason_key = self.pointed.pop(name, record.reason_key)
        return draft

    def reason_key(self, name: str) -> str:
        """The reason why a job waits, empty for none."""
        held = self.drafts.get(name) or self.observed.jobs.get(name)
        return self.pointed.get(name, held.reason_key if held is not None else "")

    def renewed_jobs(self) -> dict[str, records.JobRecord]:
        """Records that are other by now than they were observed, or new."""
        found: dict[str, records.JobRecord] = {}
        for name, draft in self.drafts.items():
            record = draft.record()
            if draft.is_new or record is not draft.base:
                found[name] = record
        for name, key in self.pointed.items():
            found[name] = msgspec.structs.replace(self.observed.jobs[name], reason_key=key)
        return found

    def active_names(self) -> list[str]:
        """Names of jobs that are not finished, those of this cycle included, sorted."""
        alive = {name: not draft.finished for name, draft in self.drafts.items()}
        return self.cache.active.with_drafts(alive)

    def waiting_names(self) -> list[str]:
        """Of the active names those of jobs that are not simply running, sorted.

        Jobs that this cycle has touched are among them, whatever they do.
        """
        alive = {name: not draft.finished for name, draft in self.drafts.items()}
        return self.cache.waiting.with_drafts(alive)

    def names_besides(self, some: AbstractSet[str]) -> list[str]:
        """Some active jobs, and those that this cycle has touched, sorted."""
        drafts = self.drafts
        found = {name for name in some if name not in drafts}
        found.update(name for name, draft in drafts.items() if not draft.finished)
        return sorted(found)

    def touched_jobs(self) -> set[str]:
        """Jobs that may be other than they were observed, or have such attempts."""
        return {attempt.job for attempt in self.attempts.values()} | self.drafts.keys()

    def changed_jobs(self) -> set[str]:
        """Jobs that are other than they were observed, or have such attempts."""
        found = {attempt.job for attempt in self.attempts.values()}
        found.update(name for name, draft in self.drafts.items() if draft.changed)
        return found

    def attempt(self, attempt_id: str) -> records.AttemptRecord | None:
        """An attempt of a try that had not concluded when the cycle began."""
        return self.attempts.get(attempt_id) or self.observed.attempts.get(attempt_id)

    def live_attempts(self) -> Iterator[records.AttemptRecord]:
        """Every attempt that has not ended, in the order of their ids' arrival."""
        renewed = self.attempts
        for attempt_id, attempt in self.observed.attempts.items():
            if attempt_id not in renewed and attempt.state is not AttemptState.ENDED:
                yield attempt
        for attempt in renewed.values():
            if attempt.state is not AttemptState.ENDED:
                yield attempt

    def attempts_of_element(self, job: str, element: int) -> list[records.AttemptRecord]:
        """The attempts of the element's try under way, those that ended in it included."""
        renewed, known = self.attempts, self.observed.attempts
        ids: Iterable[str] = self.cache.by_job.get(job, _NOTHING).get(element, ())
        if job in self._added_by_job:
            ids = (*ids, *self._added_by_job[job].get(element, ()))
        return [renewed.get(attempt_id) or known[attempt_id] for attempt_id in ids]

    def elements_with_attempts(self, job: str) -> list[int]:
        """Elements of a job that have attempts under way, ascending."""
        found = self.cache.by_job.get(job, _NOTHING).keys()
        return sorted(found | self._added_by_job.get(job, {}).keys())

    def has_attempts(self, job: str) -> bool:
        """Whether a job has attempts under way."""
        return job in self.cache.by_job or job in self._added_by_job

    def attempts_of_node(self, node: str) -> list[records.AttemptRecord]:
        """The attempts on a node that have not ended."""
        renewed, known = self.attempts, self.observed.attempts
        ids: Iterable[str] = self.cache.by_node.get(node, ())
        if node in self._added_by_node:
            ids = (*ids, *self._added_by_node[node])
        found = [renewed.get(attempt_id) or known[attempt_id] for attempt_id in ids]
        return [attempt for attempt in found if attempt.state is not AttemptState.ENDED]

    def node(self, name: str) -> records.NodeRecord | None:
        """A node as this cycle has it so far."""
        return self.nodes.get(name) or self.observed.nodes.get(name)

    def pool_of(self, name: str) -> str:
        """The pool of a node; empty where none declares it."""
        record = self.node(name)
        return record.pool if record else ""

    def node_names(self) -> list[str]:
        """Names of all nodes ever seen or declared, sorted."""
        there = dict.fromkeys(self.nodes, True) | dict.fromkeys(self.left_nodes, False)
        return self.cache.nodes.with_drafts(there)

    def remedies_of(self, cause: str) -> list[drift_kinds.DriftRemedy]:
        """Tries at one difference, oldest first."""
        if self._by_cause is None:
            self._by_cause = {}
            for one in self.remedies:
                self._by_cause.setdefault(one.cause, []).append(one)
        return self._by_cause.get(cause, [])

    def remedy_on(self, node: str) -> drift_kinds.DriftRemedy | None:
        """What is done on a node under which nothing may run there; None: nothing is."""
        if self._on_node is None:
            self._on_node = {
                one.node: one
                for one in self.remedies
                if one.open and one.verb in drift_kinds.IDLE_VERBS
            }
        return self._on_node.get(node)

    # -- writing

    def add_job(self, spec: desired.Job) -> job_draft.JobDraft:
        """A run that has never been: it begins here."""
        state = JobState.HELD if spec.suspend else JobState.PENDING
        record = records.JobRecord(
            spec=spec,
            state=state,
            elements=bytes(spec.element_count),
            submitted_at=self.now,
            order=self.next_order,
        )
        self.next_order += 1
        draft = job_draft.JobDraft(record)
        draft.is_new = True
        self.drafts[spec.name] = draft
        self.new_runs.append(spec.key)
        self.arrived.append(spec)
        self.event("JobSubmitted", f"run {spec.run} waits in queue {spec.queue}", job=spec.name)
        return draft

    def archive_finished(self, name: str) -> None:
        """Set a run that finished in this cycle aside, so that a newer one can begin."""
        draft = self.drafts.pop(name)
        self.replaced.append(draft.record())

    def add_attempt(self, attempt: records.AttemptRecord) -> None:
        """A new attempt, decided in this cycle."""
        self.attempts[attempt.id] = attempt
        elements = self._added_by_job.setdefault(attempt.job, {})
        elements.setdefault(attempt.element, []).append(attempt.id)
        self._added_by_node.setdefault(attempt.node, []).append(attempt.id)
        self.actions.append(outcome.StartAttempt(attempt=attempt.id, node=attempt.node))

    def renew_attempt(self, attempt: records.AttemptRecord, **changes: object) -> None:
        """Replace an attempt by one with ``changes``; its state only as the table allows."""
        renewed = msgspec.structs.replace(attempt, **changes)
        if renewed.state is not attempt.state:
            states.check(
                f"attempt {attempt.id} on {attempt.node}",
                attempt.state,
                renewed.state,
                self._story(attempt),
            )
        self.attempts[attempt.id] = renewed

    def order_stop(self, attempt: records.AttemptRecord, stop: records.StopOrder) -> None:
        """Tell an attempt to leave; one that was told already is left alone."""
        if attempt.stop is not None or attempt.state is AttemptState.ENDED:
            return
        state = attempt.state
        if state is not AttemptState.UNKNOWN:
            state = AttemptState.STOPPING
        self.renew_attempt(attempt, state=state, stop=stop)
        self.actions.append(outcome.StopAttempt(attempt=attempt.id, node=attempt.node))

    def renew_node(self, node: records.NodeRecord, **changes: object) -> records.NodeRecord:
        """Replace a node by one with ``changes``; a change of state is an event."""
        renewed = msgspec.structs.replace(node, **changes)
        if renewed.state is not node.state:
            states.check(f"node {node.name}", node.state, renewed.state)
            self.event(f"Node{renewed.state.value}", renewed.message or "", node=node.name)
        if renewed != node:
            self.nodes[node.name] = renewed
        return renewed

    def add_remedy(self, remedy: drift_kinds.DriftRemedy) -> None:
        """Remember a try."""
        self.remedies.append(remedy)
        self._by_cause = self._on_node = None

    def end_remedy(
        self, remedy: drift_kinds.DriftRemedy, state: drift_kinds.RemedyState, message: str
    ) -> None:
        """An order of a node has come to its end; that is an event."""
        ended = msgspec.structs.replace(remedy, state=state, ended_at=self.now, message=message)
        self.remedies = [ended if one.id == remedy.id else one for one in self.remedies]
        self._by_cause = self._on_node = None
        detail = f": {message}" if message else ""
        self.event(
            "RemedyEnded", f"{remedy.cause}: {remedy.verb} {state}{detail}", node=remedy.node
        )

    def forget_remedies(self, before: float, most: int) -> None:
        """Let go of tries that are older, or too many; never of one that is under way."""
        excess = len(self.remedies) - most
        kept = [
            one
            for position, one in enumerate(self.remedies)
            if one.open or (one.at >= before and position >= excess)
        ]
        if len(kept) < len(self.remedies):
            self.remedies, self._by_cause = kept, None  # of those that are open none goes

    def let_node_go(self, name: str) -> None:
        """Know a node no longer."""
        self.left_nodes.append(name)
        self.nodes.pop(name, None)
        self.event("NodeForgotten", "gone, in no pool, and not heard of for long", node=name)

    def set_job_state(self, draft: job_draft.JobDraft, state: JobState, message: str = "") -> None:
        """Change a job's state as the table allows; a change is an event."""
        if state is draft.state:
            return
        states.check(f"job {draft.spec.name}", draft.state, state)
        draft.state = state
        if message:
            draft.message = message
        if state in states.FINISHED_JOB_STATES:
            draft.ended_at = self.now
            draft.reason_key = ""
            self.finished_now.append(draft.spec.name)
        why = draft.spec.suspend_reason if state is JobState.HELD else ""
        self.event(f"Job{state.value}", message or why, job=draft.spec.name)

    def event(
        self, kind: str, message: str, *, job: str = "", node: str = "", attempt: str = ""
    ) -> None:
        """Note that something happened."""
        self.events.append(
            events.Event(
                at=self.now, kind=kind, message=message, job=job, node=node, attempt=attempt
            )
        )

    def wake(self, at: float) -> None:
        """Ask for a cycle at ``at`` at the latest."""
        if self.wake_at is None or at < self.wake_at:
            self.wake_at = at

    def wake_schedule(self, at: float) -> None:
        """Ask for another schedule at ``at`` at the latest."""
        if self.schedule_at is None or at < self.schedule_at:
            self.schedule_at = at

    def _story(self, attempt: records.AttemptRecord) -> tuple[str, ...]:
        lines = [f"assigned to {attempt.node} at {attempt.assigned_at}"]
        if attempt.started_at is not None:
            lines.append(f"started at {attempt.started_at}")
        if attempt.stop is not None:
            lines.append(f"told to stop ({attempt.stop.reason}) at {attempt.stop.at}")
        if attempt.ended_at is not None:
            lines.append(f"ended ({attempt.end_reason}) at {attempt.ended_at}")
        return tuple(lines)


def stop_order(
    context: CycleContext,
    spec: desired.Job,
    attempt: records.AttemptRecord,
    reason: EndReason,
    by: str = "",
) -> records.StopOrder:
    """How an attempt is asked to leave: the checkpoint signal unless its work is unwanted."""
    if spec.checkpoint is not None and reason is not EndReason.CANCELLED:
        return records.StopOrder(
            reason=reason,
            signal=spec.checkpoint.signal,
            grace_s=spec.checkpoint.grace_s,
            at=context.now,
            by=by,
        )
    grace_s = _grace_s(context, spec, attempt.node)
    return records.StopOrder(
        reason=reason, signal="SIGTERM", grace_s=grace_s, at=context.now, by=by
    )


def lease_grace_s(context: CycleContext, spec: desired.Job, node: str) -> int:
    """How long a task that starts now on ``node`` may take to leave when its lease has ended."""
    return _grace_s(context, spec, node) if spec.checkpoint is None else spec.checkpoint.grace_s


def _grace_s(context: CycleContext, spec: desired.Job, node_name: str) -> int:
    if spec.grace_s is not None:
        return spec.grace_s
    node = context.node(node_name)
    pool = context.desired.structure.pools.get(node.pool) if node else None
    return pool.grace_s if pool else 30


def try_number_of(attempts: list[records.AttemptRecord], note: records.ElementNote) -> int:
    """The highest number of a try so far.

    Tasks of an elastic element that joined later have higher numbers, also those that are gone:
    a number that came again would name an attempt that its node has had and forgotten.
    """
    return max([note.tries, *(attempt.try_number for attempt in attempts)])


def newest_saved(
    attempts: Iterable[records.AttemptRecord], note: records.ElementNote
) -> task_reports.Saved | None:
    """The newest checkpoint of an element, of the try under way or of earlier ones."""
    known = [one.saved for one in attempts if one.saved is not None]
    if note.saved is not None:
        known.append(note.saved)
    return max(known, key=lambda one: (one.at, one.path), default=None)
