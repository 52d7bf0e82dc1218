"""Where the tasks of one element go: whole gangs, several groups, topology, affinities.

A group of alike tasks is placed exactly: a plan is found if there is one. Several groups are
tried greedily in every order, then by a bounded search; a plan that was not found then counts as
none, and ``GangPlanner.cut`` says that it was not proven.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import NO_LEVEL
from reconciler.scheduling.nodes import node_classes, scoring, topology
from reconciler.scheduling.nodes.free_resources import Counts, FreeResources
from reconciler.scheduling.nodes.requirements import TaskRequirements, needs_inner
from reconciler.scheduling.placement import affinity

#: Steps, tasks and nodes of the search for several groups.
SEARCH_STEPS_MAX = 2_000
SEARCH_TASKS_MAX = 48
SEARCH_NODES_MAX = 128
ORDERS_MAX = 24
#: Domains tried for an element of several groups, at each level.
DOMAINS_MAX = 32


class GangPart(NamedTuple):
    """``tasks`` tasks of a group, from index ``first`` on, go to one node.

    ``values``: what is free on the devices to take, where it matters (``device_choice.Option``).
    """

    group: int
    first: int
    tasks: int
    node: int
    values: tuple[int, ...] = ()


class GangPlacement(NamedTuple):
    """Where the tasks of one element go, in the order to take them.

    ``level``: all are in one domain of this level, -1 where none was asked for or found.
    """

    parts: tuple[GangPart, ...]
    level: int = NO_LEVEL


class GangPlanner:
    """A planner on one inventory; it leaves the inventory as it was.

    Attributes:
        cut: whether the last answer "no room" is a guess, because the search had to stop.
    """

    def __init__(
        self,
        situation: snapshots.Snapshot,
        stock: FreeResources,
        index: node_classes.NodeClassIndex,
        asks: Sequence[tuple[TaskRequirements, ...]],
        network: topology.TopologyDomains,
        *,
        idle: bool,
    ) -> None:
        self.situation = situation
        self.stock = stock
        self.index = index
        self.asks = asks
        self.network = network
        self.idle = idle
        self.cut = False
        self._opened = stock.opened_mask

    def rules(self, shape: int) -> affinity.AffinityRules:
        """What its affinities allow now."""
        return affinity.rules(
            self.situation.shapes[shape], self.stock.presence, self.network, idle=self.idle
        )

    def counts(
        self,
        shape: int,
        group: int,
        within: snapshots.Mask | None,
        own: Sequence[int] = (),
        ask: TaskRequirements | None = None,
        *,
        partly: bool = False,
    ) -> tuple[Counts, affinity.AffinityRules]:
        """(tasks that each node has room for, rules of affinity).

        Args:
            shape: the shape.
            group: of it.
            within: nodes that may be used; None: all.
            own: nodes where the element has tasks already.
            ask: what a task asks, instead of its own.
            partly: count nodes too that have room for fewer tasks than each has to take.
        """
        asked = self.situation.shapes[shape]
        rules = self.rules(shape)
        usable = asked.eligible & self._opened
        if within is not None:
            usable &= within
        if rules.allowed is not None:
            usable &= rules.allowed
        ask = ask or self.asks[shape][group]
        found = self.stock.counts(ask, usable, exclusive=asked.exclusive, own=own)
        if ask.per_node and not partly:
            found = topology.per_node(found, ask.per_node)
        return found, rules

    def element(self, shape: int, within: snapshots.Mask | None) -> GangPlacement | None:
        """Where the minimum of each group of one element goes."""
        asked = self.situation.shapes[shape]
        self.cut = False
        if len(asked.groups) == 1:
            return self.group(shape, 0, asked.groups[0].least, within)
        for level, mask in self._domains(shape, within):
            plan = self._greedy(shape, mask)
            if plan is None:
                plan = self._search(shape, mask)
            if plan is not None:
                return plan._replace(level=level)
        return None

    def group(
        self,
        shape: int,
        group: int,
        need: int,
        within: snapshots.Mask | None,
        own: Sequence[int] = (),
    ) -> GangPlacement | None:
        """Where ``need`` tasks of one group go."""
        if need <= 0:
            return GangPlacement(())
        ask = self.asks[shape][group]
        if ask.rather is not None:
            counts, rules = self.counts(shape, group, within, own, ask.bound())
            plan = self._of_counts(shape, group, need, counts, rules)
            if plan is not None:
                return plan
        counts, rules = self.counts(shape, group, within, own)
        return self._of_counts(shape, group, need, counts, rules)

    def _of_counts(
        self, shape: int, group: int, need: int, counts: Counts, rules: affinity.AffinityRules
    ) -> GangPlacement | None:
        """The same on nodes that each have room for so many."""
        asked = self.situation.shapes[shape]
        if int(counts.sum()) < need:
            return None
        choice = _Choice(self, shape, group, need, rules)
        single = len(asked.groups) == 1
        limits = [rules.apart + rules.rather_apart] if rules.rather_apart else []
        for apart in (*limits, rules.apart):
            capped = counts
            for level in sorted(set(apart), reverse=True):
                capped = topology.one_each(capped, self.network.domains[:, level], choice.keys)
            if tasks := asked.groups[group].per_node:
                capped = topology.per_node(capped, tasks)
            plan = choice.plan(capped, whole_element=single)
            if plan is not None:
                return plan
        return None

    def _domains(
        self, shape: int, within: snapshots.Mask | None
    ) -> Iterator[tuple[int, snapshots.Mask | None]]:
        """(level, nodes) where an element of several groups may go, the best first."""
        asked = self.situation.shapes[shape]
        together = self.rules(shape).together
        required = max(asked.required_level, together)
        for level in range(max(asked.preferred_level, required), max(required, 0) - 1, -1):
            if level < 0:
                break
            domains = self.network.domains[:, level]
            room = np.full(len(domains), np.iinfo(np.int64).max, dtype=np.int64)
            enough = domains >= 0
            for group, each in enumerate(asked.groups):
                if each.least:
                    counts = np.minimum(self.counts(shape, group, within)[0], each.least)
                    held = _by_domain(counts, domains)
                    enough &= held >= each.least
                    room = np.minimum(room, held)
            ids = np.unique(domains[enough])
            free = self.stock.columns().gpu
            left = {int(d): int(free[domains == d].sum()) for d in ids[: 4 * DOMAINS_MAX]}
            ordered = sorted(left, key=lambda domain: (left[domain], domain))
            self.cut |= len(ids) > DOMAINS_MAX
            for domain in ordered[:DOMAINS_MAX]:
                mask = domains == domain
                yield level, mask if within is None else mask & within
        if required < 0:
            yield NO_LEVEL, within

    def _greedy(self, shape: int, within: snapshots.Mask | None) -> GangPlacement | None:
        groups = self.situation.shapes[shape].groups
        biggest_first = sorted(range(len(groups)), key=lambda g: (_size(groups[g]), -g))[::-1]
        for order in itertools.islice(itertools.permutations(biggest_first), ORDERS_MAX):
            plan = self._in_order(shape, order, within)
            if plan is not None:
                return plan
        return None

    def _in_order(
        self, shape: int, order: Sequence[int], within: snapshots.Mask | None
    ) -> GangPlacement | None:
        asked, stock = self.situation.shapes[shape], self.stock
        mark = len(stock.log)
        parts: list[GangPart] = []
        try:
            for group in order:
                plan = self.group(shape, group, asked.groups[group].least, within)
                if plan is None:
                    return None
                for part in plan.parts:
                    for _ in range(part.tasks):
                        stock.charge(self.asks[shape][group], part.node, part.values)
                    stock.appear(asked.matches, part.node, part.tasks)
                parts += plan.parts
        finally:
            stock.rollback(mark)
        return GangPlacement(tuple(parts))

    def _search(self, shape: int, within: snapshots.Mask | None) -> GangPlacement | None:
        search = _Search(self, shape, within)
        plan = search.run()
        self.cut |= plan is None and search.cut
        return plan


class _Choice:
    """How one group chooses among nodes with room."""

    def __init__(
        self, planner: GangPlanner, shape: int, group: int, need: int, rules: affinity.AffinityRules
    ) -> None:
        self.network = planner.network
        self.asked = planner.situation.shapes[shape]
        self.each = self.asked.groups[group]
        self.group = group
        self.need = need
        self.rules = rules
        index = planner.index
        self.ranking = index.ranking(shape, group, planner.asks[shape][group])
        self.index = index
        costs = index.costs_of_nodes(self.ranking)
        count = len(costs)
        places = self.network.rank
        if not self.network.depth:
            turned = planner.situation.turn + len(planner.stock.log)
            places = (places - turned) % max(count, 1)
        self.keys: tuple[NDArray[Any], ...] = (costs, places)
        self.tiers: NDArray[np.int64] | None = None
        scores = self.asked.scores
        if rules.scores is not None:
            scores = rules.scores if scores is None else scores + rules.scores
        if scores is not None:
            self.tiers = np.unique(-scores, return_inverse=True)[1].astype(np.int64)
            self.keys = (self.tiers, costs, places)

    def plan(self, counts: Counts, *, whole_element: bool) -> GangPlacement | None:
        """The plan with these counts; ``whole_element``: the element's levels hold for it."""
        each, asked, rules = self.each, self.asked, self.rules
        required, preferred = each.required_level, each.preferred_level
        if whole_element:
            required = max(required, asked.required_level, rules.together)
            preferred = max(preferred, asked.preferred_level, rules.rather_together)
        slices = None
        if each.slice_size > 0 and each.slice_level >= 0:
            slices = topology.Slices(self.network, each.slice_size, each.slice_level, self.need)
        for level in range(max(preferred, required), max(required, 0) - 1, -1):
            fitting = self.network.fitting(counts, self.need, level, slices)
            if fitting:
                domain = self._best(fitting, counts, level)
                rows = np.flatnonzero((counts > 0) & (self.network.domains[:, level] == domain))
                return self._laid_out(counts, rows, level, level + 1, slices)
        if required >= 0:
            return None
        rows = np.flatnonzero(counts)
        fits = slices.fits(counts, rows) if slices else int(counts[rows].sum()) >= self.need
        if not fits:
            return None
        start = 0 if preferred >= 0 else self.network.depth
        return self._laid_out(counts, rows, NO_LEVEL, start, slices)

    def _best(self, fitting: list[int], counts: Counts, level: int) -> int:
        """The least room that fits, or the most to spread; preferred nodes before either."""
        if self.asked.strategy == "spread":
            fitting.reverse()
        if self.tiers is None:
            return fitting[0]
        domains = self.network.domains[:, level]
        tiers = self.tiers

        def preference(domain: int) -> float:
            inside = (domains == domain) & (counts > 0)
            return float(tiers[inside].mean())

        return min(fitting, key=preference)

    def _laid_out(
        self,
        counts: Counts,
        rows: NDArray[np.intp],
        level: int,
        start: int,
        slices: topology.Slices | None,
    ) -> GangPlacement:
        if slices is not None:
            runs = slices.allot(counts, rows, start, lambda r, need: self._spread(counts, r, need))
        elif self.asked.strategy == "spread":
            runs = [self._spread(counts, rows, self.need)]
        else:
            runs = [
                self.network.allot(
                    counts, self.need, rows, start, lambda r, need: self._spread(counts, r, need)
                )
            ]
        parts = []
        first = 0
        rank = self.network.rank
        for run in runs:
            for node, count in sorted(run, key=lambda pair: int(rank[pair[0]])):
                values: tuple[int, ...] = ()
                if count == 1:
                    values = self.ranking.values.get(self.index.of_node[node], ())
                parts.append(GangPart(self.group, first, count, node, values))
                first += count
        return GangPlacement(tuple(parts), level)

    def _spread(self, counts: Counts, rows: NDArray[np.intp], need: int) -> topology.Allotment:
        keys = [key[rows] for key in self.keys]
        tasks = self.each.per_node
        if tasks > 1:  # what is spread are nodes
            found = self._spread_out(counts // tasks, rows, need // tasks, keys)
            return [(node, count * tasks) for node, count in found]
        return self._spread_out(counts, rows, need, keys)

    def _spread_out(
        self, counts: Counts, rows: NDArray[np.intp], need: int, keys: list[NDArray[Any]]
    ) -> topology.Allotment:
        if self.asked.strategy == "spread":
            return topology.even(counts, need, rows, keys)
        if self.tiers is not None:
            return topology.preferred_first(counts, need, rows, keys[0], keys[1:])
        return topology.fewest(counts, need, rows, keys)


class _Search:
    """Depth-first over the tasks of several groups, biggest first; alike nodes are tried once."""

    def __init__(self, planner: GangPlanner, shape: int, within: snapshots.Mask | None) -> None:
        self.planner = planner
        self.shape = shape
        asked = planner.situation.shapes[shape]
        self.groups = asked.groups
        self.matches = asked.matches
        # Those whose devices have to be near each other come first: to the others one device is as
        # good as another, so that it is enough to take any for them.
        near = [needs_inner(group) for group in self.groups]
        order = sorted(range(len(self.groups)), key=lambda g: (near[g], _size(self.groups[g]), -g))[
            ::-1
        ]
        self.tasks = [g for g in order for _ in range(self.groups[g].least)]
        self.chosen: list[int] = []
        self.steps = 0
        self.nodes: dict[int, list[int]] = {}
        # Groups bound to domains or numbers of their own, or by affinities, are beyond this search.
        self.cut = (
            bool(asked.affinities)
            or len(self.tasks) > SEARCH_TASKS_MAX
            or any(g.required_level >= 0 or g.slice_size or g.per_node for g in self.groups)
        )
        self.hopeless = self.cut
        # In which domains of a node devices of two sizes would have to be is not tried.
        self.cut |= sum(near) > 1
        for group in order:
            counts, _ = planner.counts(shape, group, within)
            least = self.groups[group].least
            if int(np.minimum(counts, least).sum()) < least:
                self.hopeless, self.cut = True, False
                return
            ranking = planner.index.ranking(shape, group, planner.asks[shape][group])
            costs = planner.index.costs_of_nodes(ranking)
            rows = np.flatnonzero(counts)
            found = rows[np.lexsort((rows, costs[rows]))]
            self.cut |= len(found) > SEARCH_NODES_MAX
            self.nodes[group] = found[:SEARCH_NODES_MAX].tolist()

    def run(self) -> GangPlacement | None:
        """A plan, or None when there is none or it was not found in so many steps."""
        if self.hopeless:
            return None
        mark = len(self.planner.stock.log)
        found = self._place(0)
        self.planner.stock.rollback(mark)
        if not found:
            return None
        # Tasks are taken in the order in which they were tried, but count along the network.
        rank = self.planner.network.rank
        indexes = [0] * len(self.groups)
        index_of: dict[int, int] = {}
        for at in sorted(range(len(self.tasks)), key=lambda at: int(rank[self.chosen[at]])):
            index_of[at] = indexes[self.tasks[at]]
            indexes[self.tasks[at]] += 1
        return GangPlacement(
            tuple(
                GangPart(group, index_of[at], 1, node)
                for at, (group, node) in enumerate(zip(self.tasks, self.chosen, strict=True))
            )
        )

    def _place(self, task: int) -> bool:
        if task == len(self.tasks):
            return True
        group = self.tasks[task]
        stock, index = self.planner.stock, self.planner.index
        ask = self.planner.asks[self.shape][group]
        nodes = self.nodes[group]
        same = task > 0 and self.tasks[task - 1] == group
        start = nodes.index(self.chosen[-1]) if same else 0
        tried: set[tuple[object, ...]] = set()
        for node in nodes[start:]:
            row = stock.rows[node]
            key = (index.classes.of[node], row, ask.inner_on(node))
            if key in tried or not scoring.has_room(row, ask, node):
                continue
            tried.add(key)
            self.steps += 1
            if self.steps > SEARCH_STEPS_MAX:
                self.cut = True
                return False
            mark = len(stock.log)
            stock.charge(ask, node, ())
            self.chosen.append(node)
            if self._place(task + 1):
                return True
            self.chosen.pop()
            stock.rollback(mark)
        return False


def _size(group: snapshots.TaskGroupShape) -> tuple[int, int, int]:
    return (group.amounts[2], group.amounts[0], group.amounts[1])


def _by_domain(counts: Counts, domains: Counts) -> Counts:
    """(n,) room of the domain that each node is in; 0 for nodes in none."""
    found = np.zeros(len(counts), dtype=np.int64)
    inside = domains >= 0
    if inside.any():
        _, places = np.unique(domains[inside], return_inverse=True)
        held = np.bincount(places, weights=counts[inside]).astype(np.int64)
        found[inside] = held[places]
    return found
