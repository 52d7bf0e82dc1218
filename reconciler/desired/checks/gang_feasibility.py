"""Checks that all possible nodes together could hold one start.

Pools and requests come in; why they could never be held goes out, or nothing. Each check is an
upper bound on an empty cluster: all declared nodes count, drained ones and those that a provisioner
may make too. GPU memory and MIG instances are left to the scheduler.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from reconciler.model import desired
from reconciler.model.values import quantities, resources

#: Of the pools whose nodes are counted, the most that are named.
POOLS_TOLD = 5
_GPU = resources.RESOURCE_NAMES.index("gpu")
_WHOLE = 1000

#: How many nodes of each pool.
Nodes = Mapping[str, int]


class GroupDemand(msgspec.Struct, frozen=True):
    """Request of one group.

    Attributes:
        least: tasks that start together. pools: where they may run.
        plain: its GPUs are counted as written.
        per_node: tasks on each node that it uses; 0: any.
    """

    name: str
    least: int
    needs: resources.Resources
    pools: tuple[str, ...]
    topology: desired.TopologyConstraint
    plain: bool
    per_node: int = 0


class Bound(msgspec.Struct, frozen=True):
    """The reason why something cannot start: a request for more of a resource than the nodes have.

    ``resource`` None: not one resource alone is the reason.
    """

    message: str
    resource: int | None = None
    amount: int = 0


class GangFeasibility:
    """A check of groups that start together against all nodes, with a cache by kind."""

    def __init__(self, pools: Mapping[str, desired.Pool]) -> None:
        self._pools = pools
        self._domains: dict[str, list[Nodes]] = {}
        self.beyond = functools.lru_cache(maxsize=4096)(self._beyond)

    def _beyond(
        self, groups: tuple[GroupDemand, ...], required: str, only: tuple[str, ...]
    ) -> Bound | None:
        """Return why no nodes could hold the groups; None if some may.

        Args:
            required: level at which all are in one domain, empty for none.
            only: names of the nodes that they may use; empty: all.
        """
        everywhere = [_of({name: pool.nodes for name, pool in self._pools.items()}, only)]
        places = self._at(required, only) if required else everywhere
        found = self._of_all(groups, places, required)
        for group in groups:
            if found is not None:
                return found
            level, size = group.topology.required, group.topology.slice_size
            if level:
                found = self._of_all((group,), self._at(level, only), level)
            if found is None and size:
                found = self._of_slices(group, self._at(group.topology.slice_level, only))
        return found

    def _at(self, level: str, only: tuple[str, ...]) -> list[Nodes]:
        """Return the number of nodes of each pool in each domain of a level."""
        if only or level not in self._domains:
            domains: dict[tuple[tuple[str, str], ...], dict[str, list[str]]] = {}
            for name, pool in self._pools.items():
                depth = pool.levels.index(level) + 1 if level in pool.levels else 0
                for node in pool.nodes if depth else ():
                    path = tuple(zip(pool.levels, pool.domains.get(node, ()), strict=False))[:depth]
                    if len(path) == depth:
                        domains.setdefault(path, {}).setdefault(name, []).append(node)
            found = [_of(nodes, only) for nodes in domains.values()]
            if only:
                return found
            self._domains[level] = found
        return self._domains[level]

    def _of_all(
        self, groups: Sequence[GroupDemand], places: Sequence[Nodes], level: str
    ) -> Bound | None:
        """Return why none of some places could hold all groups, by the most that any has."""
        where = f" in one {level}" if level else ""
        places = [place for place in places if all(_some(place, group) for group in groups)]
        if not places:
            return Bound(
                f"what starts together has to be{where}, and no {level} has nodes that it may use"
                if level
                else "no node that it may use is there"
            )
        total = sum(
            (group.needs.times(group.least) for group in groups), start=resources.Resources()
        ).as_vector()
        usable = {pool for group in groups for pool in group.pools}
        for index, amount in enumerate(total):
            if index == _GPU and not all(group.plain for group in groups):
                continue
            most = max(self._amount(place, index, usable) for place in places)
            if amount > most:
                text = functools.partial(quantities.format_resource, index)
                rest = (
                    f"no {level} of nodes that it may use has more than {text(most)}"
                    if level
                    else f"all nodes that it may use ({_told(places[0], usable)}) have {text(most)}"
                )
                message = f"{text(amount)} asked for what starts together{where}, and {rest}"
                return Bound(message, index, most)
        for group in groups:
            tasks = max(self._tasks(place, group) for place in places)
            if group.least > tasks:
                rest = (
                    f"no {level} of nodes that they may use could hold more than {tasks}"
                    if level
                    else f"all nodes that they may use ({_told(places[0], group.pools)}) "
                    f"could hold {tasks}"
                )
                each = f", {group.per_node} on each node" if group.per_node else ""
                return Bound(
                    f"{group.least} tasks of group {group.name} start together{where}{each}, "
                    f"and {rest}"
                )
        return None

    def _of_slices(self, group: GroupDemand, places: Sequence[Nodes]) -> Bound | None:
        """Return why a group's slices could not each be in a domain of their level."""
        size, level = group.topology.slice_size, group.topology.slice_level
        full, rest = divmod(group.least, size)
        rooms = [self._tasks(place, group) for place in places]
        slots = sum(room // size for room in rooms)
        if slots > full or (
            slots == full and (not rest or any(room % size >= rest for room in rooms))
        ):
            return None
        noun = "such slice" if slots == 1 else "such slices"
        return Bound(
            f"{group.least} tasks of group {group.name} start together, each {size} of them in one "
            f"{level}, and the nodes that they may use have room for {slots} {noun}"
        )

    def _amount(self, place: Nodes, index: int, usable: Iterable[str]) -> int:
        """Return the amount of a resource that the nodes of a place have."""
        return sum(place.get(name, 0) * _room(self._pools[name])[index] for name in usable)

    def _tasks(self, place: Nodes, group: GroupDemand) -> int:
        """Return the number of tasks of a group that the nodes of a place could hold."""
        found = 0
        for name in group.pools:
            if place.get(name, 0):
                each = min(_held(self._pools[name], group), default=group.least)
                if group.per_node:
                    each = group.per_node if each >= group.per_node else 0
                found += place[name] * each
        return found


def _held(pool: desired.Pool, group: GroupDemand) -> Iterator[int]:
    """Return the number of tasks that one node could hold, by each requested resource."""
    for index, (need, have) in enumerate(zip(group.needs.as_vector(), _room(pool), strict=True)):
        if need and (index != _GPU or group.plain):
            if index == _GPU and need < _WHOLE:  # a share is of one device
                yield have // _WHOLE * (_WHOLE // need)
            else:
                yield have // need


def _room(pool: desired.Pool) -> tuple[int, int, int]:
    """Return what tasks may take of one node. Of its GPUs these are those without MIG."""
    cpu, memory, gpu = pool.promised().as_vector()
    return cpu, memory, gpu - _WHOLE * len(pool.mig)


def _some(place: Nodes, group: GroupDemand) -> bool:
    return any(place.get(name) for name in group.pools)


def _of(nodes: Mapping[str, Iterable[str]], only: tuple[str, ...]) -> Nodes:
    counted = {
        name: sum(node in only for node in found) if only else len(tuple(found))
        for name, found in nodes.items()
    }
    return {name: count for name, count in counted.items() if count}


def _told(place: Nodes, usable: Iterable[str]) -> str:
    """Return the number of nodes by pool, as text."""
    names = [name for name in place if name in set(usable)]
    places = [f"{place[name]:,} of pool {name}" for name in names[:POOLS_TOLD]]
    more = len(names) - len(places)
    return ", ".join(places) + (f" and {more} pools more" if more > 0 else "")
