"""Nodes and queues as the scheduler's columns: what there is, what is taken, who owns what.

Pools and records come in; read-only arrays go out, nodes in order of name, queues as the
structure has them. What many nodes have in common is worked out once for their pool.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconciler.core import work as desk
from reconciler.model import desired
from reconciler.model.states import NodeState
from reconciler.scheduling import snapshot as columns
from reconciler.scheduling.snapshot import UNLIMITED, WHOLE

#: The most devices of a node that are told apart.
DEVICES_MAX = 1024


@dataclass(frozen=True, slots=True)
class Nodes:
    """The columns of nodes with what else is asked of them.

    Attributes:
        names: names in order; row_of: name to row.
        pool_of: (n,) index into ``pools``, -1 for none.
        pools: the pools in order of name.
        profiles: names of MIG profiles; levels: of topology levels.
    """

    columns: columns.NodeColumns
    names: tuple[str, ...]
    row_of: Mapping[str, int]
    pool_of: NDArray[np.int64]
    pools: tuple[desired.Pool, ...]
    profiles: tuple[str, ...]
    levels: tuple[str, ...]

    def profile_of(self, name: str) -> int:
        """Index of a MIG profile, -1 for none."""
        return self.profiles.index(name) if name in self.profiles else -1

    def level_of(self, name: str) -> int:
        """Index of a topology level; ``NO_LEVEL`` for none."""
        return self.levels.index(name) if name in self.levels else columns.NO_LEVEL


def nodes(
    work: desk.Work, wanted_profiles: Iterable[str], exclusive_of: Mapping[str, bool]
) -> Nodes:
    """Every node as it is now.

    Args:
        work: the desk.
        wanted_profiles: MIG profiles that work asks for, beside those that pools have.
        exclusive_of: for jobs that hold something whether they have their nodes to themselves.
    """
    structure = work.desired.structure
    names = tuple(work.node_names())
    pools = tuple(structure.pools[name] for name in sorted(structure.pools))
    index = {pool.name: number for number, pool in enumerate(pools)}
    pool_of = np.full(len(names), -1, dtype=np.int64)
    accepts = np.zeros(len(names), dtype=np.bool_)
    for row, name in enumerate(names):
        node = work.node(name)
        if node is not None:
            pool_of[row] = index.get(node.pool, -1)
            accepts[row] = node.state is NodeState.READY and pool_of[row] >= 0
    profiles = _profiles(pools, wanted_profiles)
    row_of = {name: row for row, name in enumerate(names)}
    capacity, devices, instances = _capacity(pools, pool_of, profiles)
    free, devices, instances, occupied, exclusive = _taken(
        work, row_of, capacity, devices, instances, profiles, exclusive_of
    )
    memory = _per_pool([pool.gpu_memory_bytes or 0 for pool in pools], pool_of, 0)
    shareable = _per_pool([int(pool.shareable) for pool in pools], pool_of, 0).astype(np.bool_)
    levels = structure.levels()
    made = columns.NodeColumns(
        names=names,
        capacity=capacity,
        free=free,
        accepts=accepts,
        devices=devices,
        device_memory=memory,
        instances=instances,
        domains=_domains(names, pools, pool_of, levels),
        shareable=shareable,
        occupied=occupied,
        exclusive=exclusive,
    )
    for array in (capacity, free, accepts, devices, memory, instances, made.domains, shareable):
        array.setflags(write=False)
    return Nodes(made, names, row_of, pool_of, pools, profiles, levels)


def _profiles(pools: Sequence[desired.Pool], wanted: Iterable[str]) -> tuple[str, ...]:
    found = {name for pool in pools for layout in pool.mig for name, _ in layout.instances}
    return tuple(sorted(found | set(wanted)))


def _per_pool(
    values: Sequence[int], pool_of: NDArray[np.int64], otherwise: int
) -> NDArray[np.int64]:
    """A column whose values are those of each node's pool."""
    table = np.array([*values, otherwise], dtype=np.int64)
    return table[pool_of]  # -1 is the last: no pool


