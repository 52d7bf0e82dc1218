"""Counters over the life of a loop, and sums that each outcome changes by its difference.

A page is rendered after every cycle, so only the first rendering visits all jobs and attempts.
"""

import bisect
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol, get_args

import msgspec

from reconciler.metrics import cluster_totals, starvation
from reconciler.model.policy import drift_kinds
from reconciler.model.state import instance_records, outcome, records, scheduler_state
from reconciler.model.state.pending_reasons import Reason
from reconciler.model.state.states import FINISHED_JOB_STATES, AttemptState, EndReason

#: Upper bounds of the buckets of durations, in seconds.
DURATION_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
WAIT_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
#: What a look at the repository can come to.
SYNCED, OUT_OF_SYNC, UNREADABLE = LOOKS = ("synced", "out-of-sync", "unreadable")
#: The same by ``SyncStatus.sync``.
LOOK_OF = {"Synced": SYNCED, "OutOfSync": OUT_OF_SYNC, "Unknown": UNREADABLE}
#: The most pairs of queue and owner, and the most queues, that are told apart by series that add
#: up; what comes later counts for ``OTHER``.
OWNERS_MAX = 1000
QUEUES_MAX = 1000
OTHER = "(other)"
#: How a try at making a difference right ends.
REMEDY_ENDS = tuple(state for state in get_args(drift_kinds.RemedyState) if state != "ordered")
#: An attempt that fails within this time may have failed for its node.
QUICK_S = 60.0
#: Every kind of action by the tag that it has in the journal too.
ACTIONS: dict[type[outcome.Action], str] = {
    kind: str(kind.__struct_config__.tag) for kind in get_args(outcome.Action)
}


class Exemplar(msgspec.Struct, frozen=True):
    """One observation of a bucket: job, value and time."""

    job: str
    value: float
    at: float


class Histogram:
    """A histogram that keeps the newest named observation of each bucket as its exemplar."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    def observe(self, value: float, *, job: str = "", at: float = 0.0) -> None:
        """Count one observation of ``job``, made at time ``at``."""
        bucket = bisect.bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.total += value
        if job:
            self.exemplars[bucket] = Exemplar(job, value, at)


#: The phases of a cycle: those that ``core.reconcile`` tells of, the outcome that they come to,
#: then what the loop does with it.
PHASES = (
    *("ingest", "admit", "health", "lifecycle", "leave", "snapshot", "schedule", "place"),
    *("outcome", "journal", "commit", "act", "publish"),
)


#: Parts of the loop that an internal error can be in, in words.
DEFECT_PARTS = {
    "repository": "reading the repository",
    "revision": "with what git asks for",
    "job": "with a job as it is written",
    "input": "with what came in",
    "journal": "writing down what was decided by",
    "views": "making what people are shown",
    "usage": "metering",
    "notices": "finding news to tell",
    "lines": "writing lines of events",
    "tell": "telling nodes and provisioners",
    "metrics": "making the page of metrics",
}


class Phases:
    """Seconds spent in each phase of a cycle: each call ends the phase that it names.

    ``clock`` gives seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._at = clock()
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    def begin(self) -> None:
        """Begin the first phase now; earlier time belongs to none."""
        self._at = self._clock()

    def __call__(self, phase: str) -> None:
        now = self._clock()
        self.seconds[phase] += now - self._at
        self._at = now


class RepositoryLook(msgspec.Struct, frozen=True):
    """One look at the repository. ``result`` is one of ``LOOKS``; ``at`` is when it ended.

    ``committed_at`` is when the revision was committed, if this look is the first at it.
    ``defect``: it ended with an internal error. ``notes_lost``: how often others had removed or
    changed notes in git since the last look. ``lead_records_lost``: the same for the record of who
    leads.
    """

    result: str
    at: float
    took_s: float
    committed_at: float | None = None
    defect: bool = False
    notes_lost: int = 0
    lead_records_lost: int = 0


