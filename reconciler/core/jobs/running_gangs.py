"""Running gangs and what they hold, by element and by queue, updated by what changed.

An element is read again if its job or one of its attempts is another record than before.
"""

import bisect
import operator
from collections.abc import Iterator

from reconciler.core import cycle_attempts, cycle_cache
from reconciler.core.cycle import cycle_jobs
from reconciler.core.jobs import elastic_jobs
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState
from reconciler.scheduling.inputs import snapshots

Attempts = list[records.AttemptRecord]
#: By element the attempts that have not ended, and the GPU-seconds of the others.
Parts = dict[int, tuple[Attempts, float]]
#: Structure, names of nodes, MIG profiles, and jobs of which a part only may be known, for which
#: allocations were made.
Frame = tuple[desired.Structure, tuple[str, ...], tuple[str, ...], frozenset[str]]

#: Up to so many changed jobs are inserted one by one.
FEW_MAX = 1000


class RunningGang:
    """The allocation of one element, as its queue is charged for it.

    Attributes:
        record: of its job, when it was read; all of it that counts here is still the same.
        attempts: that have not ended, in order of group and index.
        used_gpu_s: GPU-seconds of its ended tasks while others go on, not accounted anywhere else.
        total: amounts.
        firm: amounts of work that is not preemptible, without tasks beyond the gang's minimum.
        holdings: the scheduler's allocations made of it.
    """

    __slots__ = ("attempts", "element", "firm", "holdings", "record", "total", "used_gpu_s")

    def __init__(
        self, record: records.JobRecord, element: int, attempts: Attempts, used_gpu_s: float = 0.0
    ) -> None:
        self.record = record
        self.element = element
        self.attempts = attempts
        self.used_gpu_s = used_gpu_s
        self.total = _sum(attempts)
        self.firm = _NOTHING
        if not record.spec.preemptible:
            spare = spare_of(record.spec, attempts)
            self.firm = _sum([a for a in attempts if a.id not in spare])
        self.holdings: list[snapshots.Allocation] = []


class RunningGangs(cycle_cache.CachePart):
    """All running gangs.

    Attributes:
        entries: by (job, element).
        allocated: amounts by queue, without queues below it.
        firm: the same of work that is not preemptible.
        running: by queue, its running jobs with their number of elements.
        gone: entries removed since a reader last cleared this.
        come: entries added since then.
        unmade: keys of entries whose allocations have to be made, again or for the first time.
    """

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self.entries: dict[tuple[str, int], RunningGang] = {}
        #: Keys in order of name and element, and the entries in the same order.
        self._ordered: list[tuple[str, int]] = []
        self._in_order: list[RunningGang] = []
        #: True if both follow each change, False if they are sorted once after all changes.
        self._sorted = True
        self.allocated: dict[str, list[int]] = {}
        self.firm: dict[str, list[int]] = {}
        self.running: dict[str, dict[str, int]] = {}
        self.gone: list[RunningGang] = []
        self.come: list[RunningGang] = []
        self.unmade: set[tuple[str, int]] = set()
        #: For what and as of when the allocations of entries were made.
        self.frame: Frame | None = None
        self.made_at = 0.0
        self._of_job: dict[str, tuple[int, ...]] = {}

    def items(self) -> Iterator[tuple[tuple[str, int], RunningGang]]:
        """Yield (job, element) with the gang, in order of name and element."""
        return zip(self._ordered, self._in_order, strict=True)

    @property
    def attempts(self) -> dict[tuple[str, int], Attempts]:
        """Attempts that have not ended by (job, element), in order."""
        found = zip(self._ordered, self._in_order, strict=True)
        return {key: entry.attempts for key, entry in found}

    def in_order(self) -> list[RunningGang]:
        """Return the gangs in order of name and element, whatever the order of changes."""
        return self._in_order

    def renew(self, jobs: cycle_jobs.CycleJobs, all_attempts: cycle_attempts.CycleAttempts) -> None:
        """Read jobs again that may have changed."""
        several: list[tuple[records.JobRecord | None, str, Parts]] = []
        for job in sorted(self.take_jobs(jobs.changed(all_attempts))):
            if job not in self._of_job and not all_attempts.has_job(job):
                continue
            record = jobs.record_of(job) or jobs.aside(job)
            parts = {} if record is None else _parts(all_attempts, job)
            if not self._is_known(job, record, parts):
                several.append((record, job, parts))
        if len(several) > FEW_MAX:
            self._sorted = False
        for record, job, parts in several:
            self._drop(job)
            if record is not None and parts:
                self._put(record, parts)
        if not self._sorted:
            self._ordered = sorted(self.entries)
            self._in_order = [self.entries[key] for key in self._ordered]
            self._sorted = True

    def _is_known(self, job: str, record: records.JobRecord | None, parts: Parts) -> bool:
        """Return True if a job holds what is known of it already.

        Most changes are read twice, because an outcome may be lost.
        """
        if self._of_job.get(job, ()) != tuple(parts):
            return False
        for element, (attempts, used_gpu_s) in parts.items():
            entry = self.entries[job, element]
            if (
                record is None
                or entry.record.spec is not record.spec
                or entry.record.order != record.order
                or entry.record.declared_over is not record.declared_over
                or entry.used_gpu_s != used_gpu_s
                or len(entry.attempts) != len(attempts)
                or not all(map(operator.is_, entry.attempts, attempts))
            ):
                return False
        return True

    def _drop(self, job: str) -> None:
        for element in self._of_job.pop(job, ()):
            key = (job, element)
            self._count(self.entries.pop(key), -1)
            self.unmade.discard(key)
            if self._sorted:
                at = bisect.bisect_left(self._ordered, key)
                del self._ordered[at], self._in_order[at]

    def _put(self, record: records.JobRecord, parts: Parts) -> None:
        job = record.name
        self._of_job[job] = tuple(parts)
        for element, (attempts, used_gpu_s) in parts.items():
            key, entry = (job, element), RunningGang(record, element, attempts, used_gpu_s)
            self.entries[key] = entry
            self.unmade.add(key)
            self._count(entry, 1)
            if self._sorted:
                at = bisect.bisect_left(self._ordered, key)
                self._ordered.insert(at, key)
                self._in_order.insert(at, entry)

    def _count(self, entry: RunningGang, sign: int) -> None:
        (self.come if sign > 0 else self.gone).append(entry)
        spec = entry.record.spec
        for table, amounts in ((self.allocated, entry.total), (self.firm, entry.firm)):
            row = table.setdefault(spec.queue, [0, 0, 0])
            for resource in range(3):
                row[resource] += sign * amounts[resource]
        jobs = self.running.setdefault(spec.queue, {})
        left = jobs.get(spec.name, 0) + sign
        if left:
            jobs[spec.name] = left
        else:
            jobs.pop(spec.name, None)


