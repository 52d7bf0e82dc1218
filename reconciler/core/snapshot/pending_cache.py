"""A cache of pending groups, so that a cycle costs what has changed.

Most pending jobs are *plain*: not held, without dependencies, never tried, and counted by no quota.
They are members of a group here until their record changes. All others are read again in each cycle
by ``group_builder``.
"""

import bisect
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.core import cycle_cache, job_draft, job_errors
from reconciler.core.cycle import cycle_jobs
from reconciler.core.jobs import elastic_jobs
from reconciler.core.snapshot import task_shapes
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.pending_reasons import Reason
from reconciler.model.state.states import JobState
from reconciler.scheduling.inputs import pending_groups, snapshots

#: Queue, shape, priority, preemptible, duration, usable windows, grows, may preempt, refills.
Key = tuple[int, int, int, bool, float, tuple[int, ...], bool, bool, bool]


class ClaimKind(NamedTuple):
    """The part that the jobs of one group have in common; ``form`` identifies their shape."""

    queue: int
    form: str
    priority: int
    preemptible: bool
    duration_s: float


class CachedGroup:
    """A group of plain pending jobs that are alike.

    Attributes:
        spec: of any one job of it.
        claims: pending jobs by name.
        slot: its row in the columns.
    """

    __slots__ = ("claims", "kind", "slot", "spec")

    def __init__(self, kind: ClaimKind, spec: desired.Job, slot: int) -> None:
        self.kind = kind
        self.spec = spec
        self.slot = slot
        self.claims: dict[str, snapshots.PendingJob] = {}


class PendingGroups(NamedTuple):
    """Pending groups in the order of their keys.

    Attributes:
        slots: of each group that of its cached group, -1 if it has other jobs too.
    """

    lines: tuple[snapshots.PendingGroup, ...]
    columns: snapshots.PendingColumns
    slots: NDArray[np.int64]


NOTHING = PendingGroups((), pending_groups.columns_of(()), np.zeros(0, dtype=np.int64))
#: Up to so many new or removed groups are inserted or deleted one by one.
FEW_MAX = 1000


def is_startable(record: records.JobRecord) -> bool:
    """Return True if by its own record all of a job may start at any time, without resizing."""
    spec = record.spec
    tried = record.notes or spec.depends_on or spec.parallelism is not None or spec.array_held
    timed = spec.deadline is not None or spec.not_before is not None
    return not (tried or timed or not spec.preempts)


