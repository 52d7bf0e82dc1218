"""Whose turn it is, all the way down the tree of queues.

Each queue with others below it, and the root, has a heap of its children, by
``queue_accounts.Key``. Only the queue whose turn it was is charged, and those above it: so the
first of each heap on its path is the only entry whose place changes, and heaps need no search.
"""

import heapq

from reconciler.scheduling.engine.queue_accounts import Key, QueueAccounts
from reconciler.scheduling.inputs.arrays import Charge

ROOT = -1


class QueueHeap:
    """The queues that have something to try. A queue with work of its own competes with those
    below it as one of them.

    Attributes:
        asked: by queue, what it asks for next; None: nothing.
    """

    def __init__(self, accounts: QueueAccounts, heads: list[Charge | None]) -> None:
        """``heads``: what each queue asks for next; None: nothing."""
        self._accounts = accounts
        self.asked = heads
        count = len(heads)
        self._inner = [False] * count
        for parent in accounts.parents:
            if parent != ROOT:
                self._inner[parent] = True
        #: By queue, the root last: (key, child); a queue as its own child is the one with work.
        self._heaps: list[list[tuple[Key, int]]] = [[] for _ in range(count + 1)]
        for queue in range(count - 1, -1, -1):  # parents stand before their children
            asked = heads[queue]
            if self._inner[queue]:
                if asked is not None:
                    heapq.heappush(self._heaps[queue], (accounts.key(queue, asked), queue))
                asked = self._asked_below(queue)
            if asked is not None:
                entry = (accounts.key(queue, asked), queue)
                heapq.heappush(self._heaps[accounts.parents[queue]], entry)

    def _asked_below(self, queue: int) -> Charge | None:
        """Return what the next start of a queue with others below it asks for."""
        heap = self._heaps[queue]
        if not heap:
            return None
        child = heap[0][1]
        own = child == queue or not self._inner[child]
        return self.asked[child] if own else self._asked_below(child)

    def first(self) -> int | None:
        """Return the queue whose turn it is."""
        at = ROOT
        while self._heaps[at]:
            child = self._heaps[at][0][1]
            if child == at or not self._inner[child]:
                return child
            at = child
        return None

    def renew(self, queue: int, asked: Charge | None) -> None:
        """Put the queue whose turn it was where it belongs now; ``asked``: what it asks next."""
        self.asked[queue] = asked
        if self._inner[queue]:
            self._replace(self._heaps[queue], queue, asked)
            asked = self._asked_below(queue)
        for member in self._accounts.paths[queue]:
            above = self._accounts.parents[member]
            self._replace(self._heaps[above], member, asked)
            asked = None if above == ROOT else self._asked_below(above)

    def _replace(self, heap: list[tuple[Key, int]], queue: int, asked: Charge | None) -> None:
        if asked is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (self._accounts.key(queue, asked), queue))
