"""Which queue goes first, all the way down the tree.

It is walked from the roots, at each level to the child that is not above its fair share, then to
one whose guarantee covers its next start, then to the higher priority, then to the lowest ratio of
allocated to fair share, then to the earlier. What each queue would start next comes in; turns go
out one at a time.
"""

import functools
import heapq

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.snapshots import Charge
from reconciler.scheduling.quota import quota_ledger

#: Whether it is above its fair share; whether its guarantee does not cover the next start;
#: negated priority; whether it has no share at all; dominant share with and without the next
#: start; row. The order of these tests is KAI-Scheduler's (``proportion/queue_order``).
Key = tuple[bool, bool, int, bool, float, float, int]
#: Amounts up to which columns know shares exactly, and by how much they may be out beyond.
EXACT_MAX, EPSILON = 2**53, 1e-12


class QueueTree:
    """The queues that have something to try, by whose turn it is.

    Each parent has a heap of its children; an entry whose version is old is dropped when it is
    met. A queue with work of its own and children competes with them as one more child.
    """

    def __init__(self, situation: snapshots.Snapshot, ledger: quota_ledger.QuotaLedger) -> None:
        self.ledger = ledger
        self.priority = [int(p) for p in situation.queues.priority]
        count = len(ledger.paths)
        self.asked: list[Charge | None] = [None] * count
        self.heaps: list[list[tuple[Key, int, int]]] = [[] for _ in range(count + 1)]
        self.versions = [0] * (2 * count)
        self.count = count
        self.inner = [False] * count
        for parent in ledger.parents:
            if parent >= 0:
                self.inner[parent] = True

    def put(self, queue: int, asked: Charge | None) -> None:
        """A queue's next claim asks for this, or there is none, or the queue was charged."""
        self.asked[queue] = asked
        parents = self.ledger.parents
        if not self.inner[queue]:
            self._push(parents[queue], queue, queue, asked)
            member = parents[queue]
        else:
            self._push(queue, queue + self.count, queue, asked)
            member = queue
        while member >= 0:
            self._push(parents[member], member, member, self._asked_at(member))
            member = parents[member]

    def _push(self, parent: int, child: int, queue: int, asked: Charge | None) -> None:
        self.versions[child] += 1
        if asked is not None:
            entry = (self.key(queue, asked), self.versions[child], child)
            heapq.heappush(self.heaps[parent], entry)

    def key(self, queue: int, asked: Charge) -> Key:
        """A queue's place among its siblings."""
        ledger = self.ledger
        row, bounds, fair = ledger.charged[queue], ledger.guaranteed[queue], ledger.fair[queue]
        rationed, resources = ledger.rationed[queue], ledger.concerned(asked)
        over, uncovered, is_measured = False, False, False
        for resource in resources:
            if rationed[resource]:
                is_measured = True
                over = over or row[resource] > fair[resource]
                uncovered = uncovered or row[resource] + asked[resource] > bounds[resource]
        before, after = ledger.dominant_shares(queue, asked, resources)
        return (
            over,
            uncovered or not is_measured,
            -self.priority[queue],
            ledger.lacks_share(queue, asked, resources),
            after,
            before,
            queue,
        )

    def stays(self, queue: int, before: Charge, asked: Charge) -> bool:
        """Whether a queue whose turn it is keeps it when it asks for something else than before.

        Nothing else has changed; ``False`` may be wrong.
        """
        if all(now <= then for now, then in zip(asked, before, strict=True)):
            return True
        return all(
            self.key(member, asked) <= self.key(member, before)
            for member in self.ledger.paths[queue]
        )

    def staying(self, queue: int, before: Charge, asked: snapshots.Amounts) -> snapshots.Mask:
        """(n,) ``stays`` for each of (w, n) amounts."""
        found: snapshots.Mask = asked[0] <= before[0]
        for resource in range(1, len(before)):
            found &= asked[resource] <= before[resource]
        if not found.all():
            keeps = self._in_same_pool(before, asked)
            for member in self.ledger.paths[queue]:
                keeps &= self._no_later(member, before, asked)
            found |= keeps
        return found

    def _in_same_pool(self, before: Charge, asked: snapshots.Amounts) -> snapshots.Mask:
        """(n,) whether (w, n) amounts are of the same pool: the same resources count for them."""
        found: snapshots.Mask = np.ones(asked.shape[1], dtype=np.bool_)
        named = self.ledger.concerned(before)[flavors.BASE :]
        if named:
            found = functools.reduce(np.logical_or, [asked[resource] > 0 for resource in named])
        for resource in self.ledger.resources[flavors.BASE :]:
            if resource not in named:
                found &= asked[resource] == 0
        return found

    def _no_later(self, queue: int, before: Charge, asked: snapshots.Amounts) -> NDArray[np.bool_]:
        """(n,) whether a queue's place among its siblings is for certain no later than before.

        As of ``key``, whose other parts don't depend on what is asked for.
        """
        ledger = self.ledger
        _, uncovered, _, lacks, share, _, _ = self.key(queue, before)
        charged, bounds, rationed = (
            ledger.charged[queue],
            ledger.guaranteed[queue],
            ledger.rationed[queue],
        )
        then = {r: asked[r] + charged[r] for r in ledger.concerned(before)}
        judged = [amounts <= bounds[r] for r, amounts in then.items() if rationed[r]]
        covered: snapshots.Mask = np.zeros(asked.shape[1], dtype=np.bool_)
        if judged:
            covered = functools.reduce(np.logical_and, judged)
        if covered.all() if uncovered else not covered.any():
            return covered
        surely = 0.0 if int(asked.max()) + max(charged) < EXACT_MAX else EPSILON
        measured = ledger.measured(queue, then) <= share * (1 - surely)
        lacking = ledger.lacking(queue, then)
        if lacking is not None:
            measured = (lacking < lacks) | ((lacking == lacks) & measured)
        return covered | measured if uncovered else covered & measured

    def _top(self, parent: int) -> int | None:
        heap = self.heaps[parent]
        while heap:
            _, version, child = heap[0]
            if self.versions[child] == version:
                return child
            heapq.heappop(heap)
        return None

    def _asked_at(self, queue: int) -> Charge | None:
        """Return what the next start below a queue asks for."""
        first = self.first(below=queue)
        return None if first is None else self.asked[first]

    def first(self, below: int = -1) -> int | None:
        """Return the queue whose turn it is, of those below one (-1: of all)."""
        at = below
        for _ in range(self.count + 1):
            child = self._top(at)
            if child is None:
                return None
            if child >= self.count:
                return child - self.count
            if not self.inner[child]:
                return child
            at = child
        return None
