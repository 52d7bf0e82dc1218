"""Victims node by node: the node first that makes room for a task at the least cost.

Units that may leave come in, queue by queue in the order in which each queue should lose them; they
go out in the order of the nodes that they are on. What every node would cost is worked out for all
nodes at once, on columns; only of the nodes that are really asked for units are looked at.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling import ledger as ledgers
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling import victims as pools

#: Less than any priority.
_LOWEST = -(10**9)
#: So many nodes are put in order at once: rarely is one looked at beyond the first few.
PORTION = 64


class Wanted(NamedTuple):
    """Who asks, and what for.

    Attributes:
        queue: its row; among its own units there are no shares to fall below.
        amounts: what one task asks for.
        free: (n, 3) what nodes have.
        resources: whose shares count.
        eligible, usable: (n,) nodes that it may go to, and of them those that accept work.
    """

    queue: int
    amounts: snapshots.Vector
    free: snapshots.Amounts
    eligible: snapshots.Mask
    usable: snapshots.Mask
    resources: tuple[int, ...] = ledgers.RESOURCES


class _Entries:
    """Units of several queues on their nodes, sorted by node, on each in the order given.

    Attributes:
        unit, node, amounts: of each entry, as in ``victims.Ordered``; units are numbered in the
            order given.
        first: where each node's entries begin. place: number of the node of each entry.
        nodes: rows of the nodes, ascending.
    """

    def __init__(self, sources: Sequence[pools.Ordered], wanted: Wanted) -> None:
        self._sources = sources
        sizes = [len(source.place) for source in sources]
        starts = self._starts = [0, *itertools.accumulate(sizes[:-1])]
        unit = np.concatenate(
            [source.unit + start for source, start in zip(sources, starts, strict=True)]
        )
        node = np.concatenate([source.node for source in sources])
        amounts = np.concatenate([source.amounts for source in sources])
        self.total = np.concatenate([source.total for source in sources])
        self.cost = np.concatenate([source.cost for source in sources])
        self.priority = np.concatenate([source.priority for source in sources])
        self.order = np.concatenate([source.order for source in sources])
        self.source = np.repeat(np.arange(len(sources)), sizes)
        # A unit none of whose nodes may be used frees nothing for the ask.
        helps = np.bincount(unit, wanted.usable[node], len(self.source)) > 0
        kept = helps[unit] & wanted.eligible[node]
        unit, node, amounts = unit[kept], node[kept], amounts[kept]
        # In few bits a stable sort is by radix, and several times faster.
        ranked = np.argsort(node.astype(np.min_scalar_type(len(wanted.free))), kind="stable")
        self.unit, self.node, self.amounts = unit[ranked], node[ranked], amounts[ranked]
        begins = np.diff(self.node, prepend=-1) != 0
        self.first = np.flatnonzero(begins)
        self.place = np.cumsum(begins) - 1
        self.nodes = self.node[self.first]

    def members(self, place: int) -> list[pools.Unit]:
        """Units on a node, in the order given."""
        end = self.first[place + 1] if place + 1 < len(self.first) else len(self.unit)
        return [self._unit(at) for at in self.unit[self.first[place] : end].tolist()]

    def _unit(self, at: int) -> pools.Unit:
        source = int(self.source[at])
        ordered = self._sources[source]
        return ordered.units.unit(int(ordered.place[at - self._starts[source]]))


def taken(
    ledger: ledgers.Ledger,
    queues: Sequence[int],
    sources: Sequence[pools.Ordered],
    wanted: Wanted,
) -> Iterator[pools.Unit]:
    """Units node by node, those nodes first that make room for a task at the least cost.

    Before cost comes how far the losing queues would fall below their shares while work waits there
    that would take it back. Among equals it is the node whose oldest victim is the newest. On each
    node they are counted only as far as they make room for one task.

    Args:
        ledger: the accounts.
        queues: of each source its queue.
        sources: units by queue, in the order in which the queues should lose.
        wanted: by whom.
    """
    if not sources:
        return
    entries = _Entries(sources, wanted)
    if not entries.unit.size:
        return
    own = wanted.queue
    keys = _keys(ledger, queues, wanted, entries)
    seen: set[tuple[int, int]] = set()
    for place in ascending(keys, np.arange(len(entries.nodes))):
        fresh = [unit for unit in entries.members(place) if unit.key not in seen]
        seen.update(unit.key for unit in fresh)
        yield from _furthest_first(
            ledger, [unit for unit in fresh if unit.holding.queue != own], wanted.resources
        )
        yield from (unit for unit in fresh if unit.holding.queue == own)


def _furthest_first(
    ledger: ledgers.Ledger,
    units: list[pools.Unit],
    resources: tuple[int, ...] = ledgers.RESOURCES,
) -> Iterator[pools.Unit]:
    """Units in their order, but always from the queue furthest above its share at the moment."""
    queues: dict[int, list[pools.Unit]] = {}
    for unit in reversed(units):
        queues.setdefault(unit.holding.queue, []).append(unit)
    while len(queues) > 1:
        queue = min(queues, key=lambda q: (pools.standing(ledger, q, resources), -q))
        yield queues[queue].pop()
        if not queues[queue]:
            del queues[queue]
    for rest in queues.values():
        yield from reversed(rest)


def _keys(
    ledger: ledgers.Ledger,
    queues: Sequence[int],
    wanted: Wanted,
    entries: _Entries,
) -> list[NDArray[Any]]:
    """What nodes are compared by, what counts most first."""
    lacks = [amount - wanted.free[entries.nodes, r] for r, amount in enumerate(wanted.amounts)]
    count, place = len(entries.nodes), entries.place
    counts = np.zeros(len(place), dtype=np.bool_)
    counts[entries.first] = True  # the first of a node is looked at in any case
    for resource, lack in enumerate(lacks):
        freed = entries.amounts[:, resource]
        before = np.cumsum(freed) - freed
        # what was freed before the node's own entries counts for nothing
        counts |= (lack + before[entries.first])[place] > before
    place, unit = place[counts], entries.unit[counts]
    short = np.zeros(count, dtype=np.bool_)
    for resource, lack in enumerate(lacks):
        short |= lack > np.bincount(place, entries.amounts[counts, resource], count)
    begins = np.flatnonzero(np.diff(place, prepend=-1))
    priority = np.maximum(np.maximum.reduceat(entries.priority[unit], begins), _LOWEST)
    oldest = np.minimum.reduceat(entries.order[unit], begins)
    cost = np.bincount(place, entries.cost[unit], count)
    gpus = np.bincount(place, entries.total[unit, ledgers.GPU], count)
    below = _below(ledger, [q if q != wanted.queue else -1 for q in queues], entries, place, unit)
    used = np.bincount(place, minlength=count)
    return [short, priority, below, cost, gpus, used, -oldest, entries.nodes]


def ascending(keys: Sequence[NDArray[Any]], rows: NDArray[np.intp]) -> Iterator[int]:
    """Rows in the order of several keys, what counts most first; as far as they are asked for."""
    while len(rows) > PORTION and len(keys) > 1:
        values = keys[0][rows]
        bar = np.partition(values, PORTION)[PORTION]
        yield from ascending(keys, rows[values < bar])
        yield from ascending(keys[1:], rows[values == bar])
        rows = rows[values > bar]
    yield from rows[np.lexsort([key[rows] for key in reversed(keys)])].tolist()


def _below(
    ledger: ledgers.Ledger,
    queues: Sequence[int],
    entries: _Entries,
    place: NDArray[np.intp],
    unit: NDArray[np.int64],
) -> NDArray[np.float64]:
    """(p,) how much of what they may keep queues would lose on each node that work waits for.

    ``queues``: of each source, -1 for none that has a share to keep.
    """
    source = entries.source[unit]
    pair = place * len(queues) + source  # ascending, as sources are in turn on each node
    begins = np.flatnonzero(np.diff(pair, prepend=-1))
    pairs, lost = pair[begins], np.add.reduceat(entries.total[unit], begins, axis=0)
    bounds = np.array(
        [
            [
                max(ledger.may_keep(queue)[r] - ledger.used(queue, r), -snapshots.UNLIMITED)
                if queue >= 0 and ledger.rationed[queue][r]
                else -snapshots.UNLIMITED
                for r in ledger.resources
            ]
            for queue in queues
        ],
        dtype=np.int64,
    )
    waiting = np.array(
        [[ledger.waiting(q, r) if q >= 0 else 0 for r in ledger.resources] for q in queues],
        dtype=np.int64,
    )
    of = pairs % len(queues)
    short = np.minimum(np.clip(bounds[of] + lost, 0, lost), waiting[of]).sum(axis=1)
    below = np.bincount(pairs // len(queues), short, len(entries.nodes))
    return below.astype(np.float64)
