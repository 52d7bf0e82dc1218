"""The context of one cycle: what was observed, and the records that the phases renew.

Phases read jobs, attempts and nodes through it and see what earlier phases wrote. Nothing they read
changes in place, so ``reconcile`` stays a function. Every change of state goes through the context
and is checked against the tables of ``model.state.states``.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import msgspec

from reconciler.core import cycle_attempts, cycle_cache, job_draft, job_errors, remedy_log
from reconciler.model import desired
from reconciler.model.observed import task_reports
from reconciler.model.policy import drift_kinds
from reconciler.model.state import events, outcome, records, states
from reconciler.model.state.pending_reasons import Reason
from reconciler.model.state.states import AttemptState, EndReason, JobState


class Ended(msgspec.Struct, frozen=True):
    """A task, or all tasks of a try, that ended in this cycle.

    Attributes:
        spec: of the job.
        gpu_s: GPU-seconds it used; 0 if they were lost with a node.
        ran_s: how long an element ran that has succeeded; None for others.
    """

    spec: desired.Job
    gpu_s: float
    ran_s: float | None = None


class CycleContext:
    """The values that the phases of one cycle read and write.

    Attributes:
        desired: the desired state. Overrides may replace its structure.
        observed: every record, and what came in. It never changes.
        cache: what earlier cycles computed from these records.
        now: seconds since the epoch.
        drafts: jobs that a phase may have changed, by name.
        attempts: all attempts, with new and renewed ones.
        nodes: new and renewed nodes, by name.
    """

    def __init__(
        self,
        desired_state: desired.Desired,
        observed: records.Observed,
        now: float,
        cache: cycle_cache.CycleCache | None = None,
    ) -> None:
        """Begin a cycle.

        Args:
            desired_state: what git asks for.
            observed: every record, and what came in.
            now: seconds since the epoch.
            cache: of exactly these records; None: an empty one.

        Raises:
            ValueError: the cache knows other records.
        """
        if cache is None:
            cache = cycle_cache.CycleCache.from_observed(observed)
        elif cache.attempts is not observed.attempts:
            raise ValueError("the cache belongs to other records than those observed")
        self.cache = cache
        self.desired = desired_state
        self.observed = observed
        self.now = now
        self.drafts: dict[str, job_draft.JobDraft] = {}
        #: Keys of new pending reasons of jobs that are otherwise unchanged.
        self.new_reason_keys: dict[str, str] = {}
        self.attempts = cycle_attempts.CycleAttempts(observed.attempts, cache)
        self.nodes: dict[str, records.NodeRecord] = {}
        self.events: list[events.Event] = []
        self.actions: list[outcome.Action] = []
        self.new_runs: list[str] = []
        self.replaced: list[records.JobRecord] = []
        self.reasons: dict[str, tuple[Reason, ...]] = {}
        self.finished_now: list[str] = []
        #: Jobs that began in this cycle, and work that ended, from which the scheduler learns.
        self.arrived: list[desired.Job] = []
        self.ended: list[Ended] = []
        #: Elements (``JOB/ELEMENT``) that run with fewer tasks than they need, and since when.
        self.short_since: dict[str, float] = {}
        self.overrides: tuple[records.Override, ...] = observed.overrides
        self.remedies = remedy_log.RemedyLog(observed.remedies)
        self.answers: dict[str, str] = {}
        #: Drains of overrides and provisioners, by node.
        self.override_drains: dict[str, desired.NodeDrain] = {}
        #: Names of provisioned nodes that have no machine now.
        self.absent: set[str] = set()
        #: Keys of runs that were cancelled before they could begin.
        self.cancelled_runs: set[str] = set()
        self.next_order = observed.next_order
        self.wake_at: float | None = None
        #: When the next schedule is due at the latest.
        self.schedule_at: float | None = None
        #: What is forgotten, and when to look for more (see ``garbage_collection``).
        self.left_jobs: list[str] = []
        self.left_nodes: list[str] = []
        self.forget_at = 0.0

    @staticmethod
    def isolate(job: str) -> job_errors.JobErrorScope:
        """Return a block in which an error is attributed to a job, which is then quarantined."""
        return job_errors.JobErrorScope(job)

    # -- reading

    def job(self, name: str) -> records.JobRecord | None:
        """Return the newest run of a job as it was before this cycle, for reading only."""
        draft = self.drafts.get(name)
        if draft is not None:
            return draft.base
        for record in reversed(self.replaced):
            if record.name == name:
                return record
        return self.observed.jobs.get(name)

    def has_begun(self, key: str) -> bool:
        """Return True if a run with this key has begun before, or may never begin."""
        return key in self.observed.past_runs or key in self.cancelled_runs

    def job_state(self, name: str) -> JobState | None:
        """Return the current state of a job."""
        draft = self.drafts.get(name)
        if draft:
            return draft.state
        record = self.observed.jobs.get(name)
        return record.state if record else None

    def draft(self, name: str) -> job_draft.JobDraft | None:
        """Return the draft of a job, or None if there is no such job."""
        draft = self.drafts.get(name)
        if draft is None:
            record = self.observed.jobs.get(name)
            if record is None:
                return None
            draft = self.drafts[name] = job_draft.JobDraft(record)
            draft.reason_key = self.new_reason_keys.pop(name, record.reason_key)
        return draft

    def reason_key(self, name: str) -> str:
        """Return the key of a job's pending reasons; empty if it has none."""
        held = self.drafts.get(name) or self.observed.jobs.get(name)
        return self.new_reason_keys.get(name, held.reason_key if held is not None else "")

    def renewed_jobs(self) -> dict[str, records.JobRecord]:
        """Return the records that are new or changed."""
        found: dict[str, records.JobRecord] = {}
        for name, draft in self.drafts.items():
            record = draft.record()
            if draft.is_new or record is not draft.base:
                found[name] = record
        for name, key in self.new_reason_keys.items():
            found[name] = msgspec.structs.replace(self.observed.jobs[name], reason_key=key)
        return found

    def active_names(self) -> list[str]:
        """Return the names of unfinished jobs, sorted, with those of this cycle."""
        alive = {name: not draft.finished for name, draft in self.drafts.items()}
        return self.cache.active.with_drafts(alive)

    def waiting_names(self) -> list[str]:
        """Return the names of active jobs that are not simply running, sorted.

        Jobs that this cycle has touched are included in any state.
        """
        alive = {name: not draft.finished for name, draft in self.drafts.items()}
        return self.cache.waiting.with_drafts(alive)

    def names_besides(self, some: AbstractSet[str]) -> list[str]:
        """Return some active jobs and those that this cycle has touched, sorted."""
        drafts = self.drafts
        found = {name for name in some if name not in drafts}
        found.update(name for name, draft in drafts.items() if not draft.finished)
        return sorted(found)

    def touched_jobs(self) -> set[str]:
        """Return the jobs that this cycle may have changed, or an attempt of which it has."""
        return {attempt.job for attempt in self.attempts.renewed.values()} | self.drafts.keys()

    def changed_jobs(self) -> set[str]:
        """Return the jobs that this cycle has changed, or an attempt of which it has."""
        found = {attempt.job for attempt in self.attempts.renewed.values()}
        found.update(name for name, draft in self.drafts.items() if draft.changed)
        return found

    def node(self, name: str) -> records.NodeRecord | None:
        """Return the current record of a node."""
        return self.nodes.get(name) or self.observed.nodes.get(name)

    def pool_of(self, name: str) -> str:
        """Return the pool of a node; empty if no pool declares it."""
        record = self.node(name)
        return record.pool if record else ""

    def node_names(self) -> list[str]:
        """Return the names of all nodes ever seen or declared, sorted."""
        there = dict.fromkeys(self.nodes, True) | dict.fromkeys(self.left_nodes, False)
        return self.cache.nodes.with_drafts(there)

    # -- writing

    def add_job(self, spec: desired.Job) -> job_draft.JobDraft:
        """Begin a run that has never been."""
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
        """Set aside a run that finished in this cycle, so that a newer one can begin."""
        draft = self.drafts.pop(name)
        self.replaced.append(draft.record())

    def add_attempt(self, attempt: records.AttemptRecord) -> None:
        """Add an attempt that this cycle decided to start."""
        self.attempts.add(attempt)
        self.actions.append(outcome.StartAttempt(attempt=attempt.id, node=attempt.node))

    def order_stop(self, attempt: records.AttemptRecord, stop: records.StopOrder) -> None:
        """Order an attempt to stop, unless it was ordered before."""
        if attempt.stop is not None or attempt.state is AttemptState.ENDED:
            return
        state = attempt.state
        if state is not AttemptState.UNKNOWN:
            state = AttemptState.STOPPING
        self.attempts.renew(attempt, state=state, stop=stop)
        self.actions.append(outcome.StopAttempt(attempt=attempt.id, node=attempt.node))

    def renew_node(self, node: records.NodeRecord, **changes: object) -> records.NodeRecord:
        """Change a node and return it. A change of state is an event."""
        renewed = msgspec.structs.replace(node, **changes)
        if renewed.state is not node.state:
            states.check(f"node {node.name}", node.state, renewed.state)
            self.event(f"Node{renewed.state.value}", renewed.message or "", node=node.name)
        if renewed != node:
            self.nodes[node.name] = renewed
        return renewed

    def end_remedy(
        self, remedy: drift_kinds.DriftRemedy, state: drift_kinds.RemedyState, message: str
    ) -> None:
        """Note the end of a remediation, which is an event."""
        self.remedies.end(remedy, state, message, at=self.now)
        detail = f": {message}" if message else ""
        self.event(
            "RemedyEnded", f"{remedy.cause}: {remedy.verb} {state}{detail}", node=remedy.node
        )

    def forget_node(self, name: str) -> None:
        """Forget a node."""
        self.left_nodes.append(name)
        self.nodes.pop(name, None)
        self.event("NodeForgotten", "gone, in no pool, and silent for long", node=name)

    def set_job_state(self, draft: job_draft.JobDraft, state: JobState, message: str = "") -> None:
        """Change a job's state as the table of states allows. A change is an event."""
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
        """Add an event."""
        self.events.append(
            events.Event(
                at=self.now, kind=kind, message=message, job=job, node=node, attempt=attempt
            )
        )

    def wake(self, at: float) -> None:
        """Request a cycle at ``at`` or earlier."""
        if self.wake_at is None or at < self.wake_at:
            self.wake_at = at

    def wake_schedule(self, at: float) -> None:
        """Request another schedule at ``at`` or earlier."""
        if self.schedule_at is None or at < self.schedule_at:
            self.schedule_at = at


