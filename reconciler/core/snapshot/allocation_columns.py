"""Makes the scheduler's allocations of running gangs: what each holds, since when, for how long.

An element of which only some tasks leave has two: what leaves, then what stays.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping

from reconciler.core import cycle_attempts
from reconciler.core.jobs import elastic_jobs, run_times, running_gangs, verdicts
from reconciler.core.snapshot import task_shapes
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason
from reconciler.scheduling.inputs import snapshots


class AllocationBuilder:
    """A builder of allocations. What they have in common is computed once.

    Args:
        shapes: with columns of nodes and selectors.
        attempts: of this cycle.
        short_since: elements with fewer tasks than they need, and since when.
        expected_s: returns the expected run time of a job.
        at: the moment of the snapshot.
        awaiting: jobs of which a store from the past may know a part only.
    """

    def __init__(
        self,
        shapes: task_shapes.Shapes,
        attempts: cycle_attempts.CycleAttempts,
        short_since: Mapping[str, float],
        expected_s: Callable[[desired.Job], float],
        at: float,
        *,
        awaiting: frozenset[str] = frozenset(),
    ) -> None:
        self._at = at
        self._awaiting = awaiting
        self._nodes = shapes.table
        self._selectors = shapes.selectors
        self._shapes = shapes
        self._attempts = attempts
        self._short_since = short_since
        self._expected_s = expected_s
        structure = shapes.structure
        self._queues = structure.queues
        self._row_of_queue = {name: row for row, name in enumerate(structure.queues)}
        self._scheduling = structure.settings.scheduling
        self._learns = self._scheduling.learned_quantile is not None
        #: What cached allocations were made for.
        self._frame: running_gangs.Frame = (
            *(structure, self._nodes.names, self._nodes.profiles),
            awaiting,
        )

    def all(self, held: running_gangs.RunningGangs) -> tuple[snapshots.Allocation, ...]:
        """Return the allocations of each element. Tasks that leave come before those that stay."""
        frame, before = self._frame, held.frame
        same = before is not None and before[0] is frame[0] and before[1:] == frame[1:]
        # new selectors may match any of them
        same = same and held.made_at <= self._at and not self._selectors.all
        held.frame, held.made_at = frame, self._at
        # in order, because shapes are numbered as they come
        for key in sorted(held.unmade if same else held.entries):
            if self._make(held.entries[key]):
                held.unmade.discard(key)
            else:
                held.unmade.add(key)
        return tuple(itertools.chain.from_iterable([one.holdings for one in held.in_order()]))

    def _make(self, entry: running_gangs.RunningGang) -> bool:
        """Make allocations. Return True if they depend on their records alone."""
        record = entry.record
        spec, entry.holdings = record.spec, []
        if spec.queue not in self._row_of_queue:
            return False
        entry.holdings = self._of(record, entry.element, entry.attempts)
        return not (
            self._learns
            or spec.affinities
            or self._selectors.all
            or elastic_jobs.is_resizable(spec)
            or any(holding.shape >= 0 for holding in entry.holdings)
            or max(holding.since for holding in entry.holdings) >= self._at
        )

    def _of(
        self, record: records.JobRecord, element: int, attempts: running_gangs.Attempts
    ) -> list[snapshots.Allocation]:
        leaving = [attempt for attempt in attempts if attempt.stop is not None]
        if not leaving or len(leaving) == len(attempts):
            return [self._holding(record, element, attempts, leaving=bool(leaving))]
        if not elastic_jobs.is_resizable(record.spec):
            return [self._holding(record, element, attempts, leaving=True)]
        staying = [attempt for attempt in attempts if attempt.stop is None]
        return [
            self._holding(record, element, leaving, leaving=True),
            self._holding(record, element, staying, leaving=False),
        ]

    def _holding(
        self,
        record: records.JobRecord,
        element: int,
        attempts: running_gangs.Attempts,
        *,
        leaving: bool,
    ) -> snapshots.Allocation:
        spec = record.spec
        queue = self._queues[spec.queue]
        began, try_began = run_times.began(attempts), self._try_began(spec, element, attempts)
        saved = [a.saved.at for a in attempts if a.saved is not None]
        minimum_s = queue.min_runtime_s
        if minimum_s is None:
            minimum_s = self._scheduling.min_runtime_s
        evicted = [
            a.stop for a in attempts if a.stop is not None and a.stop.reason is EndReason.PREEMPTED
        ]
        doubtful = bool([a for a in attempts if a.state is AttemptState.UNKNOWN])
        movable = spec.preemptible and spec.checkpoint is not None
        fixed = not leaving and _is_fixed(spec, attempts)
        returns = leaving and _starts_anew(record, element)
        shape = -1
        if (movable or fixed or returns) and not doubtful:
            shape, refusal = self._shapes.shape_of(spec)
            shape = shape if refusal is None else -1
        resizable = elastic_jobs.is_resizable(spec)
        return snapshots.Allocation(
            job=spec.name,
            element=element,
            queue=self._row_of_queue[spec.queue],
            priority=spec.priority,
            order=record.order,
            tasks=self._tasks(spec, attempts),
            preemptible=spec.preemptible,
            since=min(max([began, *saved]), self._at),
            protected_until=self._protected_until(began, minimum_s, record, element),
            movable=movable,
            ends_at=run_times.ends_at(spec, try_began, self._expected_s(spec), self._at),
            leaving=leaving,
            leaving_for=evicted[0].by if evicted else "",
            shape=shape,
            matches=self._selectors.matching(spec),
            exclusive=spec.exclusive,
            least=self._still_needed(record, element) if resizable else (),
            doubtful=doubtful,
            moving=bool(evicted) and any(stop.moving for stop in evicted),
            began=min(try_began, self._at),
            fixed=fixed and shape >= 0,
            of_array=spec.array_count is not None,
            returns=returns and shape >= 0,
            grace_s=float(max(a.grace_s for a in attempts)),
            leaves_by=max((a.stop.at + a.stop.grace_s for a in attempts if a.stop), default=0.0),
        )

    def _still_needed(self, record: records.JobRecord, element: int) -> tuple[int, ...]:
        """Return how many tasks of each group must run on.

        Those that have succeeded need not. None must where nobody knows how many there are, or of a
        job that counts as done.
        """
        spec = record.spec
        if self._is_last(record):
            return (0,) * len(spec.groups)
        done = Counter(
            one.group
            for one in self._attempts.of_element(spec.name, element)
            if not one.concluded and elastic_jobs.has_succeeded(one)
        )
        return tuple(max(0, group.least - done[group.name]) for group in spec.groups)

    def _is_last(self, record: records.JobRecord) -> bool:
        """Return True if nothing of a job starts after what runs of it."""
        return record.declared_over or record.name in self._awaiting

    def _try_began(
        self, spec: desired.Job, element: int, attempts: running_gangs.Attempts
    ) -> float:
        """Return when the try began, which its time limit counts from.

        The task that began it may have ended or be leaving, while later ones go on.
        """
        whole = self._attempts.of_element(spec.name, element)
        if len(whole) <= len(attempts):
            return run_times.began(attempts)
        return run_times.began([one for one in whole if not one.concluded] or attempts)

    def _protected_until(
        self, began: float, minimum_s: int, record: records.JobRecord, element: int
    ) -> float:
        """Return until when it is not preempted: minimum run time, or grace of a partial gang.

        Never, if it would not start again: nobody has chosen yet, or it counts as done.
        """
        if self._is_last(record):
            return math.inf
        until = began + minimum_s if minimum_s else 0.0
        since = self._short_since.get(f"{record.name}/{element}")
        if since is not None:
            until = max(until, since + self._scheduling.stale_gang_s)
        return until

    def _tasks(
        self, spec: desired.Job, attempts: running_gangs.Attempts
    ) -> tuple[snapshots.TaskAllocation, ...]:
        number: dict[str, int] = {}
        if len(spec.groups) > 1:
            number = {group.name: index for index, group in enumerate(spec.groups)}
        spare = running_gangs.spare_of(spec, attempts)
        row_of, width = self._nodes.row_of, self._nodes.columns.devices.shape[1]
        return tuple(
            [
                snapshots.TaskAllocation(
                    node=row_of[a.node],
                    amounts=a.resources.as_vector(),
                    # devices that no pool declares any more do not come free
                    devices=tuple([device for device in a.devices if device < width]),
                    share=a.share_milli or snapshots.WHOLE,
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


def _starts_anew(record: records.JobRecord, element: int) -> bool:
    """Return True if an element whose try ends waits again at once, since a node lost a task."""
    note = record.notes.get(element)
    if note is None or note.verdict not in elastic_jobs.LOSSES or record.removed:
        return False
    return note.losses < verdicts.LOSSES_UNPUNISHED and not record.spec.suspend


def _is_fixed(spec: desired.Job, attempts: running_gangs.Attempts) -> bool:
    """Return True if an element has more tasks than its minimum and can give none up."""
    least = sum(group.least for group in spec.groups)
    return spec.is_elastic and not elastic_jobs.is_resizable(spec) and len(attempts) > least
