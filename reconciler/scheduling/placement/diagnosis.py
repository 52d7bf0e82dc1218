"""Why nodes were not, and why nodes were chosen, in words."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reconciler.model.observed import devices
from reconciler.model.state.pending_reasons import FunnelStep
from reconciler.model.values import quantities
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import WHOLE
from reconciler.scheduling.nodes import device_choice, topology
from reconciler.scheduling.nodes.free_resources import FreeResources
from reconciler.scheduling.nodes.node_rows import Columns
from reconciler.scheduling.nodes.requirements import TaskRequirements, needs_inner
from reconciler.scheduling.placement.gang import GangPlacement, GangPlanner

#: Texts that are remembered.
TEXTS_MAX = 8192
#: Rows of nodes.
Rows = NDArray[np.intp]

#: The most different words for nodes that take no work; the others are counted together.
CLOSED_MAX = 4

EXCLUDED = "taken exclusively by other work"
OCCUPIED = "in use (whole nodes asked)"
RULED_OUT = "ruled out by affinity to other jobs"
#: Event that frees a node which other work keeps from a request, however much is free on it.
FREED: dict[str, str] = {
    EXCLUDED: "the work that has a node to itself ends",
    OCCUPIED: "all work on one node ends",
}
UNSHARED = "do not share GPUs"
APART = "the work that it stays apart from ends"
NEAR = "the work that it must be near starts"

_STRATEGIES: dict[str, str] = {
    "pack": "the fullest with room",
    "spread": "the emptiest with room",
    "least-fragmentation": "leaves the most usable room",
}


def funnel(planner: GangPlanner, shape: int) -> tuple[FunnelStep, ...]:
    """How nodes drop out for a task of the scarcest group; the counts add up to all nodes."""
    group, held = _scarcest(planner, shape)
    return _Funnel(planner, shape, group).steps(held)


def freed(asked: snapshots.Shape, why: str) -> list[str]:
    """Return the events that free nodes which other work keeps from a request, for one reason."""
    if why != RULED_OUT:
        return [FREED[why]] if why in FREED else []
    required = [one.apart for one in asked.affinities if not one.weight]
    return [words for words, apart in ((APART, True), (NEAR, False)) if apart in required]


def closed(nodes: snapshots.NodeColumns) -> list[tuple[str, list[int]]]:
    """Why nodes take no new work, with their rows: the few most frequent reasons, those first."""
    found: dict[str, list[int]] = {}
    for row, words in nodes.closed.items():
        found.setdefault(words, []).append(row)
    ranked = sorted(found.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    return ranked[:CLOSED_MAX]


def why(situation: snapshots.Snapshot, shape: int, plan: GangPlacement) -> str:
    """Why an element goes to these nodes."""
    asked = situation.shapes[shape]
    nodes = len({part.node for part in plan.parts})
    if not nodes:
        return "it takes nothing"
    reason = _STRATEGIES[asked.strategy]
    if asked.strategy == "least-fragmentation" and not situation.mix:
        reason = "the tightest fit"
    parts = []
    if asked.scores is not None or any(affinity.weight for affinity in asked.affinities):
        parts.append("preferred nodes first")
    if plan.level >= 0:
        parts.append(f"all in one {_level(situation, plan.level)}, the smallest room that fits")
    elif len(plan.parts) > 1 and _preferred(asked) >= 0:
        level = _level(situation, _preferred(asked))
        parts.append(f"no single {level} had room, so as few of them as can be")
    tasks = asked.groups[0].per_node if len(asked.groups) == 1 else 0
    if nodes > 1 and tasks:
        parts.append(f"{tasks} {'task' if tasks == 1 else 'tasks'} on each of {nodes} nodes")
    elif nodes > 1 and asked.strategy != "spread":
        parts.append(f"as few nodes as can be ({nodes})")
    parts.append(reason)
    inner = [group for group in asked.groups if needs_inner(group)]
    for one in inner[:1]:
        rather = " where a node had room so" if one.inner_preferred else ""
        parts.append(f"each task's GPUs of one {devices.INNER_WORDS[one.inner]}{rather}")
    return ", then ".join(parts)


def _preferred(asked: snapshots.Shape) -> int:
    return max(asked.preferred_level, *(group.preferred_level for group in asked.groups))


def _level(situation: snapshots.Snapshot, level: int) -> str:
    names = situation.levels
    return names[level] if level < len(names) else "node"


def _scarcest(planner: GangPlanner, shape: int) -> tuple[int, int]:
    """(group with the least room for its tasks, the number of them that have room)."""
    ranked = []
    for position, group in enumerate(planner.situation.shapes[shape].groups):
        need = max(group.least, 1)
        counts, _ = planner.counts(shape, position, None)
        held = min(int(np.minimum(counts, need).sum()), need)
        ranked.append((held / need, position, held))
    _, position, held = min(ranked)
    return position, held


class Ladder:
    """The funnels of many shapes of plain tasks: steps that shapes share are taken once.

    For shapes of one group that only whole devices or a share of one, CPU and memory, tasks that
    start together, and which nodes they may use, tell apart; made of an inventory as it is now.

    Args:
        situation: the snapshot.
        stock: the inventory.
        asks: what a task of each group of each shape asks.
        idle: whether it is that of an idle cluster.
    """

    def __init__(
        self,
        situation: snapshots.Snapshot,
        stock: FreeResources,
        asks: Sequence[tuple[TaskRequirements, ...]],
        *,
        idle: bool,
    ) -> None:
        self.situation = situation
        self.stock = stock
        self.asks = asks
        self.idle = idle
        #: Number of the nodes that shapes may use, with the steps that say so.
        self._starts: dict[tuple[int, tuple[FunnelStep, ...]], int] = {}
        #: Steps so far and the nodes that are left, by what was asked so far.
        self._known: dict[tuple[int, ...], tuple[tuple[FunnelStep, ...], Rows]] = {}
        #: (n,) milli-GPUs free on the device of each node that has the most.
        self._largest: NDArray[np.int64] | None = None

    def steps(self, shape: int) -> tuple[FunnelStep, ...]:
        """All steps of one shape; the same as ``funnel`` says."""
        steps, left = self._descend(shape)
        need = max(self.situation.shapes[shape].groups[0].least, 1)
        if (tasks := self.asks[shape][0].per_node) and left.size:
            short = self._counts(shape, left) < tasks
            if count := int(np.count_nonzero(short)):
                steps, left = (*steps, FunnelStep(count, _too_few(tasks))), left[~short]
        if left.size:
            verb = "has" if left.size == 1 else "have"
            words = f"{verb} room for {self._held(shape, left, need)} of {need} tasks"
            steps = (*steps, FunnelStep(int(left.size), words))
        return steps

    def held(self, shape: int) -> int:
        """Return how many tasks of those that start together have room."""
        _, left = self._descend(shape)
        return self._held(shape, left, max(self.situation.shapes[shape].groups[0].least, 1))

    def _held(self, shape: int, left: Rows, need: int) -> int:
        if need == 1 or not left.size:
            return min(int(left.size), 1)
        counts = self._counts(shape, left)
        if tasks := self.asks[shape][0].per_node:
            counts = topology.per_node(counts, tasks)
        return min(int(np.minimum(counts, need).sum()), need)

    def _counts(self, shape: int, left: Rows) -> NDArray[np.int64]:
        """Return how many tasks of a shape each of some nodes has room for."""
        return self.stock.counts(self.asks[shape][0], self.stock.opened_mask)[left]

    def _descend(self, shape: int) -> tuple[tuple[FunnelStep, ...], Rows]:
        """Return the steps at which nodes drop out, and those left, with room for a task each."""
        asked, columns = self.situation.shapes[shape], self.stock.columns()
        group = asked.groups[0]
        start = (id(asked.eligible), asked.filtered)
        key: tuple[int, ...] = (self._starts.setdefault(start, len(self._starts)),)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._first(asked)
        devices = group.devices
        if devices and group.share < WHOLE:
            key, devices = (*key, -group.share), 0
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = self._shared(found, group.share)
            found = known
        for noun, amount, column, form in (
            ("GPUs", devices, columns.idle, str),
            ("CPUs", group.amounts[0], columns.cpu, quantities.format_cpu),
            ("memory", group.amounts[1], columns.memory, quantities.format_memory),
        ):
            key = (*key, amount)
            if amount:
                known = self._known.get(key)
                if known is None:
                    known = self._known[key] = self._lack(found, noun, amount, column, form)
                found = known
        return found

    def _first(self, asked: snapshots.Shape) -> tuple[tuple[FunnelStep, ...], Rows]:
        """What has nothing to do with amounts."""
        begun = _Steps(asked)
        begun.closed(self.situation, self.stock, idle=self.idle)
        return tuple(begun.found), np.flatnonzero(begun.left)

    def _shared(
        self, found: tuple[tuple[FunnelStep, ...], Rows], share: int
    ) -> tuple[tuple[FunnelStep, ...], Rows]:
        """Two more steps: nodes that share no devices, and those of which none has so much."""
        steps, left = found
        shareable = self.situation.nodes.shareable[left]
        count = int(np.count_nonzero(~shareable))
        if count:
            steps, left = (*steps, FunnelStep(count, UNSHARED)), left[shareable]
        if self._largest is None:
            self._largest = self.stock.columns().devices.max(axis=1, initial=0)
        there = self._largest[left]
        short = there < share
        count = int(np.count_nonzero(short))
        if not count:
            return steps, left
        words = _no_share(1, quantities.format_gpu(share), int(there[short].max()), idle=self.idle)
        return (*steps, FunnelStep(count, words)), left[~short]

    def _lack(
        self,
        found: tuple[tuple[FunnelStep, ...], Rows],
        noun: str,
        amount: int,
        column: NDArray[np.int64],
        form: Callable[[int], str],
    ) -> tuple[tuple[FunnelStep, ...], Rows]:
        """One more step: nodes that have less than is asked."""
        steps, left = found
        there = column[left]
        short = there < amount
        count = int(np.count_nonzero(short))
        if not count:
            return found
        words = _lacking(noun, form, amount, int(there[short].max()), idle=self.idle)
        return (*steps, FunnelStep(count, words)), left[~short]


@lru_cache(maxsize=TEXTS_MAX)
def _lacking(
    noun: str, form: Callable[[int], str], asked: int, most: int, *, idle: bool = False
) -> str:
    state = "there" if idle else "free"
    return f"lack {noun} ({form(asked)} asked, at most {form(max(most, 0))} {state})"


def _too_few(tasks: int) -> str:
    return f"lack room for {tasks} tasks each" if tasks > 1 else "lack room for a task"


def _no_share(devices: int, asked: str, most: int, *, idle: bool) -> str:
    number = "one GPU" if devices == 1 else f"{devices} GPUs each"
    found = f"{quantities.format_gpu(most)} {'there' if idle else 'free'}"
    return f"lack room on {number} ({asked} asked, at most {found})"


class _Steps:
    """A funnel under way: each step takes away nodes from those that are left."""

    def __init__(self, asked: snapshots.Shape) -> None:
        self.left: snapshots.Mask = asked.eligible.copy()
        self.found: list[FunnelStep] = list(asked.filtered)
        others = int((~self.left).sum()) - sum(step.count for step in self.found)
        if others > 0:
            self.found.append(FunnelStep(others, "not eligible"))

    def closed(self, situation: snapshots.Snapshot, stock: FreeResources, *, idle: bool) -> None:
        """Nodes that give nothing to anybody."""
        if not idle:
            for words, rows in closed(situation.nodes):
                mask = np.zeros(len(self.left), dtype=np.bool_)
                mask[rows] = True
                self.drop(mask & ~situation.nodes.accepts, words)
            self.drop(~situation.nodes.accepts, "not accepting work")
        self.drop(~stock.opened_mask, "set aside for others")
        self.drop(stock.columns().exclusive > 0, EXCLUDED)

    def drop(self, mask: snapshots.Mask, words: str) -> None:
        """Take away nodes for one reason."""
        dropped = self.left & mask
        count = int(dropped.sum())
        if count:
            self.found.append(FunnelStep(count, words))
            self.left &= ~mask

    def lack(self, mask: snapshots.Mask, column: NDArray[Any], words: Callable[[int], str]) -> None:
        """Take away nodes that have less than is asked; ``words`` of the most that one has."""
        dropped = self.left & mask
        if dropped.any():
            self.drop(mask, words(int(column[dropped].max())))


class _Funnel(_Steps):
    """The steps for one group."""

    def __init__(self, planner: GangPlanner, shape: int, group: int) -> None:
        asked = planner.situation.shapes[shape]
        super().__init__(asked)
        self.planner = planner
        self.shape = shape
        self.group = group
        self.asked = asked
        self.each = asked.groups[group]
        self.ask: TaskRequirements = planner.asks[shape][group]
        self.columns: Columns = planner.stock.columns()
        self.state = "there" if planner.idle else "free"

    def steps(self, held: int) -> tuple[FunnelStep, ...]:
        """All of them; ``held`` tasks of the group have room."""
        self._closed()
        self._devices()
        for noun, amount, column, form in (
            ("CPUs", self.ask.cpu, self.columns.cpu, quantities.format_cpu),
            ("memory", self.ask.memory, self.columns.memory, quantities.format_memory),
        ):
            if amount:
                self._short(column < amount, column, noun, amount, form)
        if self.each.per_node:
            counts, _ = self.planner.counts(self.shape, self.group, None)
            self.drop(counts < 1, _too_few(self.each.per_node))
        rest = int(self.left.sum())
        if rest:
            self.found.append(FunnelStep(rest, self._rest(rest, held)))
        return tuple(self.found)

    def _short(
        self,
        mask: snapshots.Mask,
        column: NDArray[Any],
        noun: str,
        amount: int,
        form: Callable[[int], str],
    ) -> None:
        self.lack(
            mask,
            column,
            lambda most: _lacking(noun, form, amount, most, idle=self.planner.idle),
        )

    def _closed(self) -> None:
        planner = self.planner
        self.closed(planner.situation, planner.stock, idle=planner.idle)
        if self.asked.exclusive:
            self.drop(self.columns.occupied > 0, OCCUPIED)
        rules = planner.rules(self.shape)
        if rules.allowed is not None:
            self.drop(~rules.allowed, RULED_OUT)
        level = max(self.each.required_level, self.asked.required_level)
        if level >= 0:
            domains = planner.network.domains[:, level]
            self.drop(domains < 0, f"in no {_level(planner.situation, level)}")

    def _devices(self) -> None:
        ask, columns = self.ask, self.columns
        nodes = self.planner.situation.nodes
        if ask.instances:
            name = self.planner.situation.profiles[ask.profile]
            idle = columns.instances[:, ask.profile]
            if nodes.absent is not None and not self.planner.idle:
                made = idle + nodes.absent[:, ask.profile]
                waits = (idle < ask.instances) & (made >= ask.instances)
                self.drop(waits, f"have {name} declared, and not made yet")
            self.lack(
                idle < ask.instances,
                idle,
                lambda most: (
                    f"lack {name} instances ({ask.instances} asked, at most {most} {self.state})"
                ),
            )
        if not ask.devices:
            return
        if self.each.share_bytes:
            asked = quantities.format_memory(self.each.share_bytes)
            self.drop(
                (nodes.device_memory > 0) & (nodes.device_memory < self.each.share_bytes),
                f"have GPUs with less than {asked} of memory",
            )
            has = (nodes.devices >= 0).any(axis=1)
            self.drop(has & (nodes.device_memory <= 0), "have GPUs of unknown memory")
        if ask.shares is not None or ask.share < WHOLE:
            shares = ask.shares if ask.shares is not None else np.full(len(self.left), ask.share)
            self.drop((shares < WHOLE) & ~nodes.shareable, UNSHARED)
            self._shares(shares)
            return
        self._short(columns.idle < ask.devices, columns.idle, "GPUs", ask.devices, str)
        if ask.inner is not None:
            self._inner(ask.inner)

    def _inner(self, layouts: NDArray[np.int8]) -> None:
        """Devices of one domain within the node."""
        asked, word = self.ask.devices, devices.INNER_WORDS[self.each.inner]
        unknown: snapshots.Mask = np.logical_and.reduce(layouts < 0, axis=1)
        self.drop(unknown, f"do not tell the {word} of their GPUs")
        most = device_choice.most_within(self.columns.devices, layouts)
        self.lack(
            most < asked,
            most,
            lambda found: f"lack {asked} GPUs of one {word} (at most {found} {self.state})",
        )

    def _shares(self, shares: NDArray[np.int64]) -> None:
        ask, free = self.ask, self.columns.devices
        enough = (free >= shares[:, None]).sum(axis=1)
        best = (
            np.sort(free, axis=1)[:, -ask.devices].clip(0)
            if free.shape[1] >= ask.devices
            else (np.zeros(len(free), dtype=np.int64))
        )
        if ask.shares is None:
            what = quantities.format_gpu(ask.share)
        else:
            what = quantities.format_memory(self.each.share_bytes) + " of memory"
        self.lack(
            enough < ask.devices,
            best,
            lambda most: _no_share(ask.devices, what, most, idle=self.planner.idle),
        )

    def _rest(self, rest: int, held: int) -> str:
        need = max(self.each.least, 1)
        verb = "has" if rest == 1 else "have"
        words = f"{verb} room for {held} of {need} tasks"
        level = max(self.each.required_level, self.asked.required_level)
        if level < 0 or held < need:
            return words
        counts, _ = self.planner.counts(self.shape, self.group, None)
        domains = self.planner.network.domains[:, level]
        inside = (domains >= 0) & (counts > 0)
        _, places = np.unique(domains[inside], return_inverse=True)
        room = np.bincount(places, weights=np.minimum(counts[inside], need))
        most = min(int(room.max()), need)
        return f"{words}, at most {most} in one {_level(self.planner.situation, level)}"