class Counters:
    """Counters of a loop. The loop makes them and passes them where they are needed."""

    def __init__(self, began_at: float = 0.0) -> None:
        self.began_at = began_at
        self.cycles = 0
        self.cycle_duration = Histogram(DURATION_BUCKETS)
        self.commit_duration = Histogram(DURATION_BUCKETS)
        self.sync_duration = Histogram(DURATION_BUCKETS)
        self.sync_lag = Histogram(WAIT_BUCKETS)
        self.job_wait: dict[str, Histogram] = {}
        self.job_run = Histogram(WAIT_BUCKETS)
        self.phases = Phases()
        self.actions: Counter[str] = Counter(dict.fromkeys(ACTIONS.values(), 0))
        self.ended: Counter[str] = Counter({reason.value: 0 for reason in EndReason})
        self.evictions: Counter[str] = Counter({reason.value: 0 for reason in EndReason})
        self.finished: Counter[str] = Counter({state.value: 0 for state in FINISHED_JOB_STATES})
        self.looks: Counter[str] = Counter(dict.fromkeys(LOOKS, 0))
        self.notes_lost = 0
        self.lead_records_lost = 0
        self.read_at: float | None = None
        self.in_force_at: float | None = None
        self.committed_at: float | None = None
        self.failures: Counter[str] = Counter()
        self.defects: dict[str, int] = dict.fromkeys(DEFECT_PARTS, 0)
        self.remedied: Counter[tuple[str, str]] = Counter(
            {
                (verb, result): 0
                for verb in get_args(drift_kinds.RemedyVerb)
                for result in REMEDY_ENDS
            }
        )
        self.gpu_seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.queues: tuple[outcome.QueueUsage, ...] = ()
        #: Tries of the last cycle, and those of them that have ended; None before the first.
        self._remedies: Sequence[drift_kinds.DriftRemedy] | None = None
        self._remedied: set[str] = set()
        self._accrued_at: float | None = None
        self._sums: cluster_totals.Aggregates | None = None
        self._starved: Mapping[str, tuple[int, int, int]] | None = None
        self._ended_open: set[str] = set()

    def look(self, look: RepositoryLook) -> None:
        """Count a look at the repository."""
        self.looks[look.result] += 1
        self.defects["repository"] += look.defect
        self.notes_lost += look.notes_lost
        self.lead_records_lost += look.lead_records_lost
        self.sync_duration.observe(look.took_s)
        if look.result != UNREADABLE:
            self.read_at = look.at
        if look.result == SYNCED:
            self.in_force_at = look.at
        if look.committed_at is not None:
            self.committed_at = look.committed_at
            if look.result == SYNCED:
                self.sync_lag.observe(max(0.0, look.at - look.committed_at))

    def cycle(self, decided: outcome.Outcome, *, decide_s: float, commit_s: float) -> None:
        """Count a cycle that was carried out."""
        self.cycles += 1
        self.cycle_duration.observe(decide_s + commit_s)
        self.commit_duration.observe(commit_s)
        if decided.queues is not None:
            self.queues = decided.queues
        stopped = set()
        for action in decided.actions:
            self.actions[ACTIONS[type(action)]] += 1
            if isinstance(action, outcome.StopAttempt):
                stopped.add(action.attempt)
        for attempt in decided.attempts:
            if attempt.stop is not None and attempt.id in stopped:
                self.evictions[attempt.stop.reason.value] += 1
            if attempt.state is AttemptState.ENDED:
                self._count_end(attempt)
        for name in decided.left_nodes:
            self.failures.pop(name, None)
        self._count_remedies(decided.remedies)
        if decided.queues is not None or decided.reasons or decided.jobs or decided.left_jobs:
            self._starved = None
        if self._sums is not None:  # else all are counted when they are first asked for
            self._follow(self._sums, decided)

    def _count_remedies(self, known: Sequence[drift_kinds.DriftRemedy]) -> None:
        """Count remediations that have ended since the last cycle; an unchanged list is skipped."""
        if known is self._remedies:
            return
        ended = {one.id for one in known if not one.open}
        if self._remedies is not None:  # those that ended before a restart were counted then
            for one in known:
                if one.id in ended and one.id not in self._remedied:
                    self.remedied[one.verb, one.state] += 1
        self._remedies, self._remedied = known, ended

    def _follow(self, kept: cluster_totals.Aggregates, decided: outcome.Outcome) -> None:
        self._accrue(kept, decided.now)
        for job in decided.jobs:
            self._count_job(kept, job)
        for attempt in decided.attempts:
            kept.attempt(attempt)
        for name in decided.left_jobs:
            kept.forget(name)
        for whose in kept.gpus_of:  # from zero on, so that the first charge is an increase too
            if whose not in self.gpu_seconds and len(self.gpu_seconds) < OWNERS_MAX:
                self.gpu_seconds[whose] = 0.0

    def _accrue(self, kept: cluster_totals.Aggregates, now: float) -> None:
        """Charge GPUs that were held since the last time."""
        since = self._accrued_at if self._accrued_at is not None else now
        self._accrued_at = max(now, since)
        if now <= since:
            return
        for whose, gpu_milli in kept.gpus_of.items():
            key = whose
            if key not in self.gpu_seconds and len(self.gpu_seconds) >= OWNERS_MAX:
                key = (OTHER, OTHER)
            self.gpu_seconds[key] += gpu_milli * (now - since) / 1000

    def _count_end(self, attempt: records.AttemptRecord) -> None:
        # the record comes once more when the whole try is concluded
        if attempt.id not in self._ended_open and not attempt.was_lost:
            self.ended[(attempt.end_reason or EndReason.LOST).value] += 1
            if _is_quick_failure(attempt):
                self.failures[attempt.node] += 1
        if attempt.concluded:
            self._ended_open.discard(attempt.id)
        else:
            self._ended_open.add(attempt.id)

    def _count_job(self, kept: cluster_totals.Aggregates, job: records.JobRecord) -> None:
        before, now = kept.job(job)
        if job.finished and (before is None or before.state is not now.state):
            self.finished[job.state.value] += 1
            if job.started_at is not None and job.ended_at is not None:
                ran_s = max(0.0, job.ended_at - job.started_at)
                self.job_run.observe(ran_s, job=job.name, at=job.ended_at)
        if job.started_at is not None and not (before is not None and before.started):
            queue = now.queue
            if queue not in self.job_wait and len(self.job_wait) >= QUEUES_MAX:
                queue = OTHER
            waits = self.job_wait.setdefault(queue, Histogram(WAIT_BUCKETS))
            waited_s = max(0.0, job.started_at - job.submitted_at)
            waits.observe(waited_s, job=job.name, at=job.started_at)

    def sums(self, memory: "ClusterState", now: float) -> cluster_totals.Aggregates:
        """Return the sums; only the first call visits all of ``memory``."""
        if self._sums is None:
            self._sums = cluster_totals.Aggregates(
                {**memory.jobs, **memory.quarantined}, memory.attempts
            )
            self._accrued_at = now
        return self._sums

    def starved(self, memory: "ClusterState", now: float) -> Mapping[str, tuple[int, int, int]]:
        """Return what each queue is guaranteed, could use and does not have, as of the
        last cycle.
        """
        if self._starved is None:
            asked = self.sums(memory, now).asked_by_reason
            self._starved = starvation.amounts(self.queues, asked, memory.reasons)
        return self._starved

    def starved_in_pools(self, memory: "ClusterState", now: float) -> Mapping[tuple[str, str], int]:
        """Return the same by queue and pool, in milli-GPUs, for queues with a guarantee in
        a pool.
        """
        if not any(queue.pools for queue in self.queues):
            return {}
        asked = self.sums(memory, now).asked_by_reason
        return starvation.in_pools(self.queues, asked, memory.reasons)


