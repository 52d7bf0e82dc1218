"""Why nodes were not, and why nodes were chosen, in words."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reconciler.model import quantities
from reconciler.model.reasons import FunnelStep
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.asks import Ask
from reconciler.scheduling.elements import Plan, Planner
from reconciler.scheduling.inventory import Columns
from reconciler.scheduling.snapshot import WHOLE

_STRATEGIES: dict[str, str] = {
    "pack": "the fullest with room",
    "spread": "the emptiest with room",
    "least-fragmentation": "the least growth of fragmentation for what arrives here",
}


def funnel(planner: Planner, shape: int) -> tuple[FunnelStep, ...]:
    """How nodes drop out for a task of the scarcest group; the counts add up to all nodes."""
    group, held = _scarcest(planner, shape)
    return _Funnel(planner, shape, group).steps(held)


def why(planner: Planner, shape: int, plan: Plan) -> str:
    """Why an element goes to these nodes."""
    asked = planner.situation.shapes[shape]
    nodes = len({part.node for part in plan.parts})
    if not nodes:
        return "it takes nothing"
    reason = _STRATEGIES[asked.strategy]
    if asked.strategy == "least-fragmentation" and not planner.situation.mix:
        reason = "the tightest fit"
    parts = []
    if asked.scores is not None or any(affinity.weight for affinity in asked.affinities):
        parts.append("preferred nodes first")
    if plan.level >= 0:
        parts.append(f"all in one {_level(planner, plan.level)}, the smallest room that fits")
    elif len(plan.parts) > 1 and _preferred(asked) >= 0:
        level = _level(planner, _preferred(asked))
        parts.append(f"no single {level} had room, so as few of them as can be")
    if nodes > 1 and asked.strategy != "spread":
        parts.append(f"as few nodes as can be ({nodes})")
    parts.append(reason)
    return ", then ".join(parts)


def _preferred(asked: snapshots.Shape) -> int:
    return max(asked.preferred_level, *(group.preferred_level for group in asked.groups))


def _level(planner: Planner, level: int) -> str:
    names = planner.situation.levels
    return names[level] if level < len(names) else "node"


def _scarcest(planner: Planner, shape: int) -> tuple[int, int]:
    """(group with the least room for its tasks, the number of them that have room)."""
    ranked = []
    for position, group in enumerate(planner.situation.shapes[shape].groups):
        need = max(group.least, 1)
        counts, _ = planner.counts(shape, position, None)
        held = min(int(np.minimum(counts, need).sum()), need)
        ranked.append((held / need, position, held))
    _, position, held = min(ranked)
    return position, held


class _Funnel:
    """The steps for one group; each takes away nodes from those that are left."""

    def __init__(self, planner: Planner, shape: int, group: int) -> None:
        self.planner = planner
        self.shape = shape
        self.group = group
        self.asked = planner.situation.shapes[shape]
        self.each = self.asked.groups[group]
        self.ask: Ask = planner.asks[shape][group]
        self.columns: Columns = planner.stock.columns()
        self.state = "there" if planner.idle else "free"
        self.left: snapshots.Mask = self.asked.eligible.copy()
        self.found: list[FunnelStep] = list(self.asked.filtered)

    def steps(self, held: int) -> tuple[FunnelStep, ...]:
        """All of them; ``held`` tasks of the group have room."""
        others = int((~self.left).sum()) - sum(step.count for step in self.found)
        if others > 0:
            self.found.append(FunnelStep(others, "not eligible"))
        self._closed()
        self._devices()
        for name, amount, column in (
            ("CPUs", self.ask.cpu, self.columns.cpu),
            ("memory", self.ask.memory, self.columns.memory),
        ):
            form = quantities.format_cpu if name == "CPUs" else quantities.format_memory
            if amount:
                self._lack(
                    column < amount,
                    column,
                    lambda most, n=name, a=amount, f=form: (
                        f"lack {n} ({f(a)} asked, at most {f(max(most, 0))} {self.state})"
                    ),
                )
        rest = int(self.left.sum())
        if rest:
            self.found.append(FunnelStep(rest, self._rest(rest, held)))
        return tuple(self.found)

    def _drop(self, mask: snapshots.Mask, words: str) -> None:
        dropped = self.left & mask
        count = int(dropped.sum())
        if count:
            self.found.append(FunnelStep(count, words))
            self.left &= ~mask

    def _lack(self, mask: snapshots.Mask, column: NDArray[Any], words: Any) -> None:
        dropped = self.left & mask
        if dropped.any():
            self._drop(mask, words(int(column[dropped].max())))

    def _closed(self) -> None:
        nodes, planner = self.planner.situation.nodes, self.planner
        opened = np.array(planner.stock.opened, dtype=np.bool_)
        if not planner.idle:
            self._drop(~nodes.accepts, "not accepting work")
        self._drop(~opened, "set aside for others")
        self._drop(self.columns.exclusive > 0, "taken exclusively by other work")
        if self.asked.exclusive:
            self._drop(self.columns.occupied > 0, "in use (whole nodes asked)")
        rules = planner.rules(self.shape)
        if rules.allowed is not None:
            self._drop(~rules.allowed, "ruled out by affinity to other jobs")
        level = max(self.each.required_level, self.asked.required_level)
        if level >= 0:
            domains = planner.network.domains[:, level]
            self._drop(domains < 0, f"in no {_level(planner, level)}")

    def _devices(self) -> None:
        ask, columns = self.ask, self.columns
        nodes = self.planner.situation.nodes
        if ask.instances:
            name = self.planner.situation.profiles[ask.profile]
            idle = columns.instances[:, ask.profile]
            self._lack(
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
            self._drop(
                (nodes.device_memory > 0) & (nodes.device_memory < self.each.share_bytes),
                f"have GPUs with less than {asked} of memory",
            )
            has = (nodes.devices >= 0).any(axis=1)
            self._drop(has & (nodes.device_memory <= 0), "have GPUs of unknown memory")
        if ask.shares is not None or ask.share < WHOLE:
            shares = ask.shares if ask.shares is not None else np.full(len(self.left), ask.share)
            self._drop((shares < WHOLE) & ~nodes.shareable, "do not share GPUs")
            self._shares(shares)
            return
        idle = (columns.devices == WHOLE).sum(axis=1)
        asked = quantities.format_gpu(ask.devices * WHOLE)
        self._lack(
            idle < ask.devices,
            idle,
            lambda most: f"lack GPUs ({asked} asked, at most {most} {self.state})",
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
        number = "one GPU" if ask.devices == 1 else f"{ask.devices} GPUs each"
        self._lack(
            enough < ask.devices,
            best,
            lambda most: (
                f"lack room on {number} ({what} asked, at most "
                f"{quantities.format_gpu(most)} {self.state})"
            ),
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
        return f"{words}, at most {most} in one {_level(self.planner, level)}"