class PendingCache(cycle_cache.CachePart):
    """Plain jobs by group, and the names of the others.

    Attributes:
        others: pending jobs that are not plain.
        changed: jobs that were read again in this cycle.
        group_of: group of each plain job.
        counts: number of plain jobs by queue.
        awaiting: jobs that wait to be adopted. None of them is plain.
        slot_reasons: by slot, the reason that the scheduler told the jobs of its group last; None
            if unknown. Autoscaling may have written more into their records.
    """

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self._cache = cache
        self.jobs |= cache.waiting.known
        self.changed: set[str] = set()
        self.others: set[str] = set()
        self.group_of: dict[str, CachedGroup] = {}
        #: Records of plain jobs when they were read.
        self._record_of: dict[str, records.JobRecord] = {}
        self.counts: dict[str, int] = {}
        self.awaiting: frozenset[str] = frozenset()
        self._structure: desired.Structure | None = None
        self._some_plain = False
        self._epoch: object = None
        #: The reasons of the last outcome, and if it and the one before were absorbed.
        self._expected: object = None
        self._sure = self._trusted = False
        self._nominated: set[str] = set()
        self._groups: dict[ClaimKind, CachedGroup] = {}
        #: Number of groups by form.
        self._forms: dict[str, int] = {}
        self._forget()

    def _forget(self) -> None:
        """Forget every job."""
        self.others.clear()
        self.group_of.clear()
        self._record_of.clear()
        self.counts.clear()
        self._groups.clear()
        self._forms.clear()
        self._free: list[int] = []
        self._by_slot: list[CachedGroup] = []
        #: By slot: the columns of its group, and the group itself.
        self._table = np.zeros((64, pending_groups.WIDTH), dtype=np.int64)
        self._line_of = np.full(64, None, dtype=object)
        self.slot_reasons = np.full(64, None, dtype=object)
        self._stale: set[CachedGroup] = set()
        self._numbers: Mapping[str, int] = {}
        #: Keys and slots of groups in order, and the slots alone.
        self._keys: list[tuple[Key, int]] = []
        self._slots: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._gone: list[tuple[Key, int]] = []
        self._new: set[CachedGroup] = set()

    def hold(self, awaiting: frozenset[str]) -> None:
        """Read jobs again that begin or end to wait to be adopted."""
        self.jobs |= awaiting ^ self.awaiting
        for name in awaiting - self.awaiting:
            self._drop(name)
        self.awaiting = awaiting

    def renew(
        self,
        jobs: cycle_jobs.CycleJobs,
        changed_jobs: Iterable[str],
        nominations: Iterable[str],
        shapes: task_shapes.Shapes,
    ) -> None:
        """Read jobs again that may have changed, or that have or had nominated capacity."""
        self._trusted, self._sure, self._expected = self._sure, False, None
        structure = shapes.structure
        changed = self.take_jobs(changed_jobs) | self._nominated
        self._nominated = set(nominations)
        changed |= self._nominated
        if structure is not self._structure or shapes.epoch is not self._epoch:
            self._structure, self._epoch = structure, shapes.epoch
            self._rows = {name: row for row, name in enumerate(structure.queues)}
            self._some_plain = _has_plain(structure)
            self._forget()
            changed |= set(self._cache.waiting.known)
        for name in cycle_cache.in_order(changed, jobs.known):
            record = jobs.record_of(name)
            if record is not None and self._is_known(name, record):
                continue
            self._drop(name)
            if record is not None and not record.finished:
                with job_errors.JobErrorScope(name):
                    self._put(record, shapes)
        self.changed = changed

    def absorb(self, result: outcome.Outcome) -> None:
        """Trust the last reasons if this is the outcome that has them."""
        self._sure |= result.reasons is self._expected

    def begin_telling(self, reasons: dict[str, tuple[Reason, ...]]) -> set[str]:
        """Return the jobs whose last reasons may not have reached their records.

        ``reasons`` are those of this cycle's outcome, which identify it in ``absorb``.
        """
        self._expected = reasons
        if self._trusted:
            return set()
        self.slot_reasons[:] = None
        return set(self._cache.waiting.known)

    def _is_known(self, name: str, record: records.JobRecord) -> bool:
        """Return True if a plain job is the same as before. Mostly only its reason has changed."""
        before = self._record_of.get(name)
        return before is not None and (
            before is record
            or (
                before.spec is record.spec
                and before.state is record.state
                and before.elements == record.elements
                and before.order == record.order
                and before.submitted_at == record.submitted_at
                and not record.notes
                and name not in self._nominated
            )
        )

    def _put(self, record: records.JobRecord, shapes: task_shapes.Shapes) -> None:
        spec, elements = record.spec, record.elements
        waits, elastic = job_draft.PENDING in elements, spec.is_elastic
        held = spec.suspend or record.state is JobState.HELD
        if not (waits or elastic or held):
            return  # nothing of it is pending
        resizable = elastic and elastic_jobs.is_resizable(spec)
        ready = is_startable(record) and spec.queue in self._rows
        plain = waits and self._some_plain and not (held or resizable) and ready
        apart = spec.name in self._nominated or spec.name in self.awaiting
        form = shapes.offered(spec) if plain and not apart else None
        if form is None:
            self.others.add(spec.name)
            return
        limit_s = snapshots.ENDLESS if spec.time_limit_s is None else float(spec.time_limit_s)
        kind = ClaimKind(self._rows[spec.queue], form, spec.priority, spec.preemptible, limit_s)
        group = self._groups.get(kind)
        if group is None:
            group = self._groups[kind] = self._begin(kind, spec)
        indexes: tuple[int, ...] = (0,)
        if len(elements) > 1:
            indexes = tuple([i for i, code in enumerate(elements) if code == job_draft.PENDING])
        group.claims[spec.name] = snapshots.PendingJob(
            spec.name,
            record.order,
            indexes,
            len(indexes),
            spec.owner,
            submitted_at=record.submitted_at,
        )
        self.group_of[spec.name] = group
        self._record_of[spec.name] = record
        self.counts[spec.queue] = self.counts.get(spec.queue, 0) + 1
        self._stale.add(group)

    def _begin(self, kind: ClaimKind, spec: desired.Job) -> CachedGroup:
        if self._free:
            slot = self._free.pop()
            group = self._by_slot[slot] = CachedGroup(kind, spec, slot)
        else:
            slot = len(self._by_slot)
            group = CachedGroup(kind, spec, slot)
            self._by_slot.append(group)
            if slot == len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
                unknown = np.full(slot, None, dtype=object)
                self._line_of = np.concatenate([self._line_of, unknown])
                self.slot_reasons = np.concatenate([self.slot_reasons, unknown])
        self.slot_reasons[slot] = None
        self._new.add(group)
        self._forms[kind.form] = self._forms.get(kind.form, 0) + 1
        return group

    def _drop(self, name: str) -> None:
        self.others.discard(name)
        group = self.group_of.pop(name, None)
        if group is not None:
            del group.claims[name], self._record_of[name]
            self.counts[group.spec.queue] -= 1
            self._stale.add(group)

    # -- results

    def forms(self) -> set[str]:
        """Return the forms of all plain jobs."""
        self._sweep()
        return set(self._forms)

    def _sweep(self) -> None:
        """Remove empty groups."""
        for group in [group for group in self._stale if not group.claims]:
            self._stale.discard(group)
            del self._groups[group.kind]
            form = group.kind.form
            self._forms[form] -= 1
            if not self._forms[form]:
                del self._forms[form]
            self._free.append(group.slot)
            if group in self._new:
                self._new.discard(group)
            else:
                self._gone.append((self._key(group), group.slot))

    def _key(self, group: CachedGroup) -> Key:
        kind = group.kind
        return (
            kind.queue,
            self._numbers[kind.form],
            kind.priority,
            kind.preemptible,
            kind.duration_s,
            (),
            False,
            True,
            False,
        )

    def lines(
        self, numbers: Mapping[str, int], more: Mapping[Key, list[snapshots.PendingJob]]
    ) -> PendingGroups:
        """Return the groups of plain jobs and of others.

        Args:
            numbers: shape index of each form.
            more: other pending jobs by key.
        """
        self._arrange(numbers)
        for group in self._stale:
            self._make(group)
        self._stale.clear()
        slots, groups = self._slots, self._line_of[self._slots].tolist()
        if more:
            slots = self._mix(more, groups)
        table = self._table[slots]
        for at in np.flatnonzero(slots < 0).tolist():
            table[at] = pending_groups.row_of(groups[at])
        return PendingGroups(tuple(groups), pending_groups.from_table(table), slots)

    def _arrange(self, numbers: Mapping[str, int]) -> None:
        """Update the order of groups."""
        if numbers != self._numbers:
            self._numbers = dict(numbers)
            self._keys = sorted((self._key(group), group.slot) for group in self._groups.values())
            self._slots = np.array([slot for _, slot in self._keys], dtype=np.int64)
            same = [group for group in self._groups.values() if group not in self._stale]
            _renumber(same, numbers, self._line_of, self._table)
        else:
            gone = sorted(bisect.bisect_left(self._keys, entry) for entry in self._gone)
            new = sorted((self._key(group), group.slot) for group in self._new)
            if len(gone) + len(new) > FEW_MAX:
                left = set(self._keys).difference(self._gone)
                self._keys = sorted([*left, *new])
                self._slots = np.array([slot for _, slot in self._keys], dtype=np.int64)
            else:
                self._put_in_place(gone, new)
        self._gone.clear()
        self._new.clear()

    def _put_in_place(self, gone: list[int], new: list[tuple[Key, int]]) -> None:
        """Remove entries at some places and insert others in order."""
        for at in reversed(gone):
            del self._keys[at]
        places = [bisect.bisect_left(self._keys, entry) for entry in new]
        for at, entry in zip(reversed(places), reversed(new), strict=True):
            self._keys.insert(at, entry)
        self._slots = np.insert(np.delete(self._slots, gone), places, [slot for _, slot in new])

    def _make(self, group: CachedGroup) -> None:
        claims = sorted(group.claims.values(), key=_order)
        line = self._line_of[group.slot] = line_of(self._key(group), claims)
        self._table[group.slot] = pending_groups.row_of(line)

    def _mix(
        self, more: Mapping[Key, list[snapshots.PendingJob]], groups: list[snapshots.PendingGroup]
    ) -> NDArray[np.int64]:
        """Insert groups with other jobs among those of plain jobs. Return the slots of all."""
        fresh: list[tuple[int, snapshots.PendingGroup]] = []
        slots = self._slots.copy()
        for key in sorted(more):
            at = bisect.bisect_left(self._keys, (key, -1))
            known = self._keys[at] if at < len(self._keys) else None
            if known is None or known[0] != key:
                fresh.append((at, line_of(key, sorted(more[key], key=_order))))
                continue
            group = self._by_slot[known[1]]
            self.slot_reasons[group.slot] = None
            both = [*more[key], *group.claims.values()]
            groups[at], slots[at] = line_of(key, sorted(both, key=_order)), -1
        for at, line in reversed(fresh):
            groups.insert(at, line)
        return np.insert(slots, [at for at, _ in fresh], -1)


