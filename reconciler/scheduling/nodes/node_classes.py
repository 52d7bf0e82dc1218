"""Nodes that are alike as one, ranked for each task group, so that a placement costs microseconds.

A *class* is nodes that no shape and no kind of the mix tells apart; a *state* is a class with
what is free. A group's cost of a state is worked out once and kept; the best state of a group is
then the least of a row of numbers, whatever the number of nodes. In clusters of more than
``EXACT_NODES_MAX`` nodes CPU and memory are rounded down to steps for the costs, so that there
are not as many states as nodes; devices are exact, and so is what fits.

With a mix, a cost is the growth of what ``fragmentation`` finds likely to stay unused. All states
are compared by a cheap estimate of it, and the ``SHORTLIST`` best of them by the measure itself.
"""

import copy
import itertools
from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import numpy as np

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.nodes import node_class_scores, scoring
from reconciler.scheduling.nodes.free_resources import FreeResources
from reconciler.scheduling.nodes.node_class_scores import Key
from reconciler.scheduling.nodes.node_rows import NodeRow
from reconciler.scheduling.nodes.requirements import TaskRequirements
from reconciler.scheduling.nodes.scoring import EMPTY, NONE, UNKNOWN, Classes, Costs, NodeScores

#: Up to so many nodes CPU and memory are exact in states.
EXACT_NODES_MAX = 2048
#: States are kept until they are so many, or so many times those that had nodes at first.
STATES_MIN = 4096
STATES_TIMES = 4
#: Rows of nodes have so many bits.
NODE_BITS = 24
NODE_MASK = (1 << NODE_BITS) - 1
#: States that are looked at closely for one placement.
SHORTLIST = 32
#: Estimates stand behind all costs that were looked at closely; ranks of score above either.
ESTIMATED, RANK = 1e11, 1e12


