"""Amounts by pool: a snapshot comes in, and the same comes out with three more resources a pool.

Rows of amounts of queues grow by (cpu, memory, gpu) for each pool of which somebody has amounts of
its own, and work that may go to several of these pools gets a shape for each, to be tried in order.
The rest of the scheduler knows of resources by number alone. Where nobody names a pool the
snapshot comes out as it was.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.model.state import pending_reasons
from reconciler.scheduling.inputs import pending_groups, snapshots
from reconciler.scheduling.inputs.arrays import UNLIMITED, Amounts, Charge, Vector

#: CPU, memory, GPU.
BASE = 3
#: In no pool with amounts of its own.
REST = -1


def pool_of(resource: int) -> int:
    """Index of the pool that a resource is of, ``REST`` for those of the cluster."""
    return resource // BASE - 1


def own(pool: int) -> tuple[int, ...]:
    """The resources of a pool; none of ``REST``."""
    return () if pool < 0 else tuple(range(BASE * (pool + 1), BASE * (pool + 2)))


def charge(amounts: Vector, pool: int, width: int) -> Charge:
    """What amounts in one pool are charged in rows of ``width`` resources."""
    if width == BASE:
        return amounts
    found = [*amounts, *[0] * (width - BASE)]
    if pool >= 0:
        found[BASE * (pool + 1) : BASE * (pool + 2)] = amounts
    return tuple(found)


def total_of(situation: snapshots.Snapshot, tasks: Sequence[snapshots.TaskAllocation]) -> Charge:
    """What tasks are charged together, each where it runs."""
    cpu = memory = gpu = 0
    for task in tasks:
        cpu += task.amounts[0]
        memory += task.amounts[1]
        gpu += task.amounts[2]
    if situation.pools is None:
        return (cpu, memory, gpu)
    found = [cpu, memory, gpu, *[0] * (BASE * len(situation.pools.names))]
    for task in tasks:
        pool = int(situation.pools.of_node[task.node]) if task.node >= 0 else REST
        for resource, amount in zip(own(pool), task.amounts, strict=False):
            found[resource] += amount
    return tuple(found)


def widened(
    situation: snapshots.Snapshot, total: Amounts, node: NDArray[np.int64]
) -> snapshots.Amounts:
    """(u, w) what (u, 3) amounts are charged, each on one node; on -1 in no pool."""
    if situation.pools is None:
        return total
    count = len(situation.pools.names)
    found = np.zeros((len(total), BASE * (count + 1)), dtype=np.int64)
    found[:, :BASE] = total
    pools = np.where(node >= 0, situation.pools.of_node[node], REST)
    for pool in range(count):
        inside = pools == pool
        found[inside, BASE * (pool + 1) : BASE * (pool + 2)] = total[inside]
    return found


def within(situation: snapshots.Snapshot) -> snapshots.Snapshot:
    """The same with amounts of pools as resources, and work split by pool."""
    pools = situation.pools
    if pools is None:
        return situation
    split = _Split(situation, pools, _last.renewed(pools))
    lines, judged = (
        [split.with_others(line) for line in some] for some in (situation.lines, situation.judged)
    )
    holdings = []
    for holding in situation.holdings:
        shape = split.of_running(holding)
        same = shape == holding.shape
        holdings.append(holding if same else dataclasses.replace(holding, shape=shape))
    columns = situation.line_columns
    if columns is not None:
        numbers = np.array([line.shape for line in lines], dtype=np.int64)
        columns = dataclasses.replace(columns, shape=numbers)
    return dataclasses.replace(
        situation,
        queues=_queues(situation, pools),
        shapes=tuple(split.shapes),
        lines=tuple(lines),
        judged=tuple(judged),
        holdings=tuple(holdings),
        line_columns=columns,
    )


class _Made(NamedTuple):
    """What was split by pool, by the identity of what it was made of; that is kept beside it.

    Attributes:
        places: pools that nodes are in. masks: nodes within a pool. shapes: a shape within one.
        lines: a line with all its shapes.
    """

    places: dict[int, tuple[snapshots.Mask, frozenset[int]]]
    masks: dict[tuple[int, int], tuple[snapshots.Mask, snapshots.Mask]]
    shapes: dict[tuple[int, int], tuple[snapshots.Shape, snapshots.Shape]]
    lines: dict[int, tuple[snapshots.PendingGroup, snapshots.PendingGroup]]


class _Last:
    """What was split last: the same shapes and lines wait from cycle to cycle.

    It is replaced as a whole, so that it does not grow, and threads don't disturb each other.
    """

    def __init__(self) -> None:
        self._known: tuple[tuple[str, ...], NDArray[np.int64], _Made] | None = None

    def renewed(self, pools: snapshots.PoolColumns) -> tuple[_Made, _Made]:
        """Return what was split last by the same pools, and where to keep what is split now."""
        before, now = _Made({}, {}, {}, {}), _Made({}, {}, {}, {})
        if self._known is not None:
            names, of_node, made = self._known
            if names == pools.names and np.array_equal(of_node, pools.of_node):
                before = made
        self._known = (pools.names, pools.of_node, now)
        return before, now


_last = _Last()


class _Split:
    """Shapes by pool, each made when somebody first asks for it.

    Args:
        situation: the snapshot.
        pools: those with amounts of their own.
        made: what was split in the cycle before, and what is in this one.
    """

    def __init__(
        self,
        situation: snapshots.Snapshot,
        pools: snapshots.PoolColumns,
        made: tuple[_Made, _Made],
    ) -> None:
        self.shapes = list(situation.shapes)
        self._before, self._now = made
        self._pools = pools
        self._index = {name: number for number, name in enumerate(pools.names)}
        self._made: dict[tuple[int, int], int] = {}
        self._orders: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}

    def tried(self, line: snapshots.PendingGroup) -> tuple[int, ...]:
        """Shapes of a line in the order in which its pools are tried; never empty."""
        key = (line.shape, self._pools.order[line.queue])
        found = self._orders.get(key)
        if found is None:
            there = self._there(line.shape)
            order = [pool for pool in self._wanted(*key) if pool in there]
            found = tuple([self._in(line.shape, pool) for pool in order]) or (line.shape,)
            self._orders[key] = found
        return found

    def with_others(self, line: snapshots.PendingGroup) -> snapshots.PendingGroup:
        """A line with the shapes in which its pools are tried."""
        first, *others = self.tried(line)
        if first == line.shape and not others:
            return line
        known = self._before.lines.get(id(line))
        if (
            known is None
            or known[0] is not line
            or known[1].shape != first
            or known[1].others != tuple(others)
        ):
            known = (line, pending_groups.in_shape(line, first, tuple(others)))
        self._now.lines[id(line)] = known
        return known[1]

    def of_running(self, holding: snapshots.Allocation) -> int:
        """The shape to place an element anew by: in its pool, -1 where it is in several."""
        if holding.shape < 0:
            return holding.shape
        pools = {int(self._pools.of_node[task.node]) for task in holding.tasks if task.node >= 0}
        return self._in(holding.shape, pools.pop()) if len(pools) == 1 else -1

    def _there(self, shape: int) -> frozenset[int]:
        """Pools in which a shape has nodes that it may use now, once volumes are there, or once
        reservations are over."""
        asked = self.shapes[shape]
        found = self._places(asked.eligible)
        if asked.mountable is not None:
            found |= self._places(asked.mountable)
        return found if asked.unreserved is None else found | self._there(asked.unreserved)

    def _places(self, mask: snapshots.Mask) -> frozenset[int]:
        """Return the pools of the nodes of a mask."""
        known = self._now.places.get(id(mask)) or self._before.places.get(id(mask))
        if known is None or known[0] is not mask:
            known = (mask, frozenset(np.unique(self._pools.of_node[mask]).tolist()))
        self._now.places[id(mask)] = known
        return known[1]

    def _wanted(self, shape: int, order: tuple[int, ...]) -> Iterable[int]:
        """All pools in the order in which work is tried in them."""
        names = self.shapes[shape].pools
        if names:
            return dict.fromkeys(self._index.get(name, REST) for name in names)
        return dict.fromkeys((*order, REST, *range(len(self._pools.names))))

    def _in(self, shape: int, pool: int) -> int:
        """Index of a shape as it is in one pool."""
        number = self._made.get((shape, pool), -1)
        if number >= 0:
            return number
        old = self.shapes[shape]
        if pool == REST and self._there(shape) <= {REST}:
            self._made[shape, pool] = shape
            return shape
        number = self._made[shape, pool] = len(self.shapes)
        known = self._before.shapes.get((id(old), pool))
        if known is None or known[0] is not old:
            known = (old, self._of_pool(old, pool))
        self._now.shapes[id(old), pool] = known
        made = known[1]
        # shapes that come later with the same nodes get the same array
        self._now.masks.setdefault((id(old.eligible), pool), (old.eligible, made.eligible))
        self.shapes.append(made)
        others = (old.unreserved, old.leaving, old.evicting)
        if any(other is not None for other in others):
            inside = [None if other is None else self._in(other, pool) for other in others]
            self.shapes[number] = dataclasses.replace(
                made, unreserved=inside[0], leaving=inside[1], evicting=inside[2]
            )
        return number

    def _of_pool(self, old: snapshots.Shape, pool: int) -> snapshots.Shape:
        """Return a shape as it is in one pool; whose other forms are numbered as of the whole."""
        eligible = self._inside(old.eligible, pool)
        outside = int(old.eligible.sum()) - int(eligible.sum())
        name = self._pools.names[pool] if pool >= 0 else ""
        why = f"not in pool {name}" if name else f"in pool {' or '.join(self._pools.names)}"
        mountable = None if old.mountable is None else self._inside(old.mountable, pool)
        return dataclasses.replace(
            old,
            eligible=eligible,
            filtered=(
                *old.filtered,
                *((pending_reasons.FunnelStep(outside, why),) if outside else ()),
            ),
            mountable=mountable if mountable is not None and mountable.any() else None,
            mends=tuple([(words, self._inside(nodes, pool)) for words, nodes in old.mends]),
            form=f"{old.form}@{name}" if old.form else "",
            pool=pool,
        )

    def _inside(self, mask: snapshots.Mask, pool: int) -> snapshots.Mask:
        """Return the nodes of a mask in a pool: the very same array for the same mask."""
        key = (id(mask), pool)
        known = self._now.masks.get(key) or self._before.masks.get(key)
        if known is None or known[0] is not mask:
            known = (mask, mask & (self._pools.of_node == pool))
        self._now.masks[key] = known
        return known[1]


def _queues(situation: snapshots.Snapshot, pools: snapshots.PoolColumns) -> snapshots.QueueColumns:
    """The tree with the amounts of pools beside those of the cluster."""
    queues = situation.queues
    allocated, firm = _taken(situation, pools)
    return dataclasses.replace(
        queues,
        guaranteed=np.hstack([queues.guaranteed, *pools.guaranteed]),
        firm_limit=np.hstack([queues.firm_limit, *pools.firm_limit]),
        rationed=np.hstack([queues.rationed, *pools.rationed]),
        limit=np.hstack([queues.limit, *pools.limit]),
        lending=np.hstack([queues.lending, *pools.lending]),
        allocated=np.hstack([queues.allocated, allocated]),
        firm=np.hstack([queues.firm, firm]),
        pool_weight=pools.weight,
    )


def _taken(situation: snapshots.Snapshot, pools: snapshots.PoolColumns) -> tuple[Amounts, Amounts]:
    """(q, 3k) what queues with those below them have in pools, and of it what is firm."""
    count = len(situation.queues.names)
    taken = np.zeros((2, count, BASE * len(pools.names)), dtype=np.int64)
    for holding in situation.holdings:
        if holding.queue < 0:
            continue
        for task in holding.tasks:
            pool = int(pools.of_node[task.node]) if task.node >= 0 else REST
            if pool < 0:
                continue
            inside = slice(BASE * pool, BASE * (pool + 1))
            taken[0, holding.queue, inside] += task.amounts
            if not holding.preemptible and not task.spare:
                taken[1, holding.queue, inside] += task.amounts
    parent = situation.queues.parent.tolist()
    for queue in range(count - 1, -1, -1):  # parents stand before their children
        if parent[queue] >= 0:
            taken[:, parent[queue]] += taken[:, queue]
    return taken[0], taken[1]


def capacity(situation: snapshots.Snapshot, *, also_closed: bool = False) -> Charge:
    """What nodes in service have, in the cluster and in each pool as far as it is not capped.

    ``also_closed``: and what nodes have that take no work for the moment.
    """
    nodes, pools = situation.nodes, situation.pools
    counted = nodes.accepts | also_closed
    found = nodes.capacity[counted].sum(axis=0).tolist()
    if pools is None:
        return tuple(found)
    for pool in range(len(pools.names)):
        inside = counted & (pools.of_node == pool)
        whole = nodes.capacity[inside].sum(axis=0)
        found += np.minimum(whole, pools.cap[pool]).tolist()
    return tuple(found)


def caps(situation: snapshots.Snapshot) -> Charge:
    """What all work together may have; ``UNLIMITED`` where nothing caps it; empty: no caps."""
    pools = situation.pools
    if pools is None or bool((pools.cap >= UNLIMITED).all()):
        return ()
    return (*[UNLIMITED] * BASE, *pools.cap.reshape(-1).tolist())
