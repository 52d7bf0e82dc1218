"""What of a snapshot the engine does not decide yet.

A snapshot is decided as a whole or not at all: a trait that is not covered raises ``NotCovered``,
before the first turn where columns tell, else at the turn that would need it. Entries of ``Trait``
may only go.
"""

from collections.abc import Callable, Collection, Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.causes import BlockKind
from reconciler.scheduling.engine import queue_accounts, shape_table
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.arrays import UNLIMITED, WHOLE
from reconciler.scheduling.queues import arrival_batches

#: Starts in a row of which nobody was found who could reclaim them, after which nobody looks again;
#: as in ``cycle.churn_guard``.
RECLAIM_SEARCHES_MAX = 8


class Trait(StrEnum):
    """What is not covered. Values are for people."""

    LEAVING = "work that is leaving"
    NOMINATED = "nominated capacity of earlier cycles"
    CARRIED = "reservations of earlier cycles"
    DEADLINES = "deadlines"
    ELASTIC = "elastic gangs"
    GROUPS = "jobs of several task groups"
    LEVELS = "topology constraints"
    AFFINITY = "affinities"
    EXCLUSIVE = "whole nodes for one job"
    SCORES = "preferred nodes"
    SPREAD = "spreading over nodes"
    DEVICES = "MIG instances, GPU memory, several shared GPUs, or GPUs near each other"
    MIX = "a large batch of jobs placed by what is ahead in it"
    POOLS = "caps on what all work may have in a pool"
    LENDING = "lending limits"
    WINDOWS = "reservations and maintenance windows"
    EVICTIONS = "a job for which others could leave or move"
    RECLAIMED = "a start that another job could reclaim at once"
    GIVES_WAY = "a reservation that gives way to another job"


class NotCovered(Exception):  # noqa: N818 - no error: the present cycle decides instead
    """The engine does not decide this snapshot.

    Attributes:
        trait: what it does not cover.
    """

    def __init__(self, trait: Trait) -> None:
        super().__init__(f"not covered: {trait.value}")
        self.trait = trait


def check(situation: snapshots.Snapshot, columns: snapshots.PendingColumns, batch: int) -> None:
    """Raise ``NotCovered`` if columns tell that a snapshot has a trait that is not covered.

    Args:
        situation: the snapshot, prepared for a cycle.
        columns: its pending groups as columns.
        batch: elements that came together with others.
    """
    found = (
        (Trait.LEAVING, situation.running.leaving.any()),
        (Trait.CARRIED, situation.kept),
        (Trait.DEADLINES, situation.turns),
        (Trait.MIX, situation.mix and batch >= arrival_batches.AHEAD_MIN),
        (Trait.POOLS, bool(flavors.caps(situation))),
        (Trait.LENDING, (np.asarray(situation.queues.lending) < UNLIMITED).any()),
        (Trait.WINDOWS, situation.windows),
        (Trait.EXCLUSIVE, situation.nodes.exclusive.any()),
    )
    for trait, there in found:
        if there:
            raise NotCovered(trait)
    for number in np.unique(columns.shape[columns.claims > 0]).tolist():
        _check_shape(situation.shapes[number])
    for index in np.flatnonzero(columns.special).tolist():
        _check_jobs(situation.lines[index])


def _check_shape(shape: snapshots.Shape) -> None:
    if len(shape.groups) != 1:
        raise NotCovered(Trait.GROUPS)
    group = shape.groups[0]
    shared = group.devices > 0 and group.share < WHOLE
    levels = (shape.required_level, shape.preferred_level, group.required_level)
    found = (
        (Trait.LEVELS, max(*levels, group.preferred_level, group.slice_level) >= 0),
        (Trait.ELASTIC, group.count != group.least),
        (Trait.AFFINITY, shape.affinities or shape.matches),
        (Trait.EXCLUSIVE, shape.exclusive),
        (Trait.SCORES, shape.scores is not None),
        (Trait.SPREAD, shape.strategy == "spread"),
        (Trait.DEVICES, group.profile >= 0 or group.share_bytes or group.inner >= 0),
        (Trait.DEVICES, shared and group.devices > 1),
        (Trait.WINDOWS, shape.unreserved is not None or shape.barred),
    )
    for trait, there in found:
        if there:
            raise NotCovered(trait)


def _check_jobs(line: snapshots.PendingGroup) -> None:
    for claim in line.claims:
        if claim.missing:
            raise NotCovered(Trait.ELASTIC)
        if claim.promised or claim.moved:
            raise NotCovered(Trait.NOMINATED)
        if claim.slack_s != snapshots.ENDLESS:
            raise NotCovered(Trait.DEADLINES)


