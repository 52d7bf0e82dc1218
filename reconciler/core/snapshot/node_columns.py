"""Nodes as the scheduler's columns: capacity, and what is taken of it.

Pools and records come in; read-only arrays go out, nodes in order of name. What the nodes of a pool
have in common is computed once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconciler.core import cycle_cache
from reconciler.core.cycle import cycle_nodes
from reconciler.core.jobs import running_gangs
from reconciler.core.nodes import device_locality, mismatches, unschedulable_nodes
from reconciler.model import desired
from reconciler.model.observed.devices import DEVICES_MAX, INNER_LEVELS
from reconciler.model.state import records
from reconciler.model.state.states import NodeState
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import WHOLE

_Cuts = dict[int, tuple[tuple[str, int], ...] | None]


@dataclass(frozen=True, slots=True)
class GpuDemand:
    """Requests of jobs about GPUs besides their number.

    Attributes:
        profiles: MIG profiles.
        inner: True if any requests devices that are near each other.
    """

    profiles: frozenset[str] = frozenset()
    inner: bool = False


@dataclass(frozen=True, slots=True)
class NodeTable:
    """The columns of nodes, with lookups.

    Attributes:
        names: in order.
        row_of: row by name.
        pool_of: (n,) index into ``pools``, -1 for none.
        pools: in order of name.
        profiles: names of MIG profiles.
        levels: names of topology levels.
    """

    columns: snapshots.NodeColumns
    names: tuple[str, ...]
    row_of: Mapping[str, int]
    pool_of: NDArray[np.int64]
    pools: tuple[desired.Pool, ...]
    profiles: tuple[str, ...]
    levels: tuple[str, ...]

    def profile_of(self, name: str) -> int:
        """Return the index of a MIG profile, -1 for none."""
        return self.profiles.index(name) if name in self.profiles else -1

    def level_of(self, name: str) -> int:
        """Return the index of a topology level; ``NO_LEVEL`` for none."""
        return self.levels.index(name) if name in self.levels else snapshots.NO_LEVEL


class _Kept(cycle_cache.CachePart):
    """A cache of the columns, and what they were made for.

    ``raw`` amounts are what attempts leave of the capacity, below zero if nodes have shrunk.
    """

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self.structure: desired.Structure | None = None
        self.names: tuple[str, ...] = ()
        self.row_of: Mapping[str, int] = {}
        self.profiles: tuple[str, ...] = ()
        self.pools: tuple[desired.Pool, ...] = ()
        self.pool_of: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.wants_inner = False
        self._inner: NDArray[np.int8] = np.zeros((len(INNER_LEVELS), 0, 0), dtype=np.int8)
        self._inner_is_given = False

    def renew(
        self,
        structure: desired.Structure,
        nodes: cycle_nodes.CycleNodes,
        gpu_demand: GpuDemand,
        held: running_gangs.RunningGangs,
    ) -> None:
        """Update everything by what changed, or make it again if its basis changed."""
        names = tuple(nodes.names())
        pools = tuple(structure.pools[name] for name in sorted(structure.pools))
        profiles = _profiles(pools, gpu_demand.profiles)
        changed = self.take_nodes(nodes.renewed)
        if (
            self.structure is structure
            and names == self.names
            and profiles == self.profiles
            and gpu_demand.inner == self.wants_inner
            and all(self._look(name, nodes.get(name)) for name in changed)
        ):
            self._take(held.gone, -1)
            self._take(held.come, 1)
        else:
            self.structure, self.pools, self.profiles = structure, pools, profiles
            self.names, self.row_of = names, {name: row for row, name in enumerate(names)}
            self.wants_inner = gpu_demand.inner
            self._begin(structure, names, nodes)
            self._take(held.entries.values(), 1)
        held.gone.clear()
        held.come.clear()

    def _look(self, name: str, node: records.NodeRecord | None) -> bool:
        """Read a node's state. Return True if it is still in the same pool."""
        row = self.row_of.get(name)
        if row is None:
            return True  # it was forgotten
        index = self._index.get(node.pool, -1) if node is not None else -1
        ready = node is not None and node.state is NodeState.READY
        self.accepts[row] = ready and index >= 0
        self._withhold(row, node, index)
        self._locate(row, node, index)
        self.closed.pop(row, None)
        if not self.accepts[row]:
            self.closed[row] = unschedulable_nodes.words(node)
        return index == int(self.pool_of[row])

    def _locate(self, row: int, node: records.NodeRecord | None, index: int) -> None:
        """Read which devices of a node are near each other."""
        reported_gpus = node.inventory.gpus if node is not None and index >= 0 else ()
        if not self.wants_inner or self._reported_gpus.get(row) is reported_gpus:
            return
        self._reported_gpus[row] = reported_gpus
        width = self._inner.shape[2]
        declared = self._inner_of_pool[index] if index >= 0 else (None,) * len(self._inner)
        seen = device_locality.reported(reported_gpus, width)
        rows = [
            own if by_pool is None else by_pool for by_pool, own in zip(declared, seen, strict=True)
        ]
        if any((self._inner[level, row] != now).any() for level, now in enumerate(rows)):
            if self._inner_is_given:  # snapshots keep the arrays they were given
                self._inner, self._inner_is_given = self._inner.copy(), False
            for level, now in enumerate(rows):
                self._inner[level, row] = now

    def _withhold(self, row: int, node: records.NodeRecord | None, index: int) -> None:
        """Withhold devices of a node whose MIG layout is not as declared."""
        pool = self.pools[index] if index >= 0 else None
        found = _unmade(node, pool) if node is not None and pool is not None else {}
        before = self._unmade.get(row, {})
        if found == before:
            return
        for sign, changes in ((1, before), (-1, found)):
            for device, instances in changes.items():
                if instances is None and 0 <= device < self.whole.shape[1]:
                    self._devices[row, device] += sign * WHOLE
                for name, count in instances or ():
                    self._instances[row, self.profiles.index(name)] += sign * count
                    self._absent[row, self.profiles.index(name)] -= sign * count
        self._unmade[row] = found
        if not found:
            del self._unmade[row]

    def _begin(
        self, structure: desired.Structure, names: tuple[str, ...], nodes: cycle_nodes.CycleNodes
    ) -> None:
        """Begin with empty nodes."""
        pools = self.pools
        self._index = {pool.name: number for number, pool in enumerate(pools)}
        self.pool_of = np.full(len(names), -1, dtype=np.int64)
        self.accepts = np.zeros(len(names), dtype=np.bool_)
        self.closed: dict[int, str] = {}
        for row, name in enumerate(names):
            node = nodes.get(name)
            self.pool_of[row] = self._index.get(node.pool, -1) if node is not None else -1
        self.capacity, self.whole, self._instances = _capacity(pools, self.pool_of, self.profiles)
        self.memory = _per_pool([p.gpu_memory_bytes or 0 for p in pools], self.pool_of, 0)
        shareable = _per_pool([int(pool.shareable) for pool in pools], self.pool_of, 0)
        self.shareable = shareable.astype(np.bool_)
        self.levels = structure.levels()
        self.domains = _domains(names, pools, self.pool_of, self.levels)
        self._free = self.capacity.copy()
        self._devices = self.whole.copy()
        self._occupied = np.zeros(len(names), dtype=np.int64)
        self._owners = np.zeros(len(names), dtype=np.int64)
        #: By row, devices whose MIG layout is not as declared: their instances; None: to be whole.
        self._unmade: dict[int, _Cuts] = {}
        self._absent = np.zeros_like(self._instances)
        width = self.whole.shape[1] if self.wants_inner else 0
        self._inner_of_pool = [device_locality.declared(pool, width) for pool in pools]
        shape = (len(INNER_LEVELS), len(names), width)
        self._inner = np.full(shape, device_locality.UNKNOWN, dtype=np.int8)
        self._inner_is_given = False
        #: The reported devices of each node when its domains were last computed.
        self._reported_gpus: dict[int, tuple[records.Gpu, ...]] = {}
        for name in names:
            self._look(name, nodes.get(name))
        for array in (self.capacity, self.memory, self.shareable, self.domains, self.pool_of):
            array.setflags(write=False)

    def _take(self, entries: Iterable[running_gangs.RunningGang], sign: int) -> None:
        """Charge what elements hold, or give it back."""
        width, row_of, profiles = self.whole.shape[1], self.row_of, self.profiles
        amounts: list[tuple[int, int, int]] = []
        shares: list[tuple[int, int, int]] = []
        rows: list[int] = []
        for entry in entries:
            there: set[int] = set()
            for attempt in entry.attempts:
                row = row_of.get(attempt.node)
                if row is None:
                    continue
                has = attempt.resources
                there.add(row)
                amounts.append((row, has.cpu_milli, has.memory_bytes))
                if attempt.devices:
                    share = attempt.share_milli
                    shares += [(row, device, share) for device in attempt.devices if device < width]
                elif attempt.mig_profile in profiles:
                    profile = profiles.index(attempt.mig_profile)
                    self._instances[row, profile] -= sign * len(attempt.instances)
            rows += there
            if entry.record.spec.exclusive:
                self._owners[list(there)] += sign
        if amounts:
            table = np.array(amounts, dtype=np.int64)
            np.subtract.at(self._free[:, :2], table[:, 0], sign * table[:, 1:])
            np.add.at(self._occupied, np.array(rows, dtype=np.int64), sign)
        if shares:
            table = np.array(shares, dtype=np.int64)
            np.subtract.at(self._devices, (table[:, 0], table[:, 1]), sign * table[:, 2])

    def columns(self) -> snapshots.NodeColumns:
        """Return the current columns, which never change afterwards."""
        self._inner_is_given = True
        devices = np.where(self.whole < 0, self.whole, np.maximum(self._devices, 0))
        free = np.maximum(self._free, 0)
        free[:, 2] = np.maximum(devices, 0).sum(axis=1)
        columns = snapshots.NodeColumns(
            names=self.names,
            capacity=self.capacity,
            free=free,
            accepts=self.accepts.copy(),
            devices=devices,
            device_memory=self.memory,
            instances=np.maximum(self._instances, 0),
            absent=self._absent.copy(),
            domains=self.domains,
            shareable=self.shareable,
            occupied=self._occupied.copy(),
            exclusive=self._owners > 0,
            closed=dict(self.closed),
            inner=tuple(self._inner) if self.wants_inner else (),
        )
        for array in (columns.free, columns.accepts, columns.devices, columns.instances):
            array.setflags(write=False)
        return columns


