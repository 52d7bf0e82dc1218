"""Who goes first: claims within a queue, and queues among each other.

Within a queue: priority, then arrival; among one owner's jobs of equal priority the one with the
least slack takes the owner's earliest turn. Between queues: a tree is walked from the roots, at
each level to the branch with the smallest key. What is covered by a guarantee goes before what
borrows; the former by the lowest allocated/guaranteed ratio, the latter by the lowest dominant
share; ties by arrival.
"""

import math
from collections.abc import Iterable

from reconciler.scheduling import quota as quotas
from reconciler.scheduling import snapshot as snapshots

#: Tier (0 covered by a guarantee, 1 borrows), ratios from this level down, arrival, job.
Key = tuple[int, tuple[float, ...], int, str]
COVERED, BORROWS = 0, 1


def in_queue(claims: Iterable[snapshots.Claim]) -> list[snapshots.Claim]:
    """The claims of one queue in the order in which they are tried."""
    ordered = sorted(claims, key=lambda c: (-c.priority, c.order, c.job))
    turns: dict[tuple[int, str], list[int]] = {}
    pressed: set[tuple[int, str]] = set()
    for position, claim in enumerate(ordered):
        if not math.isinf(claim.slack_s):
            pressed.add((claim.priority, claim.owner))
        turns.setdefault((claim.priority, claim.owner), []).append(position)
    result = list(ordered)
    for group in pressed:
        members = sorted(
            (ordered[position] for position in turns[group]),
            key=lambda c: (c.slack_s, c.order, c.job),
        )
        for position, claim in zip(turns[group], members, strict=True):
            result[position] = claim
    return result


Head = tuple[snapshots.Claim, quotas.Vector]
NOTHING: quotas.Vector = (0, 0, 0)


class Tree:
    """The queues that have something to try, by whose turn it is.

    ``best`` holds for each queue the smallest key in its subtree as seen from its parent. Keys
    only grow within a cycle, so one that turns out stale when its turn comes is put again.
    """

    def __init__(self, ledger: quotas.Quota) -> None:
        self.ledger = ledger
        count = len(ledger.paths)
        self.heads: list[Head | None] = [None] * count
        self.own: list[Key | None] = [None] * count
        self.best: list[Key | None] = [None] * count
        self.children: list[list[int]] = [[] for _ in range(count)]
        self.roots: list[int] = []
        for queue, path in enumerate(ledger.paths):
            (self.children[path[1]] if len(path) > 1 else self.roots).append(queue)

    def key(self, queue: int, head: Head, level: int = 0, more: int = 0) -> Key:
        """A queue's key as seen ``level`` steps above it, had it started ``more`` elements."""
        claim, asked = head
        ledger = self.ledger
        taken: quotas.Vector = (asked[0] * more, asked[1] * more, asked[2] * more)
        if ledger.covers(queue, asked, taken):
            tier, measure = COVERED, ledger.saturation
        else:
            tier, measure = BORROWS, ledger.share
        ratios = tuple(measure(member, taken) for member in ledger.paths[queue][level::-1])
        return (tier, ratios, claim.order, claim.job)

    def put(self, queue: int, head: Head | None) -> None:
        """A queue has another first claim, or none, or was charged: find its place anew."""
        self.heads[queue] = head
        self.own[queue] = None if head is None else self.key(queue, head)
        for member in self.ledger.paths[queue]:
            keys = [self._lifted(member, key) for key, _ in self._below(member)[:1]]
            own = self.own[member]
            self.best[member] = min([*keys, *([] if own is None else [own])], default=None)

    def _below(self, queue: int) -> list[tuple[Key, int]]:
        below = self.roots if queue < 0 else self.children[queue]
        return sorted((key, child) for child in below if (key := self.best[child]) is not None)

    def _lifted(self, queue: int, key: Key) -> Key:
        """A key from below with the ratio of this level before it."""
        measure = self.ledger.share if key[0] == BORROWS else self.ledger.saturation
        return (key[0], (measure(queue, NOTHING), *key[1]), key[2], key[3])

    def first(self) -> tuple[int, list[tuple[int, Key]]] | None:
        """The queue whose turn it is, and the best rivals as (depth of the level, key)."""
        rivals: list[tuple[int, Key]] = []
        at = -1
        for depth in range(len(self.best) + 1):
            branches = self._below(at)
            own = self.own[at] if at >= 0 else None
            if own is not None:
                inner = self._lifted(at, branches[0][0]) if branches else None
                if inner is None or own <= inner:
                    return at, [*rivals, *([] if inner is None else [(depth - 1, inner)])]
                rivals.append((depth - 1, own))
            if not branches:
                return None
            if len(branches) > 1:
                rivals.append((depth, branches[1][0]))
            at = branches[0][1]
        return None

    def leads(self, queue: int, head: Head, rivals: list[tuple[int, Key]], more: int) -> bool:
        """Whether it would still be this queue's turn had it started ``more`` elements."""
        deepest = len(self.ledger.paths[queue]) - 1
        return all(self.key(queue, head, deepest - depth, more) <= rival for depth, rival in rivals)

    def turns(self, queue: int, head: Head, rivals: list[tuple[int, Key]], most: int) -> int:
        """How many elements in a row are this queue's turn, 1 at least and ``most`` at most."""
        if not rivals or most == 1:
            return most
        low, high = 1, most
        if self.leads(queue, head, rivals, most - 1):
            return most
        for _ in range(most.bit_length()):
            if high - low <= 1:
                break
            middle = (low + high) // 2
            if self.leads(queue, head, rivals, middle - 1):
                low = middle
            else:
                high = middle
        return low
