"""Ranks, rendezvous ports and MIG instances of new attempts.

A gang's tasks and the nodes that the scheduler chose come in. Neighbours by number become
neighbours by network, and what running attempts have is not given again.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from reconciler.core import cycle_attempts
from reconciler.core.cycle import cycle_nodes
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.values import hostlists
from reconciler.scheduling import decisions

#: Rendezvous ports of gangs, below the kernel's ephemeral range.
RENDEZVOUS_PORTS = range(29_400, 32_700)


class AttemptAllocator:
    """The names, ports and MIG instances that new attempts get.

    Args:
        node_names: by row, by which tasks are placed.
        profiles: names of MIG profiles, by number.
        attempts: of this cycle. What they have is taken.
        turn: where to look for free ports first, different each time.
    """

    def __init__(
        self,
        node_names: tuple[str, ...],
        profiles: tuple[str, ...],
        attempts: cycle_attempts.CycleAttempts,
        turn: int,
    ) -> None:
        self.node_names = node_names
        self._profiles = profiles
        self._attempts = attempts
        self._turn = turn
        self._ports: _RendezvousPorts | None = None
        self._instances: dict[tuple[str, str], set[int]] | None = None

    def port(self, count: int) -> int:
        """Return the first of a gang's ports."""
        if self._ports is None:
            self._ports = _RendezvousPorts(self._attempts, self._turn)
        return self._ports.take(count)

    def _taken(self) -> dict[tuple[str, str], set[int]]:
        """Return the MIG instances in use, by node and profile."""
        if self._instances is None:
            self._instances = {}
            for attempt in self._attempts.live():
                if attempt.instances:
                    key = (attempt.node, attempt.mig_profile)
                    self._instances.setdefault(key, set()).update(attempt.instances)
        return self._instances

    def instances(self, task: decisions.TaskPlacement) -> tuple[str, tuple[int, ...]]:
        """Return the profile of a task's MIG instances, and which of the node's it gets."""
        if task.profile < 0:
            return "", ()
        profile = self._profiles[task.profile]
        taken = self._taken().setdefault((self.node_names[task.node], profile), set())
        found: list[int] = []
        number = 0
        while len(found) < task.instances:
            if number not in taken:
                found.append(number)
            number += 1
        taken.update(found)
        return profile, tuple(found)


class GangRanks:
    """The ranks of gangs, so that neighbours by number are neighbours by network.

    Args:
        allocator: has names of nodes, and free ports.
        nodes: of this cycle.
        pools: by name.
    """

    def __init__(
        self,
        allocator: AttemptAllocator,
        nodes: cycle_nodes.CycleNodes,
        pools: Mapping[str, desired.Pool],
    ) -> None:
        self.node_names = allocator.node_names
        self._allocator = allocator
        self._nodes = nodes
        self._pools = pools

    def of(
        self,
        spec: desired.Job,
        tasks: list[decisions.TaskPlacement],
    ) -> list[records.RankPlacement]:
        """Number the tasks so that neighbours by number are neighbours by network.

        The first task has rank 0. The domains of a topology follow each other, in a domain the
        nodes, on a node groups and indexes. Nodes are numbered by their first rank.
        """
        if spec.framework == "none":
            return [records.RankPlacement()] * len(tasks)
        order = self._by_topology(tasks)
        sizes = Counter(tasks[number].node for number in order)
        first = self._nodes.get(self.node_names[tasks[order[0]].node])
        hosts = hostlists.fold_in_order(self.node_names[node] for node in sizes)
        ports = self._ports_needed({self.node_names[node]: count for node, count in sizes.items()})
        base = records.RankPlacement(
            world_size=len(tasks),
            master_address=first.inventory.address if first else "127.0.0.1",
            master_port=self._allocator.port(ports),
            hosts=hosts,
            tasks_per_host=hostlists.fold_counts(sizes.values()),
            ports=ports,
        )
        node_rank = {node: number for number, node in enumerate(sizes)}
        devices = _by_node(tasks)
        local: Counter[int] = Counter()
        ranks = [base] * len(tasks)
        for rank, number in enumerate(order):
            node = tasks[number].node
            ranks[number] = msgspec.structs.replace(
                base,
                rank=rank,
                local_rank=local[node],
                local_world_size=sizes[node],
                node_rank=node_rank[node],
                local_devices=devices.get(node, ()),
            )
            local[node] += 1
        return ranks

    def _ports_needed(self, tasks: Mapping[str, int]) -> int:
        """Return the most tasks of a gang that share an address; ``tasks`` are by node."""
        found: Counter[str] = Counter()
        for name, count in tasks.items():
            node = self._nodes.get(name)
            found[node.inventory.address if node else name] += count
        return max(found.values())

    def _by_topology(
        self,
        tasks: list[decisions.TaskPlacement],
    ) -> list[int]:
        """Return positions of tasks in the order of ranks. Domains go by their first task."""
        met: dict[tuple[str, ...], int] = {}
        keys: dict[int, tuple[int, ...]] = {}
        for task in tasks:
            if task.node not in keys:
                name = self.node_names[task.node]
                node = self._nodes.get(name)
                pool = self._pools.get(node.pool) if node else None
                path = (*(pool.domains.get(name, ()) if pool else ()), name)
                parts = [path[: depth + 1] for depth in range(len(path))]
                keys[task.node] = tuple([met.setdefault(part, len(met)) for part in parts])
        return sorted(
            range(len(tasks)), key=lambda n: (keys[tasks[n].node], tasks[n].group, tasks[n].index)
        )


class _RendezvousPorts:
    """An allocator of consecutive rendezvous ports that no current gang uses."""

    def __init__(self, attempts: cycle_attempts.CycleAttempts, turn: int) -> None:
        self._used: set[int] = set()
        for attempt in attempts.live():
            port = attempt.rank.master_port
            if port and port not in self._used:
                counts = hostlists.expand_counts(attempt.rank.tasks_per_host)
                count = attempt.rank.ports or max(counts, default=1)
                self._used.update(range(port, port + count))
        self._next = RENDEZVOUS_PORTS.start + turn % len(RENDEZVOUS_PORTS)

    def take(self, count: int) -> int:
        """Return the first of so many consecutive free ports.

        After a full round the next, free or not.
        """
        for _ in range(len(RENDEZVOUS_PORTS)):
            if self._next + count > RENDEZVOUS_PORTS.stop:
                self._next = RENDEZVOUS_PORTS.start
            block = range(self._next, self._next + count)
            self._next += 1
            if self._used.isdisjoint(block):
                self._used.update(block)
                self._next = block.stop
                return block.start
        return RENDEZVOUS_PORTS.start


def _by_node(tasks: list[decisions.TaskPlacement]) -> dict[int, tuple[int, ...]]:
    """Return a gang's devices on each node on which several of its tasks have some."""
    found: dict[int, list[decisions.TaskPlacement]] = {}
    for task in tasks:
        if task.devices:
            found.setdefault(task.node, []).append(task)
    return {
        node: tuple(sorted({device for task in there for device in task.devices}))
        for node, there in found.items()
        if len(there) > 1
    }
