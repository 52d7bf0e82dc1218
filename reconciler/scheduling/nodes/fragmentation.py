"""How much of a node's GPUs is likely to stay unused, and how much more after a placement.

A task belongs where the node loses least of the GPU that the observed mix of work would have
filled. What the mix would fill is tried out: a few streams of tasks, drawn from the mix, are
offered to the node one after the other, each task is taken if it fits, and what is then left of
the devices is *unused*. The mean over the streams counts what any single-task measure misses:
devices stranded because tasks use up the node's CPU or memory first, shares that complement each
other (470 + 470 of 1000) and shares that don't, and models that only few tasks may use. The
difference that a placement makes to it is the placement's cost.

To score by how a placement changes a node's fragmentation under the mix is the idea of
fragmentation gradient descent (Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing
Workloads with Fragmentation Gradient Descent", USENIX ATC 2023), which asks what *one* more task
could use. To judge a state by playing a simple base policy on from it, with the same draws for
all candidates, is a rollout (Bertsekas, Tsitsiklis, Wu, "Rollout Algorithms for Combinatorial
Optimization", Journal of Heuristics 3, 1997).

Values are pure functions of the mix, the kind of node and what it has free: no randomness comes
in (the draws are stratified, from a generator of fixed seed), and keeping values only saves time.
"""

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import WHOLE

#: Streams of tasks that are offered to a node. Two do most of it; more than eight gain nothing.
STREAMS = 8
#: A stream asks for so many times the GPUs of the node: what does not fit goes to other nodes, so
#: each node sees more work than it can hold. From 3 to 8 the results are alike.
OFFERED = 5.0
#: Tasks in a stream at the most.
LENGTH_MAX = 160
#: Weight of what the node could not give to tasks of one kind alone, the mean over the kinds. So
#: little that it decides only where the few streams see no difference.
ALONE = 0.03
#: Values that one outlook keeps; then it begins anew.
VALUES_MAX = 100_000
#: Distinct device vectors of an outlook, after which it is not handed out for further snapshots.
VECTORS_MAX = 16_384
#: Outlooks kept for further snapshots.
OUTLOOKS_MAX = 2
#: Weights are rounded to so many steps a doubling: a few more arrivals make no other mix.
WEIGHT_STEPS = 4
_SEED = 7
#: More than any device has: what may not go to a node asks for this share there.
IMPOSSIBLE = 2 * WHOLE

Costs = NDArray[np.float64]
Amounts = NDArray[np.int64]
Rows = NDArray[np.intp]
#: What one task of a stream asks: share of each device, milli-CPUs, bytes, devices.
Offer = tuple[int, int, int, int]