class NodeClassIndex(node_class_scores.NodeClassScores):
    """The states of the nodes of one inventory.

    Attributes:
        members: nodes of each state, ascending. Where CPU is rounded they are ordered by free CPU
            first: (milli-CPUs << ``NODE_BITS``) + node.
        rough: whether it is.
        of_node: state of each node, -1 where it takes nothing, or nothing fits for certain.
        vacant: by state, 0 where it has members, else ``EMPTY``.
    """

    def __init__(
        self,
        situation: snapshots.Snapshot,
        classes: Classes,
        stock: FreeResources,
        mix: Sequence[snapshots.ArrivalShare],
    ) -> None:
        super().__init__(situation, classes, mix)
        self.stock = stock
        self.rough = len(situation.nodes.names) > EXACT_NODES_MAX
        self._ascending: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._rankings: dict[tuple[int, int], NodeScores] = {}
        self._build()

    def expect(self, mix: Sequence[snapshots.ArrivalShare]) -> None:
        """From now on costs are by this mix, whose kinds go where shapes of the snapshot go."""
        self._expect(mix)
        self._build()

    def copy(self, stock: FreeResources) -> "NodeClassIndex":
        """The same for another inventory of the snapshot, whose rows may be others by now."""
        twin = copy.copy(self)
        twin.stock = stock
        private: dict[str, Any] = {
            "of_node": self.of_node[:],
            "members": [there.copy() for there in self.members],
            "_code_of": self._code_of.copy(),
            "_numbers": self._numbers.copy(),
            "_vectors": self._vectors.copy(),
            "_buffer": np.empty(len(self.vacant)),
            "_after_whole": {},
            "_grown": {},
            "_rankings": {key: known.copy() for key, known in self._rankings.items()},
            **{name: getattr(self, name).copy() for name in (*node_class_scores.COLUMNS, "vacant")},
        }
        for name, value in private.items():
            setattr(twin, name, value)
        mine = self.stock.rows
        others = {node for node, row in enumerate(stock.rows) if row is not mine[node]}
        stock.changed = others | self.stock.changed
        return twin

    def _build(self) -> None:
        count = len(self.stock.rows)
        if self.rough:
            self.cpu_step, self.memory_step = scoring.steps(self.stock, self.classes, self._most)
        self.of_node = array("q", [-1]) * count
        self._code_of = [0] * count
        self.members: list[list[int]] = []
        self._numbers: dict[Key, int] = {}
        self._begin()
        self.vacant = np.full(len(self._class), EMPTY)
        self._buffer = np.empty(len(self._class))
        for ranking in self._rankings.values():
            ranking.forget()
        of_node, members, numbers = self.of_node, self.members, self._numbers
        stock, classes = self.stock, self.classes.of
        columns = stock.columns()
        useful = stock.opened_mask & (columns.exclusive == 0) & self.classes.least.nodes(columns)
        for node in np.flatnonzero(useful).tolist():
            row = stock.rows[node]
            key = self._key(row, classes[node])
            state = numbers.get(key)
            if state is None:
                state = self._new(key)
                self.vacant[state] = 0.0
            code = (row.cpu << NODE_BITS) + node if self.rough else node
            members[state].append(code)
            of_node[node] = state
            self._code_of[node] = code
        if self.rough:
            for there in members:
                there.sort()
        self._states_max = max(STATES_MIN, STATES_TIMES * len(members))
        self.stock.changed.clear()

    def _key(self, row: NodeRow, node_class: int) -> Key:
        cpu, memory, devices, instances, _, _ = row
        vector = self._ascending.get(devices)
        if vector is None:
            vector = self._ascending[devices] = tuple(sorted(devices))
        return (node_class, cpu // self.cpu_step, memory // self.memory_step, vector, instances)

    def sync(self) -> None:
        """Take note of the nodes that changed."""
        changed = self.stock.changed
        if not changed:
            return
        if len(self.members) > self._states_max:
            self._build()
            return
        self._place(changed if len(changed) == 1 else sorted(changed))
        changed.clear()

    def _place(self, nodes: "set[int] | list[int]") -> None:
        rows, of_node, members = self.stock.rows, self.of_node, self.members
        is_there = self.classes.least.is_there
        for node in nodes:
            row = rows[node]
            state = -1
            if not row.exclusive and self.stock.opened[node] and is_there(row):
                key = self._key(row, self.classes.of[node])
                found = self._numbers.get(key)
                state = self._new(key) if found is None else found
            before, was = of_node[node], self._code_of[node]
            code = (row.cpu << NODE_BITS) + node if self.rough else node
            if state == before and code == was:
                continue
            if before >= 0:
                there = members[before]
                del there[bisect_left(there, was)]
                if not there:
                    self.vacant[before] = EMPTY
            if state >= 0:
                there = members[state]
                if not there:
                    self.vacant[state] = 0.0
                insort(there, code)
            of_node[node] = state
            self._code_of[node] = code

    def _new(self, key: Key) -> int:
        state = self._numbers[key] = len(self.members)
        self.members.append([])
        self._add(key)
        if state == len(self.vacant):
            self.vacant = np.concatenate([self.vacant, np.full(len(self.vacant), EMPTY)])
            self._buffer = np.empty(len(self.vacant))
        return state

    def ranking(self, shape: int, group: int, ask: TaskRequirements) -> NodeScores:
        """The ranking of one group."""
        found = self._rankings.get((shape, group))
        if found is None:
            found = NodeScores(self.situation.shapes[shape], ask, self.classes)
            self._rankings[shape, group] = found
        return found

    def best(self, ranking: NodeScores, at: int, within: snapshots.Mask | None) -> int:
        """The node where one task costs least, -1 for none.

        ``at`` turns the choice among nodes of one state.
        """
        plain = not self.rough and within is None
        costs = self._totals(ranking)
        while True:
            state = int(costs.argmin())
            if costs[state] >= NONE:
                return -1
            members = self.members[state]
            if plain:
                return members[at % len(members)]
            node = self._member(members, at, ranking, within)
            if node >= 0:
                return node
            costs[state] = EMPTY

    def _totals(self, ranking: NodeScores) -> Costs:
        """Costs of all states; of those without members, or that don't fit, beyond ``NONE``."""
        size = len(self.vacant)
        if len(ranking.costs) < size:
            more = np.full(size - len(ranking.costs), UNKNOWN)
            ranking.costs = np.concatenate([ranking.costs, more])
        costs: Costs = np.add(ranking.costs, self.vacant, out=self._buffer)
        if costs[costs.argmin()] < -NONE:
            self._work_out(ranking, np.flatnonzero(costs < -NONE))
            costs = np.add(ranking.costs, self.vacant, out=self._buffer)
        if ranking.scores is not None:
            open_states = np.flatnonzero(costs < NONE)
            if open_states.size:
                scores = ranking.scores[self._class[open_states]]
                # Whole ranks of score stand above any cost.
                ranks = np.unique(-scores, return_inverse=True)[1]
                costs[open_states] += ranks * RANK
        if self.mixed and ranking.strategy == "least-fragmentation":
            self._look_closely(ranking, costs)
        return costs

    def _look_closely(self, ranking: NodeScores, costs: Costs) -> None:
        """The costs of the states that seem best become exact, the others stand behind them.

        Which these are, and so the choice, follows from what is free now alone.
        """
        bar = NONE
        if len(costs) > SHORTLIST:
            bar = min(bar, float(np.partition(costs, SHORTLIST - 1)[SHORTLIST - 1]))
        near = np.flatnonzero((costs <= bar) & (costs < NONE))
        new = [state for state in near.tolist() if state not in ranking.exact]
        if new:
            self._judge(ranking, np.array(new, dtype=np.intp))
        exact = ranking.exact
        ranks = np.floor(costs[near] / RANK + 0.5) * RANK
        costs += ESTIMATED
        costs[near] = ranks + [exact[state] for state in near.tolist()]

    def _member(
        self, members: list[int], at: int, ranking: NodeScores, within: snapshots.Mask | None
    ) -> int:
        """A node of a state that really has room, -1 for none; the least free CPU first."""
        rows, ask, count = self.stock.rows, ranking.ask, len(members)
        first, last = 0, count
        if self.rough:
            first = bisect_left(members, ask.cpu << NODE_BITS) if ask.cpu else 0
            if first == count:
                return -1
            if ranking.strategy == "spread":
                first = bisect_left(members, members[-1] >> NODE_BITS << NODE_BITS)
            else:
                last = bisect_left(members, (members[first] >> NODE_BITS) + 1 << NODE_BITS)
        # Nodes that are equal take turns; then come those with more CPU, or with less.
        turned = first + at % (last - first)
        order = (range(turned, last), range(first, turned))
        others = range(first - 1, -1, -1) if last == count else range(last, count)
        for position in itertools.chain(*order, others if self.rough else ()):
            node = members[position] & NODE_MASK
            row = rows[node]
            if (
                (row.cpu >= ask.cpu or not ask.cpu)
                and (row.memory >= ask.memory or not ask.memory)
                and (within is None or within[node])
            ):
                return node
        return -1

    def costs_of_nodes(self, ranking: NodeScores) -> Costs:
        """(n,) cost of one task on each node; ``EMPTY`` where it does not fit."""
        self.sync()
        costs = self._totals(ranking)
        states = np.frombuffer(self.of_node, dtype=np.int64)
        found = np.full(len(states), EMPTY)
        inside = states >= 0
        found[inside] = costs[states[inside]]
        return found