class CoverageGuard:
    """Raises ``NotCovered`` at the turn that needs what the engine does not do yet."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        columns: snapshots.PendingColumns,
        accounts: queue_accounts.QueueAccounts,
        shapes: list[shape_table.JobShape],
    ) -> None:
        self._situation, self._columns, self._accounts = situation, columns, accounts
        self._shapes = shapes
        running = situation.running
        self._movable = situation.policy.consolidate and bool(
            situation.policy.any_movable or running.movable.any()
        )
        some = (running.queue >= 0) & (running.preemptible | (running.spares > 0))
        self._lowest: dict[int, int] = {}
        for queue, priority in zip(running.queue[some], running.priority[some], strict=True):
            self._lowest[int(queue)] = min(int(priority), self._lowest.get(int(queue), 2**62))
        self._searches = RECLAIM_SEARCHES_MAX
        self._open: NDArray[np.intp] | None = None
        self._charged = np.zeros((0, 3), dtype=np.int64)

    @property
    def is_idle(self) -> bool:
        """Whether nobody could leave for anybody, so that blocked jobs need no check."""
        return not self._lowest

    def kept_out(
        self,
        line: snapshots.PendingGroup,
        shape: int,
        reserved: Sequence[tuple[snapshots.PendingGroup, int]],
    ) -> None:
        """Check that no reservation gives way to a job that would delay it.

        Args:
            line: of the job.
            shape: in the pool that is tried.
            reserved: groups and shapes of the jobs with reservations.
        """
        covered = self._accounts.covered
        owed = covered(line.queue, self._shapes[shape].charged)
        for other, number in reserved:
            if other.queue == line.queue:
                gives_way = other.priority < line.priority
            else:
                gives_way = owed and not covered(other.queue, self._shapes[number].charged)
            if gives_way:
                raise NotCovered(Trait.GIVES_WAY)

    def blocked(self, line: snapshots.PendingGroup, kind: BlockKind) -> None:
        """Check that nobody could leave for a job that is blocked."""
        policy = self._situation.policy
        if kind == BlockKind.QUOTA or not line.preempts:
            return
        lower = self._lowest.get(line.queue, 2**62) < line.priority
        others = policy.reclaim and any(
            self._accounts.is_over_guarantee(queue)
            for queue in self._lowest
            if queue not in self._accounts.paths[line.queue]
        )
        if (self._movable and self._lowest) or (policy.preempt and lower) or others:
            raise NotCovered(Trait.EVICTIONS)

    def ended(self, risen: Collection[int]) -> None:
        """Check that nobody could evict from queues that came above their shares in the cycle."""
        if risen and self._lowest and self._situation.policy.reclaim:
            raise NotCovered(Trait.EVICTIONS)

    def reclaiming(
        self, line: snapshots.PendingGroup, would_use: Callable[[int], bool]
    ) -> list[int]:
        """Return the shapes of which a job could reclaim what a start is about to take.

        Args:
            line: of the element that starts.
            would_use: whether one element of a shape has room, and could use the same nodes.
        """
        policy, amounts = self._situation.policy, self._shapes[line.shape].charged
        protected = self._situation.queues.min_runtime_s[line.queue] > 0
        if not policy.reclaim or not line.preemptible or line.others or protected:
            return []
        if self._searches <= 0:
            return []
        if self._accounts.covered(line.queue, amounts):
            return []
        rows = self._within_shares()
        rows = rows[self._columns.queue[rows] != line.queue]
        if not rows.size:
            return []
        self._searches -= 1
        return [s for s in np.unique(self._columns.shape[rows]).tolist() if would_use(s)]

    def _within_shares(self) -> NDArray[np.intp]:
        """Return pending groups of which a job would stay within the fair share of its queue."""
        columns = self._columns
        rows = self._open
        if rows is None:
            strict = self._situation.queues.strict[columns.queue]
            rows = np.flatnonzero((columns.claims > 0) & ~columns.special & ~strict)
            if self._situation.pools is not None:
                lines = self._situation.lines
                rows = rows[[not lines[row].others for row in rows.tolist()]]
            self._charged = np.array([shape.charged for shape in self._shapes], dtype=np.int64)
        asked, queue = self._charged[columns.shape[rows]], columns.queue[rows]
        left, rationed = self._accounts.left_of_shares()
        measured = (asked > 0) & rationed[queue]
        beyond = measured & (asked > left[queue])
        self._open = rows[measured.any(axis=1) & ~beyond.any(axis=1)]
        return self._open
