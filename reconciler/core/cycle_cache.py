"""Results of earlier cycles that stay valid, so that a cycle costs what has changed.

Records never change in place: the same object means the same content. A ``CycleCache`` belongs to
the ``ObservedState`` whose records it knows, and absorbs each outcome with it. It may be dropped:
with an empty one every outcome is the same to the byte. Replays, plans and tests use an empty one.
"""

import bisect
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import ELEMENT_CODE, JobState

_PENDING = ELEMENT_CODE[JobState.PENDING]
_Part = TypeVar("_Part", bound="CachePart")
Index = dict[str, dict[int, dict[str, None]]]
#: Dropped moments stay in the heap until there are so many more of them than of current ones.
MOMENTS_SPARE = 1000


class CachePart:
    """A part of the cache that one phase owns.

    Attributes:
        jobs: names of jobs that changed since the part was last updated.
        nodes: the same of nodes.
    """

    def __init__(self, cache: "CycleCache") -> None:
        self.jobs: set[str] = set(cache.by_job)
        self.nodes: set[str] = set(cache.nodes.known)

    def absorb(self, result: outcome.Outcome) -> None:
        """Take over an outcome. The names of what it changes are noted already."""

    def take_jobs(self, now_too: Iterable[str]) -> set[str]:
        """Return the jobs that changed before or in this cycle, and keep those of this cycle.

        This cycle's outcome may yet be lost.
        """
        fresh = set(now_too)
        found, self.jobs = self.jobs | fresh, fresh
        return found

    def take_nodes(self, now_too: Iterable[str]) -> set[str]:
        """Return the nodes that changed, as ``take_jobs`` does."""
        fresh = set(now_too)
        found, self.nodes = self.nodes | fresh, fresh
        return found


class Names:
    """A set of names that can be read in order."""

    def __init__(self, names: Iterable[str]) -> None:
        self.ordered = sorted(names)
        self.known = set(self.ordered)

    def put(self, name: str, *, there: bool) -> None:
        """Add a name, or remove it."""
        if there is (name in self.known):
            return
        place = bisect.bisect_left(self.ordered, name)
        if there:
            self.known.add(name)
            self.ordered.insert(place, name)
        else:
            self.known.discard(name)
            del self.ordered[place]

    def with_drafts(self, drafts: Mapping[str, bool]) -> list[str]:
        """Return the names in order, with the additions and removals of this cycle."""
        found = self.ordered.copy()
        for name, there in drafts.items():
            if there is (name in self.known):
                continue
            place = bisect.bisect_left(found, name)
            if there:
                found.insert(place, name)
            else:
                del found[place]
        return found


class Moments:
    """Names with the moment until which something holds for each; infinity: for ever."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._until

    def put(self, name: str, until: float) -> None:
        """Set the moment of a name."""
        if self._until.get(name) == until:
            return
        self._until[name] = until
        if until < math.inf:
            heapq.heappush(self._heap, (until, name))
        if len(self._heap) > 2 * len(self._until) + MOMENTS_SPARE:
            self._heap = sorted((at, one) for one, at in self._until.items() if at < math.inf)

    def names(self) -> AbstractSet[str]:
        """Return all names."""
        return self._until.keys()

    def drop(self, name: str) -> None:
        """Remove a name."""
        self._until.pop(name, None)

    def clear(self) -> None:
        """Remove all names."""
        self._until.clear()
        self._heap.clear()

    def over(self, now: float) -> list[str]:
        """Remove and return the names whose moment has passed."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            moment, name = heapq.heappop(self._heap)
            if self._until.get(name) == moment:
                del self._until[name]
                found.append(name)
        return found

    def first(self) -> float | None:
        """Return the first moment; None if there is none."""
        while self._heap and self._until.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


