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

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.preemption import victims
from reconciler.scheduling.quota import quota_ledger

#: Less than any priority.
_LOWEST = -(10**9)
#: So many nodes are put in order at once: rarely is one looked at beyond the first few.
PORTION = 64


class PreemptionDemand(NamedTuple):
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
    resources: tuple[int, ...]


class _Entries:
    """Units of several queues on their nodes, in the order given.

    Attributes:
        unit, node, amounts: of each entry, as in ``victims.Ordered``; units are numbered in the
            order given.
        total, cost, priority, order, source: of each unit; the last is the number of its source.
    """

    def __init__(self, sources: Sequence[victims.Ordered], wanted: PreemptionDemand) -> None:
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
        self.unit, self.node, self.amounts = unit[kept], node[kept], amounts[kept]

    def are_enough(self, wanted: PreemptionDemand) -> snapshots.Mask:
        """(e,) entries on nodes that have room for a task once all units there have left."""
        enough: snapshots.Mask = np.ones(len(wanted.free), dtype=np.bool_)
        for resource, amount in enumerate(wanted.amounts):
            freed = np.bincount(self.node, self.amounts[:, resource], len(enough))
            enough &= amount - wanted.free[:, resource] <= freed
        found: snapshots.Mask = enough[self.node]
        return found

    def made(self, at: int) -> victims.Victim:
        """A unit by its number."""
        source = int(self.source[at])
        ordered = self._sources[source]
        return ordered.units.unit(int(ordered.place[at - self._starts[source]]))


class _Sorted:
    """Some of the entries sorted by node, on each in the order given.

    Attributes:
        unit, amounts: as of ``entries``.
        first: where each node's entries begin. place: number of the node of each entry.
        nodes: rows of the nodes, ascending.
    """

    def __init__(self, entries: _Entries, some: snapshots.Mask, count: int) -> None:
        """``count``: of all nodes."""
        self.entries = entries
        chosen = np.flatnonzero(some)
        # In few bits a stable sort is by radix, and several times faster.
        node = entries.node[chosen].astype(np.min_scalar_type(count))
        chosen = chosen[np.argsort(node, kind="stable")]
        self.unit, self.amounts, node = (
            entries.unit[chosen],
            entries.amounts[chosen],
            entries.node[chosen],
        )
        begins = np.diff(node, prepend=-1) != 0
        self.first = np.flatnonzero(begins)
        self.place = np.cumsum(begins) - 1
        self.nodes = node[self.first]

    def members(self, place: int) -> list[int]:
        """Numbers of the units on a node, in the order given."""
        end = self.first[place + 1] if place + 1 < len(self.first) else len(self.unit)
        found: list[int] = self.unit[self.first[place] : end].tolist()
        return found


class _Leaving:
    """Which of the units may leave, as the accounts stand at the moment.

    Attributes:
        units: (u,) of each as it is numbered in ``_Entries``.
    """

    def __init__(
        self,
        ledger: quota_ledger.QuotaLedger,
        queues: Sequence[int],
        sources: Sequence[victims.Ordered],
        may: victims.MayLeave,
    ) -> None:
        self._ledger, self._may = ledger, may
        self._sources = list(zip(queues, sources, strict=True))
        self._look()

    def _look(self) -> None:
        """Ask of all of them."""
        self._version = self._ledger.version
        masks = [self._may(queue)[source.place] for queue, source in self._sources]
        self.units = np.concatenate([np.zeros(0, dtype=np.bool_), *masks])

    def is_empty(self) -> bool:
        """Return True if none of them may leave."""
        return not self.units.any()

    def of(self, numbers: list[int]) -> list[int]:
        """Those of some that may leave now."""
        if self._ledger.version != self._version:
            self._look()
        return [number for number in numbers if self.units[number]]


