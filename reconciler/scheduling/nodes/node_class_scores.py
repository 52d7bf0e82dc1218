"""What a task costs in each state: columns of states, and the arithmetic on them.

States come in by key, numbered as they come; costs go into ``scoring.NodeScores``, for all states
at once or for those that are asked for. ``node_classes`` tells which nodes are in which state.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import WHOLE
from reconciler.scheduling.nodes import device_choice, fragmentation
from reconciler.scheduling.nodes.requirements import IMPOSSIBLE, TaskRequirements
from reconciler.scheduling.nodes.scoring import EMPTY, Classes, Costs, NodeScores

#: Growth of fragmentation is compared in hundredths of a milli-GPU.
PRECISION = 100.0
#: The most that CPU, or memory, adds to the amount before it.
BELOW_ONE = 1.0 - 2.0**-30

#: (class, CPU and memory in steps, free devices ascending, idle MIG instances).
Key = tuple[int, int, int, tuple[int, ...], tuple[int, ...]]
#: (``Option.values`` of ``device_choice``, milli-GPUs lost by another measure than the mix, vector
#: that is left).
Way = tuple[tuple[int, ...], int, int]
States = NDArray[np.intp]
#: Whether by the measure itself or the estimate; whole devices, and steps of CPU and memory, taken.
Growth = tuple[bool, int, int, int]
#: Columns of ``NodeClassScores``, one entry for each state.
COLUMNS = ("_class", "_cpu", "_memory", "_left", "_idle", "_instances", "_row")
Amounts = NDArray[np.int64]


class NodeClassScores:
    """States and what tasks cost in them.

    Attributes:
        mix: what costs are by. mixed: whether there is one.
        cpu_step, memory_step: what CPU and memory are rounded down to in states.
    """

    def __init__(
        self,
        situation: snapshots.Snapshot,
        classes: Classes,
        mix: Sequence[snapshots.ArrivalShare],
    ) -> None:
        nodes = situation.nodes
        self.situation = situation
        self.classes = classes
        most = nodes.capacity.max(axis=0, initial=1) if len(nodes.names) else np.ones(3)
        self.cpu_step, self.memory_step = 1, 1
        self._most = (int(most[0]), int(most[1]))
        self._scale = (
            float(nodes.devices.shape[1] * WHOLE + 1),
            float(int(most[0]) + 1),
            float(int(most[1]) + 1),
        )
        self._known_ways: dict[tuple[int, tuple[int, ...], int, int], tuple[Way, ...]] = {}
        self._expect(mix)
        self._begin()

    def _begin(self) -> None:
        """No state is known."""
        size = 64
        self._vectors: list[tuple[int, ...]] = []
        self._class = np.zeros(size, dtype=np.int64)
        self._cpu = np.zeros(size, dtype=np.int64)
        self._memory = np.zeros(size, dtype=np.int64)
        self._left = np.zeros(size, dtype=np.int64)
        self._idle = np.zeros(size, dtype=np.int64)
        self._instances = np.zeros((size, len(self.situation.profiles)), dtype=np.int64)
        self._row = np.zeros(size, dtype=np.intp)
        self._after_whole: dict[int, NDArray[np.intp]] = {}
        self._grown: dict[Growth, Costs] = {}

    def _expect(self, mix: Sequence[snapshots.ArrivalShare]) -> None:
        """Costs are by this mix. Nodes that it does not tell apart are one class to it."""
        self.mix = mix
        self._known_ways = {}
        known = self.classes.outlook
        if known is None or known[0] is not mix:
            known = self.classes.outlook = (mix, *self._outlook(mix))
        self.mixed = len(mix) > 0
        _, self._mix_class, self.outlook = known

    def _outlook(
        self, mix: Sequence[snapshots.ArrivalShare]
    ) -> tuple[list[int], fragmentation.FragmentationForecast]:
        """What the mix makes of each class, and the outlook of that."""
        nodes, first = self.situation.nodes, self.classes.first
        columns = [nodes.device_memory[first], nodes.shareable[first]]
        columns += [entry.eligible[first] for entry in mix]
        numbers: dict[tuple[int, ...], int] = {}
        facts = zip(*(column.tolist() for column in columns), strict=True)
        of = [numbers.setdefault(row, len(numbers)) for row in facts]
        kinds = np.array(list(numbers), dtype=np.int64).reshape(len(numbers), len(columns))
        return of, fragmentation.outlook(mix, kinds[:, 2:] > 0, kinds[:, 0].copy(), kinds[:, 1] > 0)

    def _add(self, key: Key) -> None:
        """One more state, the next number."""
        node_class, cpu, memory, vector, instances = key
        state = len(self._vectors)
        self._vectors.append(vector)
        if state == len(self._class):
            self._grow()
        self._class[state] = node_class
        self._cpu[state] = cpu * self.cpu_step
        self._memory[state] = memory * self.memory_step
        self._left[state] = sum(amount for amount in vector if amount > 0)
        self._idle[state] = vector.count(WHOLE)
        if instances:
            self._instances[state] = instances
        if self.mixed:
            self._row[state] = self.outlook.number(self._mix_class[node_class], vector)

    def _grow(self) -> None:
        for name in COLUMNS:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros_like(column)]))

    def _work_out(self, ranking: NodeScores, states: States) -> None:
        ask, costs = ranking.ask, ranking.costs
        costs[states] = EMPTY
        fits = ranking.allowed[self._class[states]]
        # A state's amounts are rounded down: what may fit some of its nodes is ranked too.
        if ask.cpu:
            fits &= self._cpu[states] + self.cpu_step > ask.cpu
        if ask.memory:
            fits &= self._memory[states] + self.memory_step > ask.memory
        if ask.instances:
            fits &= self._instances[states, ask.profile] >= ask.instances
        if ask.devices:
            fits &= (
                (self._idle[states] >= ask.devices)
                if ask.share >= WHOLE
                else (self._left[states] > 0)
            )
        states = states[fits]
        if not states.size:
            return
        if self.mixed and ranking.strategy == "least-fragmentation":
            self._estimate(ranking, states)
        elif ask.devices > 0 and ask.share < WHOLE:
            self._work_out_shares(ranking, states)
        else:
            costs[states] = self._cost(ranking, states, np.zeros(len(states)))

    def _estimate(self, ranking: NodeScores, states: States) -> None:
        """Costs by the cheap measure."""
        if ranking.takes_whole:
            grown = self._growth(ranking.ask, states, exactly=False)
            ranking.costs[states] = self._cost(ranking, states, grown)
            return
        at, values, after = self._candidates(ranking, states)
        cpu, memory = self._cpu[at], self._memory[at]
        before = self.outlook.alone(self._row[at], cpu, memory)
        found = self.outlook.alone(after, *self._after(ranking.ask, at)) - before
        costs = ranking.costs
        for state, cost, value in zip(
            at.tolist(), self._cost(ranking, at, found).tolist(), values, strict=True
        ):
            if cost < costs[state]:
                costs[state] = cost
                ranking.values[state] = value

    def _judge(self, ranking: NodeScores, states: States) -> None:
        """Exact costs: what is likely to stay unused after, less before."""
        if ranking.takes_whole:
            grown = self._growth(ranking.ask, states, exactly=True)
            costs = self._cost(ranking, states, grown).tolist()
            ranking.exact.update(zip(states.tolist(), costs, strict=True))
            return
        at, values, after = self._candidates(ranking, states)
        of = np.searchsorted(states, at)
        before = self.outlook.unused(self._row[states], self._cpu[states], self._memory[states])
        found = self.outlook.unused(after, *self._after(ranking.ask, at)) - before[of]
        exact = ranking.exact
        for state, cost, value in zip(
            at.tolist(), self._cost(ranking, at, found).tolist(), values, strict=True
        ):
            if cost < exact.get(state, EMPTY):
                exact[state] = cost
                ranking.values[state] = value

    def _growth(self, ask: TaskRequirements, states: States, *, exactly: bool) -> Costs:
        """How much less of states the mix could use after a task took whole devices.

        The same for all tasks that take as many steps of CPU and memory: those of many shapes.
        """
        cpu, memory = (
            (step // 2 - asked) // step
            for asked, step in ((ask.cpu, self.cpu_step), (ask.memory, self.memory_step))
        )
        key = (exactly, ask.devices, cpu, memory)
        known = self._grown.get(key)
        if known is None or len(known) < len(self._class):
            more = np.full(len(self._class), np.nan)
            if known is not None:
                more[: len(known)] = known
            known = self._grown[key] = more
        new = states[np.isnan(known[states])]
        if new.size:
            measure = self.outlook.unused if exactly else self.outlook.alone
            before = measure(self._row[new], self._cpu[new], self._memory[new])
            after = self._rows_after(ask.devices, new)
            known[new] = measure(after, *self._after(ask, new)) - before
        return known[states]

    def _after(self, ask: TaskRequirements, states: States) -> tuple[Amounts, Amounts]:
        """CPU and memory left by a task; where they go by steps, rounded to the nearest one."""
        left = []
        for has, asked, step in (
            (self._cpu[states], ask.cpu, self.cpu_step),
            (self._memory[states], ask.memory, self.memory_step),
        ):
            left.append(np.maximum((has - asked + step // 2) // step * step, 0))
        return left[0], left[1]

    def _candidates(
        self, ranking: NodeScores, states: States
    ) -> tuple[States, Sequence[tuple[int, ...]], States]:
        """(state, devices to take, vector that is left) of each way to place a task."""
        ask = ranking.ask
        if not ask.devices or ask.share >= WHOLE:
            return states, ((),) * len(states), self._rows_after(ask.devices, states)
        at: list[int] = []
        values: list[tuple[int, ...]] = []
        after: list[int] = []
        for state, node_class in zip(states.tolist(), self._class[states].tolist(), strict=True):
            share = ranking.share(node_class)
            if share < IMPOSSIBLE:
                for value, _, vector in self._ways(state, ask.devices, share):
                    at.append(state)
                    values.append(value)
                    after.append(vector)
        return np.array(at, dtype=np.intp), values, np.array(after, dtype=np.intp)

    def _cost(self, ranking: NodeScores, states: States, lost: Costs) -> Costs:
        """One number: growth of fragmentation first, then GPUs, CPU and memory left."""
        gpu, cpu, memory = self._scale
        inner = self._cpu[states] + _within_one(self._memory[states] / memory)
        tight: Costs = (self._left[states] + _within_one(inner / cpu)) / gpu
        return 1.0 - tight if ranking.strategy == "spread" else np.rint(lost * PRECISION) + tight

    def _rows_after(self, devices: int, states: States) -> NDArray[np.intp]:
        """Vectors of what is left when a task took whole devices of each state."""
        if not devices:
            return self._row[states]
        known = self._after_whole.get(devices)
        if known is None or len(known) < len(self._row):
            more = np.full(len(self._row), -1, dtype=np.intp)
            if known is not None:
                more[: len(known)] = known
            known = self._after_whole[devices] = more
        for state in states[known[states] < 0].tolist():
            (option,) = device_choice.options(self._vectors[state], devices, WHOLE)
            of = self._mix_class[self._class[state]]
            known[state] = self.outlook.number(of, option.after)
        return known[states]

    def _ways(self, state: int, devices: int, share: int) -> tuple[Way, ...]:
        """The ways to take shares of devices, remembered for all groups that ask the same."""
        vector = self._vectors[state]
        of = self._mix_class[self._class[state]] if self.mixed else -1
        key = (of, vector, devices, share)
        found = self._known_ways.get(key)
        if found is None:
            found = self._known_ways[key] = tuple(
                (
                    way.values,
                    # An idle device that would be opened counts as lost as a whole besides.
                    sum(v - share + (WHOLE if v == WHOLE else 0) for v in way.values),
                    self.outlook.number(of, way.after) if self.mixed else 0,
                )
                for way in device_choice.options(vector, devices, share)
            )
        return found

    def _work_out_shares(self, ranking: NodeScores, states: States) -> None:
        """Each way to choose devices is a candidate; the best one stands for the state."""
        ask, spreads = ranking.ask, ranking.strategy == "spread"
        of: list[int] = []
        values: list[tuple[int, ...]] = []
        left: list[int] = []
        for state, node_class in zip(states.tolist(), self._class[states].tolist(), strict=True):
            share = ranking.share(node_class)
            if share >= IMPOSSIBLE:
                continue
            ways = self._ways(state, ask.devices, share)
            for value, lost_there, _ in reversed(ways) if spreads else ways:
                of.append(state)
                values.append(value)
                left.append(lost_there)
        at = np.array(of, dtype=np.intp)
        lost = np.array(left, dtype=np.float64) / PRECISION
        found = self._cost(ranking, at, np.zeros(len(at)) if spreads else lost)
        costs = ranking.costs
        for state, cost, value in zip(of, found.tolist(), values, strict=True):
            if cost < costs[state]:
                costs[state] = cost
                ranking.values[state] = value


def _within_one(values: Costs) -> Costs:
    """Values as digits behind a number: from 0 to below 1; much faster than ``numpy.clip``."""
    found: Costs = np.minimum(np.maximum(values, 0), BELOW_ONE)
    return found