def stop_order(
    context: CycleContext,
    spec: desired.Job,
    attempt: records.AttemptRecord,
    reason: EndReason,
    by: str = "",
) -> records.StopOrder:
    """Return how to stop an attempt: by the checkpoint signal, unless its work is cancelled."""
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
    """Return the seconds that a task which starts on ``node`` has to stop after its lease."""
    return _grace_s(context, spec, node) if spec.checkpoint is None else spec.checkpoint.grace_s


def _grace_s(context: CycleContext, spec: desired.Job, node_name: str) -> int:
    if spec.grace_s is not None:
        return spec.grace_s
    node = context.node(node_name)
    pool = context.desired.structure.pools.get(node.pool) if node else None
    return pool.grace_s if pool else 30


def try_number_of(attempts: list[records.AttemptRecord], note: records.ElementNote) -> int:
    """Return the highest number of a try so far.

    Tasks that join an elastic element later have higher numbers, also those that are gone: a number
    used twice would name an attempt that its node had before and forgot.
    """
    return max([note.tries, *(attempt.try_number for attempt in attempts)])


def newest_saved(
    attempts: Iterable[records.AttemptRecord], note: records.ElementNote
) -> task_reports.Saved | None:
    """Return the newest checkpoint of an element, of its current try or of earlier ones."""
    known = [one.saved for one in attempts if one.saved is not None]
    if note.saved is not None:
        known.append(note.saved)
    return max(known, key=lambda one: (one.at, one.path), default=None)