class FragmentationForecast:
    """What a mix of work makes of nodes.

    What devices have free is numbered: ``number`` gives the *vector*, a row that stands for a
    class of node with these free devices.
    """

    def __init__(
        self,
        mix: Sequence[snapshots.ArrivalShare],
        eligible: snapshots.Mask,
        device_memory: Amounts,
        shareable: snapshots.Mask,
    ) -> None:
        """Take note of the mix.

        Args:
            mix: kinds of tasks that arrive, in any order; those that take no device, or MIG
                instances, don't count.
            eligible: (c, len(mix)) whether tasks of a kind may go to a class of nodes.
            device_memory: (c,) bytes of one device there; 0 where unknown.
            shareable: (c,) whether devices may be shared there.
        """
        kinds = [
            at
            for at, entry in enumerate(mix)
            if entry.group.devices and entry.group.profile < 0 and entry.weight > 0
        ]
        kinds.sort(key=lambda at: _rank(mix[at], eligible[:, at]))
        groups = [mix[at].group for at in kinds]
        weights = np.array([2.0 ** (_step(mix[at]) / WEIGHT_STEPS) for at in kinds])
        self._weights = weights / weights.sum() if kinds else weights
        self._cpu = np.array([group.amounts[0] for group in groups], dtype=np.int64)
        self._memory = np.array([group.amounts[1] for group in groups], dtype=np.int64)
        self._devices = np.array([group.devices for group in groups], dtype=np.int64)
        self._share = np.full((len(device_memory), len(kinds)), IMPOSSIBLE, dtype=np.int64)
        for column, (at, group) in enumerate(zip(kinds, groups, strict=True)):
            shares = _shares_of(group, device_memory, shareable)
            self._share[:, column] = np.where(eligible[:, at], shares, IMPOSSIBLE)
        # GPU that a milli-CPU, or a byte, lets each kind use
        size = (self._share * self._devices).astype(np.float64)
        self._per_cpu = size / np.maximum(self._cpu, 1)
        self._per_byte = size / np.maximum(self._memory, 1)
        generator = np.random.Generator(np.random.PCG64(_SEED))
        strata = generator.random((STREAMS, LENGTH_MAX)).argsort(axis=0)
        self._points = (strata + generator.random(LENGTH_MAX)) / STREAMS
        self._offers: dict[tuple[int, int], list[list[Offer]]] = {}
        self._values: dict[tuple[int, int, int], float] = {}
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._vectors: list[tuple[int, tuple[int, ...]]] = []
        self._class = np.zeros(64, dtype=np.intp)
        self._free = np.zeros(64)
        self._usable = np.zeros((64, len(kinds)))

    @property
    def is_full(self) -> bool:
        """Whether it has seen so much that a new one should be begun."""
        return len(self._vectors) > VECTORS_MAX

    def number(self, node_class: int, devices: tuple[int, ...]) -> int:
        """The row of these free devices (milli-GPUs, ascending) on nodes of this class."""
        key = (node_class, devices)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._vectors)
            self._vectors.append(key)
            if found == len(self._free):
                self._class = np.concatenate([self._class, np.zeros_like(self._class)])
                self._free = np.concatenate([self._free, np.zeros_like(self._free)])
                self._usable = np.concatenate([self._usable, np.zeros_like(self._usable)])
            free = np.maximum(np.array(devices, dtype=np.int64), 0)
            enough = free >= self._share[node_class][:, None]
            self._class[found] = node_class
            self._free[found] = free.sum()
            self._usable[found] = (enough.sum(axis=1) >= self._devices) * (enough @ free)
        return found

    def alone(self, vectors: Rows, cpu: Amounts, memory: Amounts) -> Costs:
        """(s,) milli-GPUs that tasks of one kind alone can't use, the mean over the kinds.

        CPU and memory bound a kind in proportion, not by whole tasks. A hundred times cheaper
        than ``unused``, and near to it. Without a mix: all that is free.
        """
        cpu, memory = cpu[:, None], memory[:, None]
        usable, classes = self._usable[vectors], self._class[vectors]
        np.minimum(usable, cpu * self._per_cpu[classes], out=usable, where=self._cpu > 0)
        np.minimum(usable, memory * self._per_byte[classes], out=usable, where=self._memory > 0)
        usable *= (cpu >= self._cpu) & (memory >= self._memory)
        found: Costs = self._free[vectors] - usable @ self._weights
        return found

    def unused(self, vectors: Rows, cpu: Amounts, memory: Amounts) -> Costs:
        """(s,) milli-GPUs of nodes with so much left that are likely to stay unused.

        Without a mix: all that is free.
        """
        keys = list(zip(vectors.tolist(), cpu.tolist(), memory.tolist(), strict=True))
        values = self._values
        if len(values) > VALUES_MAX:
            values.clear()
        new = list({key: at for at, key in enumerate(keys) if key not in values}.values())
        if new:
            alone = ALONE * self.alone(vectors[new], cpu[new], memory[new])
            for at, lost in zip(new, alone.tolist(), strict=True):
                values[keys[at]] = lost + self._left_by_streams(*keys[at])
        return np.array([values[key] for key in keys], dtype=np.float64)

    def _left_by_streams(self, vector: int, cpu: int, memory: int) -> float:
        """Milli-GPUs that the streams leave, their mean."""
        node_class, devices = self._vectors[vector]
        free = [amount for amount in devices if amount > 0]
        width = sum(1 for amount in devices if amount >= 0)
        taken = 0
        if free and len(self._cpu):
            for stream in self.streams(node_class, width):
                taken += _played(stream, free.copy(), cpu, memory)
        return sum(free) - taken / STREAMS

    def streams(self, node_class: int, devices: int) -> list[list[Offer]]:
        """What is offered to nodes of a class with so many devices.

        Kinds come by weight, of those that may go to such a node at all. At each place of the
        streams the draws are spread evenly over the kinds, one from each of ``STREAMS`` strata,
        so that a few streams represent the mix.
        """
        found = self._offers.get((node_class, devices))
        if found is None:
            share = self._share[node_class]
            possible = (share <= WHOLE) & (self._devices <= devices)
            weights = np.where(possible, self._weights, 0.0)
            found = [[] for _ in range(STREAMS)]
            if weights.any():
                asked = float((weights * share * self._devices).sum() / weights.sum())
                length = int(np.ceil(OFFERED * WHOLE * devices / asked))
                points = self._points[:, : min(max(length, 1), LENGTH_MAX)]
                edges = np.cumsum(weights / weights.sum())
                last = np.flatnonzero(weights)[-1]
                drawn = np.minimum(np.searchsorted(edges, points, side="right"), last)
                columns = (share, self._cpu, self._memory, self._devices)
                offers = list(zip(*(column.tolist() for column in columns), strict=True))
                found = [[offers[kind] for kind in stream] for stream in drawn.tolist()]
            self._offers[node_class, devices] = found
        return found


