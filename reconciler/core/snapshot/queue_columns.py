"""Queues as the scheduler's columns: quota and use, in the cluster and by pool.

The structure and what each queue holds come in; read-only columns go out, queues in the order of
the structure. What follows from the structure alone is computed once.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from reconciler.core import cycle_cache, overrides
from reconciler.core.snapshot import node_columns
from reconciler.model import desired
from reconciler.model.rules import guarantees
from reconciler.model.state import records
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import UNLIMITED


class _Tree(cycle_cache.CachePart):
    """A cache of what follows from the structure alone."""

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self._structure: desired.Structure | None = None

    def of(self, structure: desired.Structure) -> snapshots.QueueColumns:
        """Return the columns without use."""
        if self._structure is not structure:
            self._structure = structure
            self._made = _tree(structure.queues, structure.settings.scheduling.min_runtime_s)
        return self._made


def queues(
    cache: cycle_cache.CycleCache,
    structure: desired.Structure,
    in_force: Iterable[records.Override],
    *,
    allocated: Mapping[str, Sequence[int]],
    firm: Mapping[str, Sequence[int]],
    usage: Mapping[str, float],
) -> snapshots.QueueColumns:
    """Return the tree of queues with the use of each.

    Args:
        cache: of earlier cycles.
        structure: in force.
        in_force: overrides. They name who suspended a queue.
        allocated: amounts by queue, without queues below it.
        firm: the same of work that is not preemptible.
        usage: decayed use of a queue and all below it, as a share of what was offered.
    """
    columns = cache.part(_Tree).of(structure)
    taken = _summed(columns.names, columns.parent, allocated)
    sure = _summed(columns.names, columns.parent, firm)
    faded = np.array([usage.get(name, 0.0) for name in columns.names], dtype=np.float64)
    for array in (taken, sure, faded):
        array.setflags(write=False)
    behind_git = {
        one.subject.removeprefix(records.SUSPENDED_QUEUE): overrides.describe(one)
        for one in in_force
        if one.verb == "suspend" and one.subject.startswith(records.SUSPENDED_QUEUE)
    }
    return dataclasses.replace(
        columns, allocated=taken, firm=sure, usage=faded, suspended_by=behind_git
    )


def _tree(tree: Mapping[str, desired.Queue], min_runtime_s: int = 0) -> snapshots.QueueColumns:
    """Return the columns; ``min_runtime_s`` is for queues that do not name one."""
    names = tuple(tree)
    above = guarantees.parents(tree)
    parent = np.array(above, dtype=np.int64)
    guaranteed = _guaranteed(tree, above)
    rationed = _rationed(tree, guaranteed)
    somebody = (guaranteed > 0).any(axis=0)
    nothing = np.zeros_like(guaranteed)
    said_s = [queue.min_runtime_s for queue in tree.values()]
    runtimes_s = [min_runtime_s if own_s is None else own_s for own_s in said_s]
    columns_of = {
        "guaranteed": guaranteed,
        "firm_limit": np.where(somebody & rationed, guaranteed, UNLIMITED),
        "rationed": rationed,
        "limit": _bounds([q.limit for q in tree.values()], UNLIMITED),
        "lending": _bounds([q.lending_limit for q in tree.values()], UNLIMITED),
        "weight": np.array([q.weight for q in tree.values()], dtype=np.float64),
        "priority": np.array([q.priority for q in tree.values()], dtype=np.int64),
        "allocated": nothing,
        "firm": nothing,
        "usage": np.zeros(len(names)),
        "suspended": np.array([q.suspend for q in tree.values()], dtype=np.bool_),
        "strict": np.array([q.strict for q in tree.values()], dtype=np.bool_),
        "min_runtime_s": np.array(runtimes_s, dtype=np.float64),
    }
    for array in (parent, *columns_of.values()):
        array.setflags(write=False)
    return snapshots.QueueColumns(names=names, parent=parent, suspended_by={}, **columns_of)


def _bounds(amounts: Sequence[desired.QuotaAmounts], otherwise: int) -> snapshots.Amounts:
    rows = [[otherwise if a is None else a for a in one.as_vector()] for one in amounts]
    return np.array(rows, dtype=np.int64).reshape(len(rows), 3)


def _guaranteed(tree: Mapping[str, desired.Queue], above: Sequence[int]) -> snapshots.Amounts:
    """Return the guaranteed amounts that are numbers."""
    rows = [
        [min(amount, UNLIMITED) for amount in row] for row in guarantees.guaranteed(tree, above)
    ]
    return np.array(rows, dtype=np.int64).reshape(len(rows), 3)


def _rationed(tree: Mapping[str, desired.Queue], guaranteed: snapshots.Amounts) -> snapshots.Mask:
    """Return the resources in which a queue's share is measured."""
    found = np.array(guarantees.rationed(tree), dtype=np.bool_).reshape(len(guaranteed), 3)
    return found & (guaranteed < UNLIMITED)


