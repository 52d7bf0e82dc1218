"""What adds up over the life of a loop, and sums that are kept up to date by what changes.

A page is rendered after every cycle, so nothing here goes through all jobs or all attempts but
the first time: each outcome changes the sums by what it changed.
"""

import bisect
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol, get_args

import msgspec

from reconciler.model import drift, outcome, records
from reconciler.model.reasons import Reason
from reconciler.model.resources import Resources
from reconciler.model.states import (
    ELEMENT_CODE,
    FINISHED_JOB_STATES,
    AttemptState,
    EndReason,
    JobState,
)

#: Upper bounds of the buckets of durations, in seconds.
DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WAIT_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
#: Every kind of action by the tag that it has in the journal too.
ACTIONS: dict[type[outcome.Action], str] = {
    kind: str(kind.__struct_config__.tag) for kind in get_args(outcome.Action)
}


_PENDING = ELEMENT_CODE[JobState.PENDING]


class Histogram:
    """Counts observations into buckets."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class _Job(msgspec.Struct, frozen=True):
    """What a job adds to the sums."""

    queue: str
    state: JobState
    started: bool
    reason_key: str
    wants: tuple[int, int, int]


def _job(of: records.JobRecord) -> _Job:
    wants = Resources()
    waiting = of.elements.count(_PENDING)
    if waiting and not of.finished and of.state is not JobState.HELD:
        for group in of.spec.groups:
            wants += group.resources.times(group.count * waiting)
    reason_key = of.reason_key if of.state is JobState.PENDING else ""
    started = of.started_at is not None
    return _Job(of.spec.queue, of.state, started, reason_key, wants.as_vector())


class Sums:
    """Jobs by queue and state, what they wait for and want, and what attempts hold."""

    def __init__(
        self,
        jobs: Mapping[str, records.JobRecord],
        attempts: Mapping[str, records.AttemptRecord],
    ) -> None:
        self._jobs: dict[str, _Job] = {}
        self._held: dict[str, tuple[str, Resources]] = {}
        self.by_state: Counter[tuple[str, str]] = Counter()
        self.by_reason: Counter[tuple[str, str]] = Counter()
        self.wanted: dict[str, list[int]] = {}
        self.held: dict[str, list[int]] = {}
        for job in jobs.values():
            self.job(job)
        for attempt in attempts.values():
            self.attempt(attempt)

    def job(self, job: records.JobRecord) -> tuple[_Job | None, _Job]:
        """Take up a job as it is now; returns what it was and what it is."""
        before, now = self._jobs.get(job.name), _job(job)
        if before is not None:
            self._add(before, -1)
        self._add(now, 1)
        self._jobs[job.name] = now
        return before, now

    def forget(self, name: str) -> None:
        """A job is listed no longer."""
        before = self._jobs.pop(name, None)
        if before is not None:
            self._add(before, -1)

    def _add(self, job: _Job, sign: int) -> None:
        self.by_state[job.queue, job.state.value] += sign
        if not self.by_state[job.queue, job.state.value]:
            del self.by_state[job.queue, job.state.value]
        if job.reason_key:
            self.by_reason[job.queue, job.reason_key] += sign
            if not self.by_reason[job.queue, job.reason_key]:
                del self.by_reason[job.queue, job.reason_key]
        total = self.wanted.setdefault(job.queue, [0, 0, 0])
        for position, amount in enumerate(job.wants):
            total[position] += sign * amount

    def attempt(self, attempt: records.AttemptRecord) -> None:
        """Take up an attempt as it is now."""
        ended = attempt.state is AttemptState.ENDED
        if (attempt.id in self._held) is not ended:
            return  # held already, or not held any more
        if ended:
            node, held = self._held.pop(attempt.id)
        else:
            node, held = self._held[attempt.id] = (attempt.node, attempt.resources)
        total = self.held.setdefault(node, [0, 0, 0])
        for position, amount in enumerate(held.as_vector()):
            total[position] += -amount if ended else amount
        if not any(total):
            del self.held[node]


#: The phases of a cycle: those that ``core.reconcile`` tells of, the outcome that they come to,
#: then what the loop does with it.
PHASES = (
    *("ingest", "admit", "health", "lifecycle", "leave", "snapshot", "schedule", "place"),
    *("outcome", "journal", "commit", "act", "publish"),
)


class Phases:
    """The seconds spent in each phase: each call ends the phase that it names.

    ``clock`` gives seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._at = clock()
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    def begin(self) -> None:
        """The first phase begins now; what was before belongs to none."""
        self._at = self._clock()

    def __call__(self, phase: str) -> None:
        now = self._clock()
        self.seconds[phase] += now - self._at
        self._at = now