def gather(
    cache: cycle_cache.CycleCache,
    jobs: cycle_jobs.CycleJobs,
    attempts: cycle_attempts.CycleAttempts,
) -> RunningGangs:
    """Return all running gangs, up to date."""
    held = cache.part(RunningGangs)
    held.renew(jobs, attempts)
    return held


_NOTHING = (0, 0, 0)


def _parts(all_attempts: cycle_attempts.CycleAttempts, job: str) -> Parts:
    """Return what a job holds, by element, ascending."""
    found: Parts = {}
    for element in all_attempts.elements(job):
        attempts, used_gpu_s = _parted(all_attempts.of_element(job, element))
        if attempts:
            found[element] = (attempts, used_gpu_s)
    return found


def _parted(attempts: Attempts) -> tuple[Attempts, float]:
    """Return the attempts that have not ended, and the GPU-seconds of the others.

    Lost and already accounted attempts do not count.
    """
    going, used_gpu_s = [], 0.0
    for attempt in attempts:
        if attempt.state is not AttemptState.ENDED:
            going.append(attempt)
        elif not attempt.concluded and attempt.end_reason not in elastic_jobs.LOSSES:
            used_gpu_s += elastic_jobs.gpu_seconds(attempt)
    return going, used_gpu_s


def _sum(attempts: Attempts) -> snapshots.Vector:
    cpu = memory = gpu = 0
    for attempt in attempts:
        has = attempt.resources
        cpu, memory, gpu = cpu + has.cpu_milli, memory + has.memory_bytes, gpu + has.gpu_milli
    return (cpu, memory, gpu)


def spare_of(spec: desired.Job, attempts: Attempts) -> frozenset[str]:
    """Return the ids of attempts that an element can give up: the last ones beyond its minimum."""
    if not elastic_jobs.is_resizable(spec):
        return frozenset()
    found: set[str] = set()
    for group in spec.groups:
        own = [a for a in attempts if a.group == group.name and a.stop is None]
        own.sort(key=lambda attempt: attempt.index)
        found.update(attempt.id for attempt in own[group.least :])
    return frozenset(found)
