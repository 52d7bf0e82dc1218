"""Victims node by node: the node first that makes room for a task at the least cost.

Units that may leave come in, queue by queue in the order in which each queue should lose them; they
go out in the order of the nodes that they are on. What every node would cost is worked out for all
nodes at once, on columns; only of the nodes that are really asked for units are looked at.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling import ledger as ledgers
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling import victims as pools

#: Less than any priority.
_LOWEST = -(10**9)


class Wanted(NamedTuple):
    """Who asks, and what for.

    Attributes:
        queue: its row; among its own units there are no shares to fall below.
        amounts: what one task asks for.
        free: (n, 3) what nodes have.
        eligible, usable: (n,) nodes that it may go to, and of them those that accept work.
    """

    queue: int
    amounts: snapshots.Vector
    free: snapshots.Amounts
    eligible: snapshots.Mask
    usable: snapshots.Mask


class _Entries:
    """Units of several queues on their nodes, sorted by node, on each in the order given.

    Attributes:
        units: in the order given.
        unit, node, amounts: of each entry, as in ``victims.Ordered``.
        first: where each node's entries begin. place: number of the node of each entry.
        nodes: rows of the nodes, ascending.
    """

    def __init__(self, sources: Sequence[pools.Ordered], wanted: Wanted) -> None:
        self.units = [unit for source in sources for unit in source.units]
        starts = np.cumsum([0] + [len(source.units) for source in sources[:-1]])
        unit = np.concatenate(
            [source.unit + start for source, start in zip(sources, starts.tolist(), strict=True)]
        )
        node = np.concatenate([source.node for source in sources])
        amounts = np.concatenate([source.amounts for source in sources])
        self.total = np.concatenate([source.total for source in sources])
        self.cost = np.concatenate([source.cost for source in sources])
        self.priority = np.concatenate([source.priority for source in sources])
        self.order = np.concatenate([source.order for source in sources])
        sizes = [len(source.units) for source in sources]
        self.source = np.repeat(np.arange(len(sources)), sizes)
        # A unit none of whose nodes may be used frees nothing for the ask.
        helps = np.bincount(unit, wanted.usable[node], len(self.units)) > 0
        kept = helps[unit] & wanted.eligible[node]
        unit, node, amounts = unit[kept], node[kept], amounts[kept]
        ranked = np.argsort(node, kind="stable")
        self.unit, self.node, self.amounts = unit[ranked], node[ranked], amounts[ranked]
        self.nodes, self.first, self.place = np.unique(
            self.node, return_index=True, return_inverse=True
        )

    def members(self, place: int) -> list[pools.Unit]:
        """Units on a node, in the order given."""
        end = self.first[place + 1] if place + 1 < len(self.first) else len(self.unit)
        return [self.units[at] for at in self.unit[self.first[place] : end].tolist()]


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
    ranked = _ranked(ledger, queues, wanted, entries)
    seen: set[tuple[int, int]] = set()
    for place in ranked.tolist():
        fresh = [unit for unit in entries.members(place) if unit.key not in seen]
        seen.update(unit.key for unit in fresh)
        yield from pools.furthest_first(
            ledger, [unit for unit in fresh if unit.holding.queue != own]
        )
        yield from (unit for unit in fresh if unit.holding.queue == own)


def _ranked(
    ledger: ledgers.Ledger,
    queues: Sequence[int],
    wanted: Wanted,
    entries: _Entries,
) -> NDArray[np.intp]:
    """The nodes' numbers, the cheapest first."""
    lacks = np.array(wanted.amounts, dtype=np.int64) - wanted.free[entries.nodes]
    count, place = len(entries.nodes), entries.place
    freed = np.cumsum(entries.amounts, axis=0)
    before = freed - entries.amounts
    before -= before[entries.first][place]
    counts = (lacks[place] > before).any(axis=1)
    counts[entries.first] = True  # the first of a node is looked at in any case
    place, unit = place[counts], entries.unit[counts]
    amounts = np.column_stack(
        [np.bincount(place, entries.amounts[counts, r], count) for r in ledgers.RESOURCES]
    )
    short = (lacks > amounts).any(axis=1)
    begins = np.flatnonzero(np.diff(place, prepend=-1))
    priority = np.maximum(np.maximum.reduceat(entries.priority[unit], begins), _LOWEST)
    oldest = np.minimum.reduceat(entries.order[unit], begins)
    cost = np.bincount(place, entries.cost[unit], count)
    gpus = np.bincount(place, entries.total[unit, ledgers.GPU], count)
    below = _below(ledger, [q if q != wanted.queue else -1 for q in queues], entries, place, unit)
    used = np.bincount(place, minlength=count)
    keys = (entries.nodes, -oldest, used, gpus, cost, below, priority, short)
    return np.lexsort(keys)


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
    pairs, inverse = np.unique(place * len(queues) + source, return_inverse=True)
    lost = np.zeros((len(pairs), 3), dtype=np.int64)
    np.add.at(lost, inverse, entries.total[unit])
    bounds = np.array(
        [
            [
                max(ledger.may_keep(queue)[r] - ledger.used(queue, r), -snapshots.UNLIMITED)
                if queue >= 0 and ledger.rationed[queue][r]
                else -snapshots.UNLIMITED
                for r in ledgers.RESOURCES
            ]
            for queue in queues
        ],
        dtype=np.int64,
    )
    waiting = np.array(
        [[ledger.waiting(q, r) if q >= 0 else 0 for r in ledgers.RESOURCES] for q in queues],
        dtype=np.int64,
    )
    of = pairs % len(queues)
    short = np.minimum(np.clip(bounds[of] + lost, 0, lost), waiting[of]).sum(axis=1)
    below = np.bincount(pairs // len(queues), short, len(entries.nodes))
    return below.astype(np.float64)