class Counters:
    """What adds up over the life of a loop. Made by the loop, and passed where it is needed."""

    def __init__(self) -> None:
        self.cycles = 0
        self.cycle_failures = 0
        self.cycle_duration = Histogram(DURATION_BUCKETS)
        self.commit_duration = Histogram(DURATION_BUCKETS)
        self.job_wait = Histogram(WAIT_BUCKETS)
        self.phases = Phases()
        self.actions: Counter[str] = Counter(dict.fromkeys(ACTIONS.values(), 0))
        self.ended: Counter[str] = Counter({reason.value: 0 for reason in EndReason})
        self.evictions: Counter[str] = Counter({reason.value: 0 for reason in EndReason})
        self.finished: Counter[str] = Counter({state.value: 0 for state in FINISHED_JOB_STATES})
        self.syncs: Counter[str] = Counter({"success": 0, "failure": 0})
        self.queues: tuple[outcome.QueueUsage, ...] = ()
        self._sums: Sums | None = None
        self._ended_open: set[str] = set()

    def failed(self) -> None:
        """Count a cycle that was given up."""
        self.cycle_failures += 1

    def sync(self, *, ok: bool) -> None:
        """Count a look at the repository."""
        self.syncs["success" if ok else "failure"] += 1

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
        sums = self._sums
        if sums is None:
            return  # all are counted when a page is first rendered
        for job in decided.jobs:
            self._count_job(sums, job)
        for name in decided.left_jobs:
            sums.forget(name)
        for attempt in decided.attempts:
            sums.attempt(attempt)

    def _count_end(self, attempt: records.AttemptRecord) -> None:
        # the record comes once more when the whole try is concluded
        if attempt.id not in self._ended_open:
            self.ended[(attempt.end_reason or EndReason.LOST).value] += 1
        if attempt.concluded:
            self._ended_open.discard(attempt.id)
        else:
            self._ended_open.add(attempt.id)

    def _count_job(self, sums: Sums, job: records.JobRecord) -> None:
        before, now = sums.job(job)
        if job.finished and (before is None or before.state is not now.state):
            self.finished[job.state.value] += 1
        if job.started_at is not None and not (before is not None and before.started):
            self.job_wait.observe(max(0.0, job.started_at - job.submitted_at))

    def sums(self, memory: "ClusterState") -> Sums:
        """The sums; ``memory`` is gone through the first time only."""
        if self._sums is None:
            self._sums = Sums(memory.jobs, memory.attempts)
        return self._sums


class ClusterState(Protocol):
    """What the loop remembers, as far as it is shown."""

    @property
    def jobs(self) -> Mapping[str, records.JobRecord]:
        """Newest runs by name."""

    @property
    def active(self) -> AbstractSet[str]:
        """Names of those that are not finished."""

    @property
    def attempts(self) -> Mapping[str, records.AttemptRecord]:
        """Attempts of tries that are not concluded."""

    @property
    def nodes(self) -> Mapping[str, records.NodeRecord]:
        """Nodes by name."""

    @property
    def reasons(self) -> Mapping[str, tuple[Reason, ...]]:
        """Why work waits."""

    @property
    def drift(self) -> Sequence[drift.Drift]:
        """Differences between git and what is."""
