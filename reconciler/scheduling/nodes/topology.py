"""Nodes in domains: which domain an element goes to, and how its tasks lie in it.

Input is how many tasks each node has room for; output is how many go where. A domain is chosen by
best fit, the one with the least room that still fits, so that large ones stay whole. Inside it
the same is done level by level down to the nodes, so that few domains of each level are touched.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots

Counts = NDArray[np.int64]
Rows = NDArray[np.intp]
Allotment = list[tuple[int, int]]
#: Puts a number of tasks on nodes (rows, best first comes out), which together have room.
Spread = Callable[[Rows, int], Allotment]


class TopologyDomains:
    """The domains of the nodes.

    Attributes:
        domains: (n, l + 1) as in ``NodeColumns``, and each node as a domain of its own.
        depth: number of levels, l; also the level of the nodes themselves.
        rank: (n,) place of each node in the order of the network: nodes of one domain together,
            at each level.
    """

    def __init__(self, domains: NDArray[np.int64]) -> None:
        count = len(domains)
        self.depth = domains.shape[1] if domains.ndim == 2 else 0
        alone = np.arange(count, dtype=np.int64)[:, None]
        self.domains = np.hstack([domains.reshape(count, self.depth), alone])
        placed = np.where(domains < 0, np.iinfo(np.int64).max, domains)
        keys = [np.arange(count), *(placed[:, level] for level in reversed(range(self.depth)))]
        self.rank: Counts = np.empty(count, dtype=np.int64)
        self.rank[np.lexsort(keys)] = np.arange(count)

    def within(self, level: int, node: int) -> snapshots.Mask:
        """The nodes of the domain that a node is in at a level; itself where it is in none."""
        domain = self.domains[node, level]
        if domain < 0:
            alone = np.zeros(len(self.domains), dtype=np.bool_)
            alone[node] = True
            return alone
        mask: snapshots.Mask = self.domains[:, level] == domain
        return mask

    def fitting(
        self, counts: Counts, need: int, level: int, slices: "Slices | None" = None
    ) -> list[int]:
        """The domains of a level that have room, the least room first, then the fewest nodes."""
        rows = np.flatnonzero((counts > 0) & (self.domains[:, level] >= 0))
        if not rows.size:
            return []
        ids, places = np.unique(self.domains[rows, level], return_inverse=True)
        room = np.bincount(places, weights=counts[rows]).astype(np.int64)
        enough = room >= need
        order = np.lexsort((ids, np.bincount(places), room))
        found = [int(ids[at]) for at in order if enough[at]]
        if slices is None:
            return found
        return [
            domain
            for domain in found
            if slices.fits(counts, rows[self.domains[rows, level] == domain])
        ]

    def allot(self, counts: Counts, need: int, rows: Rows, level: int, spread: Spread) -> Allotment:
        """``need`` tasks on ``rows``, touching few domains of ``level`` and those below it.

        The rows together have room for them.
        """
        chosen: Allotment = []
        while level < self.depth and rows.size > 1:
            whole, rows, need = self._split(counts, need, rows, level)
            chosen += [(int(row), int(counts[row])) for row in whole]
            level += 1
        return chosen + (spread(rows, need) if need else [])

    def _split(self, counts: Counts, need: int, rows: Rows, level: int) -> tuple[Rows, Rows, int]:
        """(rows taken up whole, rows of the one domain that takes the rest, the rest)."""
        _, first, places = np.unique(
            self.domains[rows, level], return_index=True, return_inverse=True
        )
        room = np.bincount(places, weights=counts[rows]).astype(np.int64)
        size = len(first)
        if size == 1:
            return rows[:0], rows, need
        order = np.lexsort((np.arange(size), -room))
        reached = np.cumsum(room[order])
        # Largest domains whole, until one of those that are left could take all the rest.
        full = 0
        while True:
            rest = need - (int(reached[full - 1]) if full else 0)
            if room[order[full]] >= rest:
                break
            full += 1
        left = order[full:]
        best = min(left[room[left] >= rest].tolist(), key=lambda at: (room[at], at))
        taken = np.zeros(size, dtype=np.bool_)
        taken[order[:full]] = True
        return rows[taken[places]], rows[places == best], rest


class Slices:
    """Each ``size`` tasks by index in one domain of ``level``; the last slice may be smaller.

    With room for all but the last, smaller slice, that one has room in any domain where a whole
    slice has, or in what slices leave: so counting slices by domain is exact.
    """

    def __init__(self, topology: TopologyDomains, size: int, level: int, need: int) -> None:
        self.topology = topology
        self.size = size
        self.level = level
        self.full, self.rest = divmod(need, size)

    def _rooms(self, counts: Counts, rows: Rows) -> tuple[Counts, Counts, Counts]:
        """(place of each row's domain, or -1; room of each domain; its first row)."""
        domains = self.topology.domains[rows, self.level]
        inside = domains >= 0
        places = np.full(len(rows), -1, dtype=np.int64)
        ids, first, found = np.unique(domains[inside], return_index=True, return_inverse=True)
        places[inside] = found
        room = np.bincount(found, weights=counts[rows[inside]], minlength=len(ids))
        return places, room.astype(np.int64), np.flatnonzero(inside)[first]

    def fits(self, counts: Counts, rows: Rows) -> bool:
        """Whether the rows have room for all slices."""
        _, room, _ = self._rooms(counts, rows)
        slots = int((room // self.size).sum())
        if slots > self.full or (slots == self.full and not self.rest):
            return True
        return slots == self.full and bool((room % self.size >= self.rest).any())

    def allot(self, counts: Counts, rows: Rows, level: int, spread: Spread) -> list[Allotment]:
        """One allotment for each run of slices that lies in one domain, in order of index."""
        places, room, first = self._rooms(counts, rows)
        slots = np.zeros(len(counts), dtype=np.int64)
        heads = rows[first]
        slots[heads] = room // self.size
        above = min(level, self.level)
        chosen = dict(
            self.topology.allot(
                slots,
                self.full,
                heads[slots[heads] > 0],
                above,
                lambda left, need: _fewest(slots, left, need),
            )
            if self.full
            else []
        )
        tasks = np.array([chosen.get(int(head), 0) * self.size for head in heads], dtype=np.int64)
        last = -1
        if self.rest:
            spare = np.where(room - tasks >= self.rest, room - tasks, np.iinfo(np.int64).max)
            # Beside slices of its own first, then where it leaves least.
            last = int(np.lexsort((spare, tasks == 0, spare == np.iinfo(np.int64).max))[0])
        order = sorted(
            (int(at) for at in np.flatnonzero(tasks) if at != last),
            key=lambda at: int(self.topology.rank[heads[at]]),
        )
        found: list[Allotment] = []
        for at in [*order, last] if last >= 0 else order:
            need = int(tasks[at]) + (self.rest if at == last else 0)
            inside = rows[places == at]
            found.append(self.topology.allot(counts, need, inside, self.level + 1, spread))
        return found


def _fewest(counts: Counts, rows: Rows, need: int) -> Allotment:
    return fewest(counts, need, rows, (rows,))


def fewest(counts: Counts, need: int, rows: Rows, keys: Sequence[NDArray[Any]]) -> Allotment:
    """``need`` tasks on as few rows as can be; among equal ones by ``keys``, the first first.

    The rows together have room; ``keys`` are aligned with them.
    """
    room = counts[rows]
    alone = np.flatnonzero(room >= need)
    if alone.size:
        best = alone[np.lexsort([key[alone] for key in reversed(keys)])[0]]
        return [(int(rows[best]), need)]
    order = np.lexsort([*reversed(keys), -room])
    reached = np.cumsum(room[order])
    full = int(np.searchsorted(reached, need, side="right"))
    chosen = [(int(rows[at]), int(room[at])) for at in order[:full]]
    rest = need - (int(reached[full - 1]) if full else 0)
    if rest:
        tail = order[full:]
        tail = tail[room[tail] >= rest]
        best = tail[np.lexsort([*(key[tail] for key in reversed(keys)), room[tail]])[0]]
        chosen.append((int(rows[best]), rest))
    return chosen


def preferred_first(
    counts: Counts, need: int, rows: Rows, tiers: NDArray[np.int64], keys: Sequence[NDArray[Any]]
) -> Allotment:
    """As ``fewest``, but rows of a lower tier are used up before those of a higher one."""
    chosen: Allotment = []
    for tier in np.unique(tiers):
        inside = tiers == tier
        room = int(counts[rows[inside]].sum())
        if room >= need:
            return chosen + fewest(counts, need, rows[inside], [key[inside] for key in keys])
        chosen += [(int(row), int(counts[row])) for row in rows[inside]]
        need -= room
    return chosen


def even(counts: Counts, need: int, rows: Rows, keys: Sequence[NDArray[Any]]) -> Allotment:
    """``need`` tasks as evenly as can be over the rows, those first by ``keys`` get one more."""
    room = counts[rows]
    low, high = 1, need
    while low < high:
        middle = (low + high) // 2
        if int(np.minimum(room, middle).sum()) >= need:
            high = middle
        else:
            low = middle + 1
    given = np.minimum(room, low - 1)
    rest = need - int(given.sum())
    order = np.lexsort(list(reversed(keys)))
    more = order[room[order] >= low][:rest]
    given[more] += 1
    return [(int(rows[at]), int(given[at])) for at in np.flatnonzero(given)]


def per_node(counts: Counts, tasks: int) -> Counts:
    """Room when each node takes so many tasks or none."""
    return np.where(counts >= tasks, tasks, 0)


def one_each(counts: Counts, domains: Counts, keys: Sequence[NDArray[Any]]) -> Counts:
    """Room when each domain takes one task: on its first node by ``keys`` that has room.

    Nodes in no domain (-1) are kept as they are. ``keys`` are (n,).
    """
    found = counts.copy()
    rows = np.flatnonzero((counts > 0) & (domains >= 0))
    order = rows[np.lexsort([*(key[rows] for key in reversed(keys)), domains[rows]])]
    _, first = np.unique(domains[order], return_index=True)
    found[rows] = 0
    found[order[first]] = 1
    return found