class _Spare(NamedTuple):
    """What queues may lose as things stand before any of them loses something.

    Attributes:
        over: (q, w) what each source's queue has above what it may keep, negated: below 0 it is
            that much; where it has no share to keep, far below.
        waiting: (q, w) what waits in it to take that back.
    """

    over: snapshots.Amounts
    waiting: snapshots.Amounts

    @classmethod
    def of(cls, ledger: quota_ledger.QuotaLedger, queues: Sequence[int]) -> "_Spare":
        """``queues``: of each source, -1 for none that has a share to keep."""
        over = np.array(
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
        return cls(over, waiting)


def taken(
    ledger: quota_ledger.QuotaLedger,
    queues: Sequence[int],
    sources: Sequence[victims.Ordered],
    wanted: PreemptionDemand,
    may: victims.MayLeave,
) -> Iterator[victims.Victim]:
    """Units node by node, those nodes first that make room for a task at the least cost.

    Nodes on which all units together make none come last, and only then is anything worked out of
    them. Before cost comes how far the losing queues would fall below their shares while work waits
    there that would take it back. Among equals it is the node whose oldest victim is the newest. On
    each node they are counted only as far as they make room for one task.

    Args:
        ledger: the accounts.
        queues: of each source its queue.
        sources: units by queue, in the order in which the queues should lose.
        wanted: by whom.
        may: which units of a queue may leave at the moment; the others are left out.
    """
    leaving = _Leaving(ledger, queues, sources, may)
    if leaving.is_empty():
        return
    entries = _Entries(sources, wanted)
    if not entries.unit.size:
        return
    own, enough = wanted.queue, entries.are_enough(wanted)
    spare = _Spare.of(ledger, [queue if queue != own else -1 for queue in queues])
    seen: set[int] = set()
    for some in (enough, ~enough):
        if not some.any():
            continue
        there = _Sorted(entries, some, len(wanted.free))
        keys = _keys(wanted, spare, there)
        for place in ascending(keys, np.arange(len(there.nodes))):
            members = [at for at in there.members(place) if at not in seen]
            seen.update(members)
            fresh = [entries.made(at) for at in leaving.of(members)]
            if leaving.is_empty():
                return
            yield from _furthest_first(
                ledger, [unit for unit in fresh if unit.holding.queue != own], wanted.resources
            )
            yield from (unit for unit in fresh if unit.holding.queue == own)


def _furthest_first(
    ledger: quota_ledger.QuotaLedger,
    units: list[victims.Victim],
    resources: tuple[int, ...],
) -> Iterator[victims.Victim]:
    """Units in their order, but always from the queue furthest above its share at the moment."""
    queues: dict[int, list[victims.Victim]] = {}
    for unit in reversed(units):
        queues.setdefault(unit.holding.queue, []).append(unit)
    while len(queues) > 1:
        queue = min(queues, key=lambda q: (victims.standing(ledger, q, resources), -q))
        yield queues[queue].pop()
        if not queues[queue]:
            del queues[queue]
    for rest in queues.values():
        yield from reversed(rest)


def _keys(wanted: PreemptionDemand, spare: _Spare, there: _Sorted) -> list[NDArray[Any]]:
    """Return what nodes are compared by, what counts most first."""
    entries, count, place = there.entries, len(there.nodes), there.place
    counts = np.zeros(len(place), dtype=np.bool_)
    counts[there.first] = True  # the first of a node is looked at in any case
    for resource, amount in enumerate(wanted.amounts):
        lack = amount - wanted.free[there.nodes, resource]
        freed = there.amounts[:, resource]
        before = np.cumsum(freed) - freed
        # what was freed before the node's own entries counts for nothing
        counts |= (lack + before[there.first])[place] > before
    place, unit = place[counts], there.unit[counts]
    begins = np.flatnonzero(np.diff(place, prepend=-1))
    priority = np.maximum(np.maximum.reduceat(entries.priority[unit], begins), _LOWEST)
    oldest = np.minimum.reduceat(entries.order[unit], begins)
    cost = np.bincount(place, entries.cost[unit], count)
    gpus = np.bincount(place, entries.total[unit, quota_ledger.GPU], count)
    below = _below(spare, there, place, unit)
    used = np.bincount(place, minlength=count)
    return [priority, below, cost, gpus, used, -oldest, there.nodes]


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
    spare: _Spare, there: _Sorted, place: NDArray[np.intp], unit: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(p,) how much of what they may keep queues would lose on each node that work waits for."""
    entries, count = there.entries, len(spare.over)
    source = entries.source[unit]
    pair = place * count + source  # ascending, as sources are in turn on each node
    begins = np.flatnonzero(np.diff(pair, prepend=-1))
    pairs, lost = pair[begins], np.add.reduceat(entries.total[unit], begins, axis=0)
    of = pairs % count
    short = np.minimum(np.clip(spare.over[of] + lost, 0, lost), spare.waiting[of]).sum(axis=1)
    below = np.bincount(pairs // count, short, len(there.nodes))
    return below.astype(np.float64)
