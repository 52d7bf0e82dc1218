"""Elements that hold something now, as the scheduler sees them: what, since when, for how long.

Attempts come in, grouped by element; a ``Holding`` goes out for each, with what it is charged by
queue. Of an element of which only some tasks leave there are two: what leaves, then what stays.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reconciler.core import columns as tables
from reconciler.core import resizing
from reconciler.core import shapes as forms
from reconciler.core import work as desk
from reconciler.model import desired, records
from reconciler.model.states import AttemptState, EndReason
from reconciler.scheduling import snapshot as columns

Amounts = NDArray[np.int64]
Attempts = list[records.AttemptRecord]


@dataclass
class Held:
    """What is held.

    Attributes:
        attempts: (job, element) to attempts that have not ended, in order of group and index.
        allocated, firm: amounts by queue, without queues below it; those of work that is not
            preemptible, beyond the minimum of its gangs not counted.
    """

    attempts: dict[tuple[str, int], Attempts]
    allocated: dict[str, Amounts] = field(default_factory=dict)
    firm: dict[str, Amounts] = field(default_factory=dict)


def gather(work: desk.Work) -> Held:
    """All attempts that have not ended, by element, with what each queue is charged."""
    found: dict[tuple[str, int], Attempts] = {}
    for attempt in work.live_attempts():
        key = (attempt.job, attempt.element)
        known = found.get(key)
        if known is None:
            found[key] = [attempt]
        else:
            known.append(attempt)
    held = Held(found)
    totals: dict[str, list[int]] = {}
    firm: dict[str, list[int]] = {}
    for (job, _), attempts in found.items():
        spec = spec_of(work, job)
        if spec is None:
            continue
        total = totals.setdefault(spec.queue, [0, 0, 0])
        for attempt in attempts:
            _add(total, attempt)
        if not spec.preemptible:
            sure = firm.setdefault(spec.queue, [0, 0, 0])
            spare = spare_of(spec, attempts)
            for attempt in attempts:
                if attempt.id not in spare:
                    _add(sure, attempt)
    held.allocated = {name: np.array(row, dtype=np.int64) for name, row in totals.items()}
    held.firm = {name: np.array(row, dtype=np.int64) for name, row in firm.items()}
    return held


def _add(total: list[int], attempt: records.AttemptRecord) -> None:
    has = attempt.resources
    total[0] += has.cpu_milli
    total[1] += has.memory_bytes
    total[2] += has.gpu_milli


def spec_of(work: desk.Work, job: str) -> desired.Job | None:
    """A job as this cycle has it."""
    draft = work.drafts.get(job)
    if draft is not None:
        return draft.spec
    record = work.observed.jobs.get(job)
    return record.spec if record else None


def spare_of(spec: desired.Job, attempts: Attempts) -> frozenset[str]:
    """Ids of the attempts without which an element goes on: those beyond ``min``, the last ones."""
    if not resizing.is_resizable(spec):
        return frozenset()
    found: set[str] = set()
    for group in spec.groups:
        own = [a for a in attempts if a.group == group.name and a.stop is None]
        own.sort(key=lambda attempt: attempt.index)
        found.update(attempt.id for attempt in own[group.least :])
    return frozenset(found)


class Maker:
    """Makes holdings; what does not differ between them is worked out once."""

    def __init__(
        self,
        work: desk.Work,
        at: float,
        *,
        nodes: tables.Nodes,
        selectors: forms.Selectors,
        shapes: forms.Shapes,
        expected_s: Callable[[desired.Job], float],
    ) -> None:
        self._work = work
        self._at = at
        self._nodes = nodes
        self._selectors = selectors
        self._shapes = shapes
        self._expected_s = expected_s
        structure = work.desired.structure
        self._row_of_queue = {name: row for row, name in enumerate(structure.queues)}
        self._scheduling = structure.settings.scheduling

    def all(self, held: Held) -> tuple[columns.Holding, ...]:
        """A holding for each element, those that leave in part before what stays of them."""
        found: list[columns.Holding] = []
        for (job, element), attempts in held.attempts.items():
            draft = self._work.drafts.get(job)
            record = draft.record() if draft else self._work.observed.jobs.get(job)
            if record is None or record.spec.queue not in self._row_of_queue:
                continue
            found += self._of(record, element, attempts)
        return tuple(found)

    def _of(
        self, record: records.JobRecord, element: int, attempts: Attempts
    ) -> list[columns.Holding]:
        leaving = [attempt for attempt in attempts if attempt.stop is not None]
        if not leaving or len(leaving) == len(attempts):
            return [self._holding(record, element, attempts, leaving=bool(leaving))]
        if not resizing.is_resizable(record.spec):
            return [self._holding(record, element, attempts, leaving=True)]
        staying = [attempt for attempt in attempts if attempt.stop is None]
        return [
            self._holding(record, element, leaving, leaving=True),
            self._holding(record, element, staying, leaving=False),
        ]

    def _holding(
        self, record: records.JobRecord, element: int, attempts: Attempts, *, leaving: bool
    ) -> columns.Holding:
        spec = record.spec
        queue = self._work.desired.structure.queues[spec.queue]
        started = [a.started_at for a in attempts if a.started_at is not None]
        began = min(started) if started else min(a.assigned_at for a in attempts)
        minimum_s = queue.min_runtime_s
        if minimum_s is None:
            minimum_s = self._scheduling.min_runtime_s
        evicted = [
            a.stop for a in attempts if a.stop is not None and a.stop.reason is EndReason.PREEMPTED
        ]
        doubtful = bool([a for a in attempts if a.state is AttemptState.UNKNOWN])
        movable = spec.preemptible and spec.checkpoint is not None
        shape = -1
        if movable and not doubtful:
            shape, refusal = self._shapes.of(spec)
            shape = shape if refusal is None else -1
        resizable = resizing.is_resizable(spec)
        return columns.Holding(
            job=spec.name,
            element=element,
            queue=self._row_of_queue[spec.queue],
            priority=spec.priority,
            order=record.order,
            tasks=self._tasks(spec, attempts),
            preemptible=spec.preemptible,
            since=min(began, self._at),
            protected_until=self._protected_until(began, minimum_s, record, element),
            movable=movable,
            ends_at=self._ends_at(spec, began),
            leaving=leaving,
            leaving_for=evicted[0].by if evicted else "",
            shape=shape,
            matches=self._selectors.matching(spec),
            exclusive=spec.exclusive,
            least=tuple(group.least for group in spec.groups) if resizable else (),
            doubtful=doubtful,
            moving=bool(evicted) and any(stop.moving for stop in evicted),
        )

    def _protected_until(
        self, began: float, minimum_s: int, record: records.JobRecord, element: int
    ) -> float:
        """Until when it is not evicted: its minimum run time, or the grace of a gang in part."""
        until = began + minimum_s if minimum_s else 0.0
        since = self._work.short_since.get(f"{record.name}/{element}")
        if since is not None:
            until = max(until, since + self._scheduling.stale_gang_s)
        return until

    def _ends_at(self, spec: desired.Job, began: float) -> float:
        limit_s = columns.ENDLESS if spec.time_limit_s is None else float(spec.time_limit_s)
        expected_s = self._expected_s(spec)
        if began + expected_s > self._at:
            return began + min(expected_s, limit_s)
        return began + limit_s  # it has run for longer than its like did

    def _tasks(self, spec: desired.Job, attempts: Attempts) -> tuple[columns.HeldTask, ...]:
        number: dict[str, int] = {}
        if len(spec.groups) > 1:
            number = {group.name: index for index, group in enumerate(spec.groups)}
        spare = spare_of(spec, attempts)
        row_of = self._nodes.row_of
        return tuple(
            [
                columns.HeldTask(
                    node=row_of[a.node],
                    amounts=a.resources.as_vector(),
                    devices=a.devices,
                    share=a.share_milli or columns.WHOLE,
                    profile=self._nodes.profile_of(a.mig_profile) if a.mig_profile else -1,
                    instances=len(a.instances),
                    group=number.get(a.group, 0),
                    index=a.index,
                    spare=a.id in spare,
                )
                for a in attempts
                if a.node in row_of
            ]
        )