def _has_plain(structure: desired.Structure) -> bool:
    """Return True if any job can be plain: not with quotas, windows or learned times."""
    settings = structure.settings
    learns = settings.scheduling.learned_quantile is not None
    return not (structure.quotas or structure.reservations or settings.suspend or learns)


def _renumber(
    groups: Iterable[CachedGroup],
    numbers: Mapping[str, int],
    line_of_slot: NDArray[np.object_],
    table: NDArray[np.int64],
) -> None:
    """Have the new numbers of shapes in the lines and rows of groups that are otherwise the same.

    Args:
        groups: those groups.
        numbers: shape index of each form.
        line_of_slot, table: line and row of each slot.
    """
    for group in groups:
        line, number = line_of_slot[group.slot], numbers[group.kind.form]
        if line.shape != number:
            line_of_slot[group.slot] = pending_groups.in_shape(line, number)
            table[group.slot, pending_groups.SHAPE] = number


def _order(claim: snapshots.PendingJob) -> tuple[int, str, tuple[int, ...]]:
    return (claim.order, claim.job, claim.elements)


def line_of(key: Key, claims: Iterable[snapshots.PendingJob]) -> snapshots.PendingGroup:
    """Return the group of a key; ``claims`` are in order."""
    return snapshots.PendingGroup(*key[:4], tuple(claims), key[4], key[5], preempts=key[7])