class CycleCache:
    """Indexes over the records of one ``ObservedState``.

    Attributes:
        attempts: the mapping that was indexed.
        by_job: job, element, ids of attempts of tries that are not concluded.
        by_node: the same by node.
        active: unfinished jobs.
        waiting: active jobs that are not simply running.
        nodes: names of all nodes.
        particular: active jobs that request MIG profiles, or GPUs that are near each other.
        affine: active jobs with affinities to other jobs.
    """

    def __init__(
        self,
        jobs: Mapping[str, records.JobRecord],
        active: AbstractSet[str],
        attempts: Mapping[str, records.AttemptRecord],
        nodes: Iterable[str],
    ) -> None:
        self.attempts = attempts
        self.by_job: Index = {}
        self.by_node: dict[str, dict[str, None]] = {}
        for attempt in attempts.values():
            self._index(attempt)
        self.active = Names(active)
        here = [jobs[name] for name in self.active.ordered]
        self.waiting = Names(record.name for record in here if is_waiting(record))
        self.particular = {record.name for record in here if is_particular(record.spec)}
        self.affine = {record.name for record in here if record.spec.affinities}
        self.nodes = Names(nodes)
        #: Jobs that need not be judged, and until when.
        self._quiet = Moments()
        self._restless: set[str] = set(self.by_job)
        self._parts: dict[type, Any] = {}

    @classmethod
    def from_observed(cls, observed: records.Observed) -> "CycleCache":
        """Return a new cache, which knows only what is observed."""
        return cls(observed.jobs, observed.active, observed.attempts, observed.nodes)

    def part(self, kind: Callable[["CycleCache"], _Part]) -> _Part:
        """Return the part of a phase."""
        found: _Part | None = self._parts.get(kind)  # type: ignore[call-overload]
        if found is None:
            found = self._parts[kind] = kind(self)  # type: ignore[index]
        return found

    # -- jobs at rest

    def restless(self, now: float, touched: Iterable[str]) -> set[str]:
        """Return the jobs to judge, because something changed or a moment has come.

        Args:
            now: seconds since the epoch.
            touched: jobs changed in this cycle, which are at rest no longer.
        """
        self._disturb(set(touched))
        self._disturb(set(self._quiet.over(now)))
        return self._restless.union(touched)

    def rest(self, job: str, until: float | None) -> None:
        """Note that a job need not be judged before ``until``; None: until it changes."""
        self._restless.discard(job)
        self._quiet.put(job, math.inf if until is None else until)

    def next_moment(self) -> float | None:
        """Return when the first job at rest has to be judged again."""
        return self._quiet.first()

    def _disturb(self, jobs: AbstractSet[str]) -> None:
        for job in jobs & self._quiet.names():
            self._quiet.drop(job)
        self._restless.difference_update(jobs)
        self._restless |= jobs & self.by_job.keys()

    # -- changes

    def absorb(self, result: outcome.Outcome, others: Iterable[records.JobRecord]) -> None:
        """Take over an outcome, as ``ObservedState`` does.

        ``others`` are jobs that changed essentially.
        """
        changed = dict.fromkeys([record.name for record in result.jobs])
        for record in others:
            self._note(record)
        for attempt in result.attempts:
            changed[attempt.job] = None
            if attempt.concluded:
                self._leave(attempt)
            else:
                self._index(attempt)
        self._disturb(changed.keys())
        for node in result.nodes:
            self.nodes.put(node.name, there=True)
        for name in result.left_nodes:
            self.nodes.put(name, there=False)
            self.by_node.pop(name, None)
        seen = [node.name for node in result.nodes]
        for part in self._parts.values():
            part.jobs.update(changed)
            part.nodes.update(seen, result.left_nodes)
            part.absorb(result)

    def job_changed(self, record: records.JobRecord) -> None:
        """Note that a record was replaced without an outcome."""
        self._note(record)
        self._disturb({record.name})
        for part in self._parts.values():
            part.jobs.add(record.name)

    def _note(self, record: records.JobRecord) -> None:
        name, spec, alive = record.name, record.spec, not record.finished
        for known, there in ((self.active, alive), (self.waiting, alive and is_waiting(record))):
            if there is not (name in known.known):
                known.put(name, there=there)
        for names, there in (
            (self.particular, alive and is_particular(spec)),
            (self.affine, alive and bool(spec.affinities)),
        ):
            if there:
                names.add(name)
            elif names:
                names.discard(name)

    def _index(self, attempt: records.AttemptRecord) -> None:
        elements = self.by_job.setdefault(attempt.job, {})
        elements.setdefault(attempt.element, {})[attempt.id] = None
        self.by_node.setdefault(attempt.node, {})[attempt.id] = None

    def _leave(self, attempt: records.AttemptRecord) -> None:
        elements = self.by_job.get(attempt.job, {})
        ids = elements.get(attempt.element, {})
        ids.pop(attempt.id, None)
        if not ids:
            elements.pop(attempt.element, None)
        if not elements:
            self.by_job.pop(attempt.job, None)
        self.by_node.get(attempt.node, {}).pop(attempt.id, None)


def in_order(names: AbstractSet[str], known: Mapping[str, object]) -> Iterable[str]:
    """Return names in any order, but in the order of ``known`` if they are most of it.

    Records that were made one after the other lie together in memory. Reading a hundred thousand in
    the random order of a set takes longer than all work on them.
    """
    if 2 * len(names) < len(known):
        return names
    return itertools.chain(filter(names.__contains__, known), names - known.keys())


def is_particular(spec: desired.Job) -> bool:
    """Return True if a job requests MIG profiles, or GPUs that are near each other."""
    for group in spec.groups:  # noqa: SIM110 - asked of every job that changes
        if group.mig_profile or group.inner:
            return True
    return False


def is_alike(before: records.JobRecord, record: records.JobRecord) -> bool:
    """Return True if a job belongs to the same sets of names as before, as it mostly does."""
    return (
        before.spec is record.spec
        and before.state is record.state
        and before.removed is record.removed
        and before.elements == record.elements
        and (_PENDING in record.elements or bool(before.reason_key) is bool(record.reason_key))
    )


def is_waiting(record: records.JobRecord) -> bool:
    """Return True if an unfinished job has something pending, may grow, or has a reason."""
    spec = record.spec
    return (
        _PENDING in record.elements
        or spec.is_elastic
        or spec.suspend
        or record.state is JobState.HELD
        or bool(record.reason_key)
    )