def nodes(
    cache: cycle_cache.CycleCache,
    structure: desired.Structure,
    node_records: cycle_nodes.CycleNodes,
    gpu_demand: GpuDemand,
    held: running_gangs.RunningGangs,
) -> NodeTable:
    """Return the columns of all nodes.

    Args:
        cache: of earlier cycles.
        structure: in force.
        node_records: of this cycle.
        gpu_demand: what jobs request of GPUs, besides what pools have.
        held: running gangs.
    """
    kept = cache.part(_Kept)
    kept.renew(structure, node_records, gpu_demand, held)
    return NodeTable(
        kept.columns(),
        kept.names,
        kept.row_of,
        kept.pool_of,
        kept.pools,
        kept.profiles,
        kept.levels,
    )


def _unmade(node: records.NodeRecord, pool: desired.Pool) -> _Cuts:
    """Return devices of a node whose MIG layout is not as declared, with the instances of each."""
    if not pool.mig and not any(gpu.mig_enabled for gpu in node.inventory.gpus):
        return {}
    wanted = {layout.device: layout.instances for layout in pool.mig}
    return {
        gpu.index: wanted.get(gpu.index)
        for gpu in node.inventory.gpus
        if mismatches.unmade(gpu, wanted)
    }


def _profiles(pools: Sequence[desired.Pool], wanted: Iterable[str]) -> tuple[str, ...]:
    found = {name for pool in pools for layout in pool.mig for name, _ in layout.instances}
    return tuple(sorted(found | set(wanted)))


def _per_pool(
    values: Sequence[int], pool_of: NDArray[np.int64], otherwise: int
) -> NDArray[np.int64]:
    """Return a column with the value of each node's pool."""
    table = np.array([*values, otherwise], dtype=np.int64)
    return table[pool_of]  # -1 is the last: no pool


def _capacity(
    pools: Sequence[desired.Pool], pool_of: NDArray[np.int64], profiles: tuple[str, ...]
) -> tuple[snapshots.Amounts, snapshots.Amounts, snapshots.Amounts]:
    """Return amounts, devices and MIG instances of each empty node."""
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


def _domains(
    names: tuple[str, ...],
    pools: Sequence[desired.Pool],
    pool_of: NDArray[np.int64],
    levels: tuple[str, ...],
) -> NDArray[np.int64]:
    """Return ids of domains. The same path of names is the same domain, also across pools."""
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
