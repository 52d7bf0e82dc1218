"""What cycles worked out and need not work out again, so that a cycle costs what has changed.

Records never change in place: a record that is the very same object as in the last cycle says the
same. A ``CycleCache`` belongs to the ``Memory`` whose records it knows; each absorbed outcome tells
it what is other now. What it keeps only spares work: with a new one, which knows nothing, every
outcome is the same to the byte, and replays, plans and tests decide with a new one.
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
#: Moments that hold no longer are kept until they are so many more than those that do.
MOMENTS_SPARE = 1000


class CachePart:
    """Something kept from cycle to cycle by one of the phases.

    Attributes:
        jobs, nodes: names of what changed since the part was last brought up to date.
    """

    def __init__(self, cache: "CycleCache") -> None:
        self.jobs: set[str] = set(cache.by_job)
        self.nodes: set[str] = set(cache.nodes.known)

    def absorb(self, result: outcome.Outcome) -> None:
        """An outcome is so now; names of what it changes are noted already."""

    def take_jobs(self, now_too: Iterable[str]) -> set[str]:
        """What has to be looked at: changed before, or in this cycle, which may yet be lost."""
        fresh = set(now_too)
        found, self.jobs = self.jobs | fresh, fresh
        return found

    def take_nodes(self, now_too: Iterable[str]) -> set[str]:
        """The same of nodes."""
        fresh = set(now_too)
        found, self.nodes = self.nodes | fresh, fresh
        return found


class Names:
    """A set of names that is asked for in order."""

    def __init__(self, names: Iterable[str]) -> None:
        self.ordered = sorted(names)
        self.known = set(self.ordered)

    def put(self, name: str, *, there: bool) -> None:
        """A name belongs to it, or does not."""
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
        """The names in order, where some belong to it now or no longer."""
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
    """Until when things hold: names, each with a moment (infinity: for ever)."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._until

    def put(self, name: str, until: float) -> None:
        """It holds until then."""
        if self._until.get(name) == until:
            return
        self._until[name] = until
        if until < math.inf:
            heapq.heappush(self._heap, (until, name))
        if len(self._heap) > 2 * len(self._until) + MOMENTS_SPARE:
            self._heap = sorted((at, one) for one, at in self._until.items() if at < math.inf)

    def names(self) -> AbstractSet[str]:
        """Of what it holds."""
        return self._until.keys()

    def drop(self, name: str) -> None:
        """It holds no longer."""
        self._until.pop(name, None)

    def clear(self) -> None:
        """Nothing holds any longer."""
        self._until.clear()
        self._heap.clear()

    def over(self, now: float) -> list[str]:
        """Drop what holds only until now or before; the names."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            moment, name = heapq.heappop(self._heap)
            if self._until.get(name) == moment:
                del self._until[name]
                found.append(name)
        return found

    def first(self) -> float | None:
        """When the first of them ends; None: never."""
        while self._heap and self._until.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


class CycleCache:
    """What is known of the records of one ``Memory``.

    Attributes:
        attempts: the very mapping that it knows.
        by_job: job, element, ids of attempts of tries that are not concluded.
        by_node: the same by node.
        active: jobs that are not finished. waiting: those of them that are not simply running.
        nodes: names of all nodes.
        particular: active jobs that ask for MIG profiles, or for GPUs that are near each other.
        affine: active jobs that mind which work is near.
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
        #: Jobs whose tries were judged and are as they were, and until when that holds.
        self._quiet = Moments()
        self._restless: set[str] = set(self.by_job)
        self._parts: dict[type, Any] = {}

    @classmethod
    def of(cls, observed: records.Observed) -> "CycleCache":
        """A new one, which knows nothing but what is observed."""
        return cls(observed.jobs, observed.active, observed.attempts, observed.nodes)

    def part(self, kind: Callable[["CycleCache"], _Part]) -> _Part:
        """What a phase keeps here."""
        found: _Part | None = self._parts.get(kind)  # type: ignore[call-overload]
        if found is None:
            found = self._parts[kind] = kind(self)  # type: ignore[index]
        return found

    # -- tries that nothing happens to

    def restless(self, now: float, touched: Iterable[str]) -> set[str]:
        """Jobs that have to be judged, for what changed or for the time it is.

        ``touched`` ones are changed in this very cycle: what was known of them holds no longer.
        """
        self._disturb(set(touched))
        self._disturb(set(self._quiet.over(now)))
        return self._restless.union(touched)

    def rest(self, job: str, until: float | None) -> None:
        """A job's tries were judged: nothing changes before ``until`` (None: for ever)."""
        self._restless.discard(job)
        self._quiet.put(job, math.inf if until is None else until)

    def next_moment(self) -> float | None:
        """When the first of those at rest has to be judged again."""
        return self._quiet.first()

    def _disturb(self, jobs: AbstractSet[str]) -> None:
        for job in jobs & self._quiet.names():
            self._quiet.drop(job)
        self._restless.difference_update(jobs)
        self._restless |= jobs & self.by_job.keys()

    # -- what is other now

    def absorb(self, result: outcome.Outcome, others: Iterable[records.JobRecord]) -> None:
        """Take over an outcome, as ``Memory`` does; ``others``: jobs not alike to before."""
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
        """A record is another one now, without an outcome."""
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
    """Names in any order; in that of what is ``known`` of them where they are most of it.

    Records that were made one after the other lie so in memory. Whoever goes through a hundred
    thousand in the order of a set waits for memory longer than for all that is done with them.
    """
    if 2 * len(names) < len(known):
        return names
    return itertools.chain(filter(names.__contains__, known), names - known.keys())


def is_particular(spec: desired.Job) -> bool:
    """Whether it asks for more of GPUs than how many: MIG profiles, or that they are near."""
    for group in spec.groups:  # noqa: SIM110 - asked of every job that changes
        if group.mig_profile or group.inner:
            return True
    return False


def is_alike(before: records.JobRecord, record: records.JobRecord) -> bool:
    """Whether a job is in the same sets of names as before; mostly it waits for other reasons."""
    return (
        before.spec is record.spec
        and before.state is record.state
        and before.removed is record.removed
        and before.elements == record.elements
        and (_PENDING in record.elements or bool(before.reason_key) is bool(record.reason_key))
    )


def is_waiting(record: records.JobRecord) -> bool:
    """Whether a job that is not finished has something that waits, may grow, or has a reason."""
    spec = record.spec
    return (
        _PENDING in record.elements
        or spec.is_elastic
        or spec.suspend
        or record.state is JobState.HELD
        or bool(record.reason_key)
    )