def _summed(
    names: tuple[str, ...],
    parent: NDArray[np.int64],
    own: Mapping[str, Sequence[int]],
) -> snapshots.Amounts:
    rows = [list(own.get(name, (0, 0, 0))) for name in names]
    above = parent.tolist()
    for row in range(len(names) - 1, -1, -1):
        if above[row] >= 0:
            for resource in range(3):
                rows[above[row]][resource] += rows[row][resource]
    return np.array(rows, dtype=np.int64).reshape(len(rows), 3)


# --- by pool --------------------------------------------------------------------------------


class _Pools(cycle_cache.CachePart):
    """A cache of amounts by pool, while structure and nodes stay the same."""

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self._of: tuple[desired.Structure, NDArray[np.int64]] | None = None
        self._made: snapshots.PoolColumns | None = None

    def of(
        self, structure: desired.Structure, nodes: node_columns.NodeTable
    ) -> snapshots.PoolColumns | None:
        """Return the amounts by pool; None if no queue or quota names a pool."""
        known = self._of
        if known is None or known[0] is not structure or known[1] is not nodes.pool_of:
            self._of = (structure, nodes.pool_of)
            names = [pool.name for pool in nodes.pools]
            quotas = structure.quotas.values()
            self._made = by_pool(structure.queues, quotas, names, nodes.pool_of)
        return self._made


def pools(
    cache: cycle_cache.CycleCache, structure: desired.Structure, nodes: node_columns.NodeTable
) -> snapshots.PoolColumns | None:
    """Return the cached amounts of queues and quotas by pool; None if nobody names a pool."""
    return cache.part(_Pools).of(structure, nodes)


def by_pool(
    tree: Mapping[str, desired.Queue],
    quotas: Collection[desired.Quota],
    pools: Sequence[str],
    pool_of: NDArray[np.int64],
) -> snapshots.PoolColumns | None:
    """Return the amounts of queues and quotas by pool; None if nobody names a pool.

    Args:
        tree: queues, parents before children.
        quotas: all of them.
        pools: names of pools.
        pool_of: (n,) index into ``pools`` of each node, -1 for none.
    """
    named = {flavor.pool for queue in tree.values() for flavor in queue.flavors}
    named |= {quota.pool for quota in quotas if quota.pool}
    names = tuple(sorted(named))
    if not names:
        return None
    columns = [_in_pool(tree, name) for name in names]
    rows = {name: number for number, name in enumerate(names)}
    table = np.array([*[rows.get(pool, -1) for pool in pools], -1], dtype=np.int64)
    caps = [_cap(quotas, name) for name in names]
    return snapshots.PoolColumns(
        names=names,
        of_node=table[pool_of],
        guaranteed=np.array([one.guaranteed for one in columns]),
        firm_limit=np.array([one.firm_limit for one in columns]),
        rationed=np.array([one.rationed for one in columns]),
        limit=np.array([one.limit for one in columns]),
        lending=np.array([one.lending for one in columns]),
        weight=np.column_stack([one.weight for one in columns]),
        cap=np.array([cap for cap, _ in caps], dtype=np.int64),
        capped_by=tuple([quota for _, quota in caps]),
        order=tuple([_order(tree, name, rows) for name in tree]),
    )


def _in_pool(tree: Mapping[str, desired.Queue], pool: str) -> snapshots.QueueColumns:
    """Return the tree as if this pool was the cluster.

    Its GPUs are shared by measure as soon as anybody is guaranteed some, lends them by measure, or
    has a weight there. Limits alone do not cause that.
    """
    flavors = {
        name: next((one for one in queue.flavors if one.pool == pool), desired.QueueFlavor(pool))
        for name, queue in tree.items()
    }
    there = {
        name: desired.Queue(
            name,
            parent=queue.parent,
            guaranteed=flavors[name].guaranteed,
            limit=flavors[name].limit,
            lending_limit=flavors[name].lending_limit,
            weight=queue.weight if flavors[name].weight is None else flavors[name].weight or 0.0,
        )
        for name, queue in tree.items()
    }
    columns = _tree(there)
    nothing = desired.QuotaAmounts()
    shared = any(
        one.weight is not None or one.guaranteed != nothing or one.lending_limit != nothing
        for one in flavors.values()
    )
    if shared:
        return columns
    unbound = np.full_like(columns.firm_limit, UNLIMITED)
    return dataclasses.replace(
        columns, rationed=np.zeros_like(columns.rationed), firm_limit=unbound
    )


def _cap(quotas: Iterable[desired.Quota], pool: str) -> tuple[list[int], str]:
    """Return what all work may have in a pool, and the first quota by name that says so."""
    found, name = [UNLIMITED] * 3, ""
    for quota in quotas:
        if quota.pool == pool:
            amounts = [UNLIMITED if a is None else a for a in quota.resources.as_vector()]
            if any(new < old for new, old in zip(amounts, found, strict=True)):
                name = f"{name} and {quota.name}" if name else quota.name
            found = [min(new, old) for new, old in zip(amounts, found, strict=True)]
    return found, name


def _order(
    queues: Mapping[str, desired.Queue], name: str, rows: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the pools of a queue's flavors, or of the nearest ancestor's that has any."""
    for queue in desired.path_to_root(queues, name):
        flavors = queues[queue].flavors
        if flavors:
            return tuple([rows[flavor.pool] for flavor in flavors])
    return ()