#: Outlooks of the last snapshots, by all that they follow from.
_kept: OrderedDict[Hashable, FragmentationForecast] = OrderedDict()


def outlook(
    mix: Sequence[snapshots.ArrivalShare],
    eligible: snapshots.Mask,
    device_memory: Amounts,
    shareable: snapshots.Mask,
) -> FragmentationForecast:
    """The outlook of these arguments, one that was made before if there is one.

    Cycles follow each other with the same mix: values of the last one are then known already. For
    one thread at a time.
    """
    kinds = [_rank(entry, eligible[:, at]) for at, entry in enumerate(mix) if entry.weight > 0]
    key = (tuple(sorted(kinds)), device_memory.tobytes(), shareable.tobytes())
    found = _kept.pop(key, None)
    if found is None or found.is_full:
        found = FragmentationForecast(mix, eligible, device_memory, shareable)
    _kept[key] = found
    while len(_kept) > OUTLOOKS_MAX:
        _kept.popitem(last=False)
    return found


def _played(stream: list[Offer], free: list[int], cpu: int, memory: int) -> int:
    """Milli-GPUs that a stream takes of one node; ``free`` is ascending, and used up."""
    taken, top = 0, free[-1]
    for share, need_cpu, need_memory, many in stream:
        if share > top or need_cpu > cpu or need_memory > memory:
            continue
        first = bisect_left(free, share)
        if first + many > len(free):
            continue
        cpu -= need_cpu
        memory -= need_memory
        taken += share * many
        if many == 1:
            left = free.pop(first) - share
            if left:
                insort(free, left)
        else:
            rest = [amount - share for amount in free[first : first + many] if amount > share]
            free[first : first + many] = rest
            free.sort()
        if not free:
            break
        top = free[-1]
    return taken


def _step(entry: snapshots.ArrivalShare) -> int:
    return round(math.log2(entry.weight) * WEIGHT_STEPS)


def _rank(entry: snapshots.ArrivalShare, eligible: snapshots.Mask) -> tuple[int | bytes, ...]:
    """A kind as what it is. Kinds go by this, so that the order of the mix does not matter."""
    group = entry.group
    size = group.devices * (group.share_bytes or min(group.share, WHOLE))
    asked = (group.share_bytes, size, *group.amounts, group.devices, group.share, group.profile)
    return (*asked, _step(entry), eligible.tobytes())


def _shares_of(
    group: snapshots.TaskGroupShape, device_memory: Amounts, shareable: snapshots.Mask
) -> Amounts:
    """(c,) milli-GPUs of each device that a task takes on classes of nodes, or ``IMPOSSIBLE``."""
    if group.share_bytes:
        known = np.maximum(device_memory, 1)
        shares = np.where(device_memory > 0, -(-WHOLE * group.share_bytes // known), IMPOSSIBLE)
    else:
        shares = np.full(len(device_memory), min(group.share, WHOLE), dtype=np.int64)
    unusable = (shares > WHOLE) | ((shares < WHOLE) & ~shareable)
    found: Amounts = np.where(unusable, IMPOSSIBLE, shares)
    return found