def _is_quick_failure(attempt: records.AttemptRecord) -> bool:
    """Return True if an attempt failed so soon that the node itself may be the cause."""
    if attempt.end_reason in (EndReason.START_FAILED, EndReason.REFUSED, EndReason.CHECK_FAILED):
        return True
    if attempt.end_reason is not EndReason.EXITED or not (attempt.exit_code or attempt.signal):
        return False
    began, ended = attempt.started_at, attempt.ended_at
    return began is not None and ended is not None and ended - began < QUICK_S


class ClusterState(Protocol):
    """The part of the loop's state that is shown."""

    @property
    def jobs(self) -> Mapping[str, records.JobRecord]:
        """Newest runs by name."""

    @property
    def quarantined(self) -> Mapping[str, records.JobRecord]:
        """Quarantined jobs."""

    @property
    def active(self) -> AbstractSet[str]:
        """Return the names of jobs that are not finished."""

    @property
    def attempts(self) -> Mapping[str, records.AttemptRecord]:
        """Attempts that are not concluded."""

    @property
    def nodes(self) -> Mapping[str, records.NodeRecord]:
        """Nodes by name."""

    @property
    def reasons(self) -> Mapping[str, tuple[Reason, ...]]:
        """Reasons of pending work."""

    @property
    def overrides(self) -> tuple[records.Override, ...]:
        """Overrides in force."""

    @property
    def scheduler_state(self) -> scheduler_state.SchedulerState:
        """The scheduler's memory, for the use of budgets."""

    @property
    def remedies(self) -> Sequence[drift_kinds.DriftRemedy]:
        """Remediations of the last day."""

    @property
    def drift(self) -> Sequence[drift_kinds.Drift]:
        """Differences between git and the cluster."""

    @property
    def provisions(self) -> Mapping[str, instance_records.Provision]:
        """Instances behind the nodes of provisioned pools."""
