"""Sums over all jobs and attempts, kept up to date with the changes of each cycle.

A page is rendered after every cycle, so only the first rendering visits every record.
"""

import heapq
from collections import Counter
from collections.abc import Mapping

import msgspec

from reconciler.metrics import starvation
from reconciler.model.state import records
from reconciler.model.state.states import ELEMENT_CODE, AttemptState, JobState
from reconciler.model.values.resources import Resources

_PENDING = ELEMENT_CODE[JobState.PENDING]
_NOTHING = (0, 0, 0)


class JobTotals(msgspec.Struct, frozen=True):
    """Contribution of one job to the sums.

    ``wants`` is what its ``waiting`` elements ask for, ``least`` what they could start with, and
    ``why`` the key of their reason, also if other elements run. ``pool`` is the only pool that they
    may use.
    """

    queue: str
    owner: str
    state: JobState
    gang: bool
    submitted_at: float
    started: bool
    reason_key: str
    wants: tuple[int, int, int]
    waiting: int = 0
    least: tuple[int, int, int] = _NOTHING
    why: str = ""
    pool: str = ""


def job_of(record: records.JobRecord) -> JobTotals:
    """Return the contribution of a record."""
    wants = least = Resources()
    waiting = record.elements.count(_PENDING)
    if record.finished or record.state is JobState.HELD:
        waiting = 0
    if waiting:
        for group in record.spec.groups:
            wants += group.resources.times(group.count * waiting)
            least += group.resources.times(group.least * waiting)
    pending = record.state is JobState.PENDING
    return JobTotals(
        record.spec.queue,
        record.spec.owner,
        record.state,
        sum(group.count for group in record.spec.groups) > 1,
        record.submitted_at,
        record.started_at is not None,
        record.reason_key if pending else "",
        wants.as_vector(),
        waiting,
        least.as_vector(),
        record.reason_key if waiting else "",
        record.spec.pools[0] if waiting and len(record.spec.pools) == 1 else "",
    )


class Oldest:
    """The earliest of some times, by name; names come and go, and stale ones are dropped lazily."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._at: dict[str, float] = {}

    def add(self, name: str, at: float) -> None:
        """Add ``name`` with its time ``at``."""
        if self._at.get(name) != at:
            self._at[name] = at
            heapq.heappush(self._heap, (at, name))
        if len(self._heap) > 64 + 2 * len(self._at):
            self._heap = [(at, name) for name, at in self._at.items()]
            heapq.heapify(self._heap)

    def remove(self, name: str) -> None:
        """Remove ``name``."""
        self._at.pop(name, None)

    def __len__(self) -> int:
        return len(self._at)

    def first(self) -> float | None:
        """Return the earliest time; None if there is none."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


class Aggregates:
    """Sums over jobs by queue and state, their reasons and requests, and over attempts.

    Attributes:
        by_state: (queue, state) to jobs.
        by_reason: (queue, reason key) to jobs; ``gpus_by_reason`` to the milli-GPUs they ask for.
        wanted: queue to what its pending work asks for.
        held: node to what live attempts hold of it.
        gpus_of: (queue, owner) to the milli-GPUs that their live attempts hold.
        oldest: (queue, is a gang, reason key) to the submission times of pending jobs.
    """

    def __init__(
        self,
        jobs: Mapping[str, records.JobRecord],
        attempts: Mapping[str, records.AttemptRecord],
    ) -> None:
        self._jobs: dict[str, JobTotals] = {}
        self._held: dict[str, tuple[str, Resources, tuple[str, str]]] = {}
        self.by_state: Counter[tuple[str, str]] = Counter()
        self.by_reason: Counter[tuple[str, str]] = Counter()
        self.gpus_by_reason: Counter[tuple[str, str]] = Counter()
        self.asked_by_reason: dict[starvation.Whose, starvation.QueueDemand] = {}
        self.wanted: dict[str, list[int]] = {}
        self.held: dict[str, list[int]] = {}
        self.gpus_of: Counter[tuple[str, str]] = Counter()
        self.oldest: dict[tuple[str, bool, str], Oldest] = {}
        for job in jobs.values():
            self.job(job)
        for attempt in attempts.values():
            self.attempt(attempt)

    def job(self, record: records.JobRecord) -> tuple[JobTotals | None, JobTotals]:
        """Replace a job by its current record; return its old and new contribution."""
        before, now = self._jobs.get(record.name), job_of(record)
        if before == now:
            return before, now
        if before is not None:
            self._add(record.name, before, -1)
        self._add(record.name, now, 1)
        self._jobs[record.name] = now
        return before, now

    def forget(self, name: str) -> None:
        """Remove a job that is no longer listed."""
        before = self._jobs.pop(name, None)
        if before is not None:
            self._add(name, before, -1)

    def _add(self, name: str, job: JobTotals, sign: int) -> None:
        _count(self.by_state, (job.queue, job.state.value), sign)
        if job.reason_key:
            _count(self.by_reason, (job.queue, job.reason_key), sign)
            _count(self.gpus_by_reason, (job.queue, job.reason_key), sign * job.wants[2])
        if job.why:
            self._ask((job.queue, job.why, job.pool), job, sign)
        if job.wants != _NOTHING or job.queue in self.wanted:
            total = self.wanted.setdefault(job.queue, [0, 0, 0])
            for position, amount in enumerate(job.wants):
                total[position] += sign * amount
        if job.state is JobState.PENDING:
            group = (job.queue, job.gang, job.reason_key)
            oldest = self.oldest.setdefault(group, Oldest())
            if sign > 0:
                oldest.add(name, job.submitted_at)
            else:
                oldest.remove(name)
            if not oldest:
                del self.oldest[group]

    def _ask(self, key: starvation.Whose, job: JobTotals, sign: int) -> None:
        asked = self.asked_by_reason.setdefault(key, starvation.QueueDemand(0, [0, 0, 0]))
        asked.elements += sign * job.waiting
        for position, amount in enumerate(job.least):
            asked.least[position] += sign * amount
        if not asked.elements:
            del self.asked_by_reason[key]

    def attempt(self, attempt: records.AttemptRecord) -> None:
        """Replace an attempt by its current record."""
        ended = attempt.state is AttemptState.ENDED
        if (attempt.id in self._held) is not ended:
            return  # held already, or not held any more
        if ended:
            node, held, whose = self._held.pop(attempt.id)
        else:
            job = self._jobs.get(attempt.job)
            whose = (job.queue, job.owner) if job is not None else ("", "")
            node, held = attempt.node, attempt.resources
            self._held[attempt.id] = (node, held, whose)
        total = self.held.setdefault(node, [0, 0, 0])
        for position, amount in enumerate(held.as_vector()):
            total[position] += -amount if ended else amount
        if not any(total):
            del self.held[node]
        if held.gpu_milli:
            _count(self.gpus_of, whose, -held.gpu_milli if ended else held.gpu_milli)


def _count(counter: Counter[tuple[str, str]], key: tuple[str, str], by: int) -> None:
    counter[key] += by
    if not counter[key]:
        del counter[key]
