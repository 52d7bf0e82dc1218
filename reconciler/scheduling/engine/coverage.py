"""What of a snapshot the engine does not decide yet.

A snapshot is decided as a whole or not at all: a trait that is not covered raises ``NotCovered``,
before the first turn where columns tell, else at the turn that would need it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.engine import placement, queue_accounts
from reconciler.scheduling.engine.calendar.reservations import BlockedElement, Taking
from reconciler.scheduling.engine.refusals import NotCovered, Trait
from reconciler.scheduling.engine.searches import Looks, Searches, StartedFirst, TriedJob
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.arrays import UNLIMITED, WHOLE, Charge

#: Starts in a row of which nobody was found who could reclaim them, after which nobody looks again,
#: and in all; as in ``cycle.churn_guard``.
LOOKS_MAX, LOOKS_IN_ALL_MAX = 8, 64


def check(situation: snapshots.Snapshot, columns: snapshots.PendingColumns) -> None:
    """Raise ``NotCovered`` if columns tell that a snapshot has a trait that is not covered.

    Args:
        situation: the snapshot, prepared for a cycle.
        columns: its pending groups as columns.
    """
    found = (
        (Trait.DEADLINES, situation.turns),
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
        (Trait.SPREAD, shape.strategy == "spread" or group.per_node),
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
        if claim.slack_s != snapshots.ENDLESS:
            raise NotCovered(Trait.DEADLINES)


class TimedSearches(Searches, Protocol):
    """The searches of a cycle, also in time."""

    def taking(
        self, job: TriedJob, element: BlockedElement, until: float, *, renewed: bool
    ) -> Taking | None:
        """Return what a job may take from others once their minimum run time is over.

        Args:
            job: the job.
            element: of it.
            until: up to when.
            renewed: whether nodes were reserved for it already.
        """


class CoverageGuard:
    """Raises ``NotCovered`` at the turn that needs what the engine does not do yet."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        columns: snapshots.PendingColumns,
        accounts: queue_accounts.QueueAccounts,
        placer: placement.ElementPlacer,
        searches: TimedSearches,
    ) -> None:
        self._situation, self._columns, self._accounts = situation, columns, accounts
        self.searches = searches
        self._placer, self._shapes = placer, placer.table.shapes
        running = situation.running
        policy = situation.policy
        may = running.free_to_go(situation.now) & running.preemptible
        may &= (running.shape >= 0) & (running.spares == 0)
        may &= running.movable | policy.any_movable
        self._movable = policy.consolidate and bool(may.any())
        some = (running.queue >= 0) & (running.preemptible | (running.spares > 0))
        protected = some & (running.protected_until > situation.now)
        protected &= ~(running.leaving | running.doubtful)
        protected[protected] = situation.queues.min_runtime_s[running.queue[protected]] > 0
        #: Whether work has a minimum run time that is not over.
        self.protects = bool(protected.any())
        self._lowest: dict[int, int] = {}
        for queue, priority in zip(running.queue[some], running.priority[some], strict=True):
            self._lowest[int(queue)] = min(int(priority), self._lowest.get(int(queue), 2**62))
        #: How often it may be looked still who reclaims: in a row in vain, and in all.
        self._looks = (LOOKS_MAX, LOOKS_IN_ALL_MAX)
        self._open: NDArray[np.intp] | None = None
        self._charged = np.zeros((0, 3), dtype=np.int64)

    def are_idle(self, groups: NDArray[np.int64]) -> bool:
        """Return True if nobody leaves or moves for pending groups that have no room, for certain.

        They have one pool, and may be preempted.
        """
        columns, policy = self._columns, self._situation.policy
        if not columns.preemptible[groups].all():
            return False
        if self._situation.pools is not None and any(
            self._situation.lines[index].others for index in groups.tolist()
        ):
            return False
        if not self._lowest:
            return True
        queue, shape = columns.queue[groups], columns.shape[groups]
        if policy.preempt:
            lowest = np.full(len(self._accounts.paths), 2**62)
            lowest[list(self._lowest)] = list(self._lowest.values())
            if (lowest[queue] < columns.priority[groups]).any():
                return False
        if policy.reclaim:
            charged = np.array([one.charged for one in self._shapes], dtype=np.int64)[shape]
            left, rationed = self._accounts.left_of_shares()
            beyond = (charged > 0) & rationed[queue] & (charged > left[queue])
            if not beyond.any(axis=1).all():
                return False
        shapes = np.unique(shape).tolist() if self._movable else []
        return not any(self._placer.has_enough(number) for number in shapes)

    def gives_way(
        self,
        line: snapshots.PendingGroup,
        shape: int,
        reserved: Sequence[tuple[snapshots.PendingGroup, int, bool]],
    ) -> bool:
        """Return False if no reservation gives way to a job that it keeps out, for certain.

        Args:
            line: of the job.
            shape: in the pool that is tried.
            reserved: groups and shapes of the jobs with reservations, and whether these are due.
        """
        covered, amounts = self._accounts.covered, self._shapes[shape].charged
        owed = covered(line.queue, amounts)
        return any(
            self._could_evict(line, amounts, other, due=due)
            or (
                owed
                and other.queue != line.queue
                and not covered(other.queue, self._shapes[number].charged)
            )
            for other, number, due in reserved
        )

    def _could_evict(
        self,
        line: snapshots.PendingGroup,
        amounts: Charge,
        holder: snapshots.PendingGroup,
        *,
        due: bool,
    ) -> bool:
        """Return False if a job could not evict one with a reservation had that started now."""
        policy = self._situation.policy
        protected = self._situation.queues.min_runtime_s[holder.queue] > 0
        if not line.preempts or not holder.preemptible or protected:
            return False
        if holder.queue == line.queue:
            return policy.preempt and holder.priority < line.priority
        return due and policy.reclaim and self._accounts.within_fair_share(line.queue, amounts)

    def is_relieved(self, line: snapshots.PendingGroup, job: TriedJob) -> bool:
        """Return True if others leave for a job that a limit forbids."""
        helps = self._settles(line, job) or (
            line.preempts and bool(self._lowest) and self.searches.could_leave(job)
        )
        return helps and self.searches.relieve(job)

    def _settles(self, line: snapshots.PendingGroup, job: TriedJob) -> bool:
        """Return True if no limit stands in the way of a job once all that leaves has left."""
        queue, asked = line.queue, self._shapes[job.shape].charged
        if self._accounts.over_limit(queue, asked, settled=True) is not None:
            return False
        return line.preemptible or self._accounts.over_guarantee(queue, asked) is None

    def may_make_room(self, line: snapshots.PendingGroup, shape: int) -> bool:
        """Return False if nobody leaves or moves for a job that has no room, for certain."""
        if not line.preempts or not self._lowest:
            return False
        if self._may_evict(line, shape):
            return True
        return self._movable and self._placer.has_enough(shape)

    def room_is_made(self, line: snapshots.PendingGroup, job: TriedJob) -> bool:
        """Return True if others leave or move for a job that has no room."""
        if not self.may_make_room(line, job.shape):
            return False
        moves = self._movable and self._placer.has_enough(job.shape)
        evicts = self.searches.could_leave(job)
        return (moves or evicts) and self.searches.make_room(job)

    def looks(self, line: snapshots.PendingGroup, job: TriedJob) -> bool:
        """Return True if others may leave for a job that a limit forbids."""
        searched = line.preempts and bool(self._lowest) and self.searches.may_search(job)
        return searched or self._settles(line, job)

    def hopeless(self, line: snapshots.PendingGroup, job: TriedJob) -> None:
        """Note that a job is blocked that could never start."""
        if line.preempts and self._may_evict(line, job.shape):
            self.searches.asked(job)

    def _may_evict(self, line: snapshots.PendingGroup, shape: int) -> bool:
        """Return False if a job could evict nobody for certain."""
        policy = self._situation.policy
        if policy.preempt and self._lowest.get(line.queue, 2**62) < line.priority:
            return True
        return (
            policy.reclaim
            and bool(self._lowest)
            and self._accounts.within_fair_share(line.queue, self._shapes[shape].charged)
        )

    @property
    def rises_matter(self) -> bool:
        """Whether queues that came above their shares could lose something again."""
        return bool(self._lowest) and self._situation.policy.reclaim

    def could_lose(self, line: snapshots.PendingGroup) -> bool:
        """Return True if a job could be evicted as soon as it ran, and it is looked by whom."""
        policy, amounts = self._situation.policy, self._shapes[line.shape].charged
        protected = self._situation.queues.min_runtime_s[line.queue] > 0
        if not policy.reclaim or not line.preemptible or line.others or protected:
            return False
        return self._looks[0] > 0 and not self._accounts.covered(line.queue, amounts)

    def let(
        self, job: TriedJob, kept_out: Sequence[TriedJob], *, again: bool
    ) -> StartedFirst | None:
        """Start who would evict a job as soon as that ran; None: nobody would.

        Args:
            job: the job.
            kept_out: whom reservations keep out.
            again: whether the job had a reservation until now.
        """
        looks = Looks(*self._looks, self._open)
        started, self._looks = self.searches.let(job, kept_out, again=again, looks=looks)
        return started

    def reclaimers(self, line: snapshots.PendingGroup) -> NDArray[np.intp]:
        """Return pending groups of other queues that stay within their shares with a job.

        Once there is none any more nobody looks again, though a queue may lose something later.
        """
        if not self.could_lose(line):
            return np.zeros(0, dtype=np.intp)
        rows = self._within_shares()
        found: NDArray[np.intp] = rows[self._columns.queue[rows] != line.queue]
        return found

    def reclaiming(self, rows: NDArray[np.intp], would_use: Callable[[int], bool]) -> list[int]:
        """Return the shapes of which a job could reclaim what a start is about to take.

        Args:
            rows: pending groups of such jobs.
            would_use: whether one element of a shape has room, and could use the same nodes.
        """
        looks, in_all = self._looks
        found = [s for s in np.unique(self._columns.shape[rows]).tolist() if would_use(s)]
        if not found:
            self._looks = (looks - 1, in_all - 1)
        return found

    def _within_shares(self) -> NDArray[np.intp]:
        """Return pending groups of which a job would stay within the fair share of its queue."""
        columns = self._columns
        rows = self._open
        if rows is None:
            strict = self._situation.queues.strict[columns.queue]
            rows = np.flatnonzero((columns.claims > 0) & ~columns.special & ~strict)
            self._charged = np.array([shape.charged for shape in self._shapes], dtype=np.int64)
        asked, queue = self._charged[columns.shape[rows]], columns.queue[rows]
        left, rationed = self._accounts.left_of_shares()
        measured = (asked > 0) & rationed[queue]
        beyond = measured & (asked > left[queue])
        self._open = rows[measured.any(axis=1) & ~beyond.any(axis=1)]
        return self._open