def _capacity(
    pools: Sequence[desired.Pool], pool_of: NDArray[np.int64], profiles: tuple[str, ...]
) -> tuple[columns.Amounts, columns.Amounts, columns.Amounts]:
    """Amounts, devices and MIG instances of each node when nothing runs on it."""
    counts = [min(DEVICES_MAX, pool.node_resources.gpu_milli // WHOLE) for pool in pools]
    width = max(counts, default=0)
    amounts = np.zeros((len(pools) + 1, 3), dtype=np.int64)
    devices = np.full((len(pools) + 1, width), -1, dtype=np.int64)
    instances = np.zeros((len(pools) + 1, len(profiles)), dtype=np.int64)
    for number, pool in enumerate(pools):
        amounts[number] = pool.promised().as_vector()
        devices[number, : counts[number]] = WHOLE
        for layout in pool.mig:
            if layout.device < counts[number]:
                devices[number, layout.device] = -1
            for name, count in layout.instances:
                instances[number, profiles.index(name)] += count
    return amounts[pool_of], devices[pool_of], instances[pool_of]


def _taken(  # noqa: PLR0917 - one pass over all that runs fills all of these
    work: desk.Work,
    row_of: Mapping[str, int],
    capacity: columns.Amounts,
    devices: columns.Amounts,
    instances: columns.Amounts,
    profiles: tuple[str, ...],
    exclusive_of: Mapping[str, bool],
) -> tuple[columns.Amounts, columns.Amounts, columns.Amounts, NDArray[np.int64], columns.Mask]:
    """What attempts that have not ended leave of it."""
    rows: list[int] = []
    cpu: list[int] = []
    memory: list[int] = []
    shares: list[tuple[int, int, int]] = []
    elements: set[tuple[int, str, int]] = set()
    width = devices.shape[1]
    for attempt in work.live_attempts():
        row = row_of.get(attempt.node)
        if row is None:
            continue
        has = attempt.resources
        rows.append(row)
        cpu.append(has.cpu_milli)
        memory.append(has.memory_bytes)
        elements.add((row, attempt.job, attempt.element))
        if attempt.devices:
            share = attempt.share_milli
            shares += [(row, device, share) for device in attempt.devices if device < width]
        elif attempt.mig_profile in profiles:
            instances[row, profiles.index(attempt.mig_profile)] -= len(attempt.instances)
    free = capacity.copy()
    at = np.array(rows, dtype=np.int64)
    np.subtract.at(free[:, 0], at, np.array(cpu, dtype=np.int64))
    np.subtract.at(free[:, 1], at, np.array(memory, dtype=np.int64))
    if shares:
        row_column, device_column, share_column = np.array(shares, dtype=np.int64).T
        there = devices[row_column, device_column] >= 0
        found = (row_column[there], device_column[there])
        np.subtract.at(devices, found, share_column[there])
        devices[found] = np.maximum(devices[found], 0)
    np.maximum(instances, 0, out=instances)
    free[:, 2] = np.maximum(devices, 0).sum(axis=1)
    np.maximum(free, 0, out=free)
    occupied = np.zeros(len(capacity), dtype=np.int64)
    exclusive = np.zeros(len(capacity), dtype=np.bool_)
    if elements:
        np.add.at(occupied, np.array([one[0] for one in elements], dtype=np.int64), 1)
        for row, job, _ in elements:
            if exclusive_of.get(job):
                exclusive[row] = True
    return free, devices, instances, occupied, exclusive


def _domains(
    names: tuple[str, ...],
    pools: Sequence[desired.Pool],
    pool_of: NDArray[np.int64],
    levels: tuple[str, ...],
) -> NDArray[np.int64]:
    """Ids of domains: the same path of names is the same domain, also across pools."""
    found = np.full((len(names), len(levels)), -1, dtype=np.int64)
    if not levels:
        return found
    ids: list[dict[tuple[tuple[str, str], ...], int]] = [{} for _ in levels]
    column = {level: number for number, level in enumerate(levels)}
    for row, name in enumerate(names):
        if pool_of[row] < 0:
            continue
        pool = pools[pool_of[row]]
        path: tuple[tuple[str, str], ...] = ()
        for level, domain in zip(pool.levels, pool.domains.get(name, ()), strict=False):
            path = (*path, (level, domain))
            known = ids[column[level]]
            found[row, column[level]] = known.setdefault(path, len(known))
    return found


# --- queues ---------------------------------------------------------------------------------


def queues(
    work: desk.Work,
    allocated: Mapping[str, NDArray[np.int64]],
    firm: Mapping[str, NDArray[np.int64]],
    usage: Mapping[str, float],
) -> columns.QueueColumns:
    """The tree of queues with what each has taken.

    Args:
        work: the desk.
        allocated, firm: amounts by queue, without those of queues below it.
        usage: faded use of a queue and all below it as a share of what there was to give.
    """
    tree = work.desired.structure.queues
    names = tuple(tree)
    index = {name: row for row, name in enumerate(names)}
    parent = np.array(
        [-1 if q.parent is None else index.get(q.parent, -1) for q in tree.values()],
        dtype=np.int64,
    )
    guaranteed = _guaranteed(tree, parent)
    rationed = _rationed(tree, guaranteed)
    somebody = (guaranteed > 0).any(axis=0)
    columns_of = {
        "guaranteed": guaranteed,
        "firm_limit": np.where(somebody & rationed, guaranteed, UNLIMITED),
        "rationed": rationed,
        "limit": _bounds([q.limit for q in tree.values()], UNLIMITED),
        "lending": _bounds([q.lending_limit for q in tree.values()], UNLIMITED),
        "weight": np.array([q.weight for q in tree.values()], dtype=np.float64),
        "priority": np.array([q.priority for q in tree.values()], dtype=np.int64),
        "allocated": _summed(names, parent, allocated),
        "firm": _summed(names, parent, firm),
        "usage": np.array([usage.get(name, 0.0) for name in names], dtype=np.float64),
        "suspended": np.array([q.suspend for q in tree.values()], dtype=np.bool_),
    }
    for array in (parent, *columns_of.values()):
        array.setflags(write=False)
    return columns.QueueColumns(names=names, parent=parent, **columns_of)


def _bounds(amounts: Sequence[desired.Amounts], otherwise: int) -> columns.Amounts:
    rows = [[otherwise if a is None else a for a in one.as_vector()] for one in amounts]
    return np.array(rows, dtype=np.int64).reshape(len(rows), 3)


def _guaranteed(tree: Mapping[str, desired.Queue], parent: NDArray[np.int64]) -> columns.Amounts:
    """What is guaranteed; a parent that does not say has the sum of its children."""
    found = _bounds([q.guaranteed for q in tree.values()], 0)
    said = [[a is not None for a in q.guaranteed.as_vector()] for q in tree.values()]
    for row in range(len(found) - 1, -1, -1):  # parents stand before children: sum upwards
        above = parent[row]
        if above < 0:
            continue
        for resource in range(3):
            if not said[above][resource]:
                total = int(found[above, resource]) + int(found[row, resource])
                found[above, resource] = min(total, UNLIMITED)
    return found


def _rationed(tree: Mapping[str, desired.Queue], guaranteed: columns.Amounts) -> columns.Mask:
    """In which resources a queue's share is measured: in GPUs always, else where it names them.

    A queue that names nothing at all owns nothing: whatever anyone names is rationed there.
    """
    named = [
        [g is not None or m is not None for g, m in zip(*_said(q), strict=True)]
        for q in tree.values()
    ]
    somebody = [any(row[resource] for row in named) for resource in range(3)]
    found = np.array(
        [
            [
                row[resource] or (not any(row) and somebody[resource]) or resource == 2
                for resource in range(3)
            ]
            for row in named
        ],
        dtype=np.bool_,
    ).reshape(len(named), 3)
    return found & (guaranteed < UNLIMITED)


def _said(
    queue: desired.Queue,
) -> tuple[tuple[int | None, int | None, int | None], tuple[int | None, int | None, int | None]]:
    return queue.guaranteed.as_vector(), queue.lending_limit.as_vector()


def _summed(
    names: tuple[str, ...],
    parent: NDArray[np.int64],
    own: Mapping[str, NDArray[np.int64]],
) -> columns.Amounts:
    found = np.zeros((len(names), 3), dtype=np.int64)
    for row, name in enumerate(names):
        if name in own:
            found[row] += own[name]
    for row in range(len(names) - 1, -1, -1):
        if parent[row] >= 0:
            found[parent[row]] += found[row]
    return found
