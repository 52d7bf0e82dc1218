"""How much a placement adds to fragmentation, for the mix of work that arrives here.

Fragmentation of a node for one kind of task is what is left of its GPUs that this kind can't
use: all of it where the task does not fit for another reason, else the parts of devices that are
too small for its share. The expectation over the mix is what a placement should add least to
(Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023).

``growth`` is the whole score: a pure function of what nodes have before and after. Everything
else here prepares its inputs so that they are computed once for each distinct set of devices.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.snapshot import WHOLE

Costs = NDArray[np.float64]


class Mix(NamedTuple):
    """The k kinds of tasks as columns: what each asks besides GPUs."""

    cpu: NDArray[np.int64]
    memory: NDArray[np.int64]


class States(NamedTuple):
    """What s nodes have left.

    Attributes:
        cpu, memory: (s,) milli-CPUs, bytes.
        left: (s,) milli-GPUs free on all devices.
        usable: (s, k) of them what each kind of the mix could use if CPU and memory did not
            matter, times the kind's weight.
    """

    cpu: NDArray[np.int64]
    memory: NDArray[np.int64]
    left: Costs
    usable: Costs


def expected(states: States, mix: Mix) -> Costs:
    """(s,) expected milli-GPUs that a task of the mix can't use."""
    fits = (states.cpu[:, None] >= mix.cpu) & (states.memory[:, None] >= mix.memory)
    useful: Costs = np.einsum("sk,sk->s", fits, states.usable)
    return states.left - useful


def growth(before: States, after: States, mix: Mix) -> Costs:
    """(s,) how much more GPU is lost to the mix after a placement than before; lower is better."""
    return expected(after, mix) - expected(before, mix)


class DeviceTable:
    """The device part of ``States`` for each distinct (class of node, free devices).

    ``number`` gives the row; rows are computed once.
    """

    def __init__(
        self,
        mix: Sequence[snapshots.MixEntry],
        eligible: snapshots.Mask,
        device_memory: NDArray[np.int64],
        shareable: snapshots.Mask,
    ) -> None:
        """``eligible`` is (c, k) by class of node and kind; the others are (c,)."""
        kinds = [
            at for at, entry in enumerate(mix) if entry.group.devices and entry.group.profile < 0
        ]
        groups = [mix[at].group for at in kinds]
        self.mix = Mix(
            np.array([group.amounts[0] for group in groups], dtype=np.int64),
            np.array([group.amounts[1] for group in groups], dtype=np.int64),
        )
        weights = np.array([mix[at].weight for at in kinds], dtype=np.float64)
        self._weights = eligible[:, kinds] * weights
        self._devices = np.array([group.devices for group in groups], dtype=np.int64)
        fixed = np.array([min(group.share, WHOLE) for group in groups], dtype=np.int64)
        demanded = np.array([group.share_bytes for group in groups], dtype=np.int64)
        known = np.maximum(device_memory, 1)[:, None]
        self._shares = np.where(demanded > 0, -(-WHOLE * demanded // known), fixed)
        impossible = (demanded > 0) & ((device_memory <= 0)[:, None] | (self._shares > WHOLE))
        unshared = (self._shares < WHOLE) & ~shareable[:, None]
        self._weights = np.where(impossible | unshared, 0.0, self._weights)
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._left = np.zeros(64)
        self._usable = np.zeros((64, len(kinds)))

    def number(self, node_class: int, devices: tuple[int, ...]) -> int:
        """The row of these free devices on nodes of this class."""
        key = (node_class, devices)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._numbers)
            if found == len(self._left):
                self._left = np.concatenate([self._left, np.zeros_like(self._left)])
                self._usable = np.concatenate([self._usable, np.zeros_like(self._usable)])
            free = np.maximum(np.array(devices, dtype=np.int64), 0)
            self._left[found] = free.sum()
            shares = self._shares[node_class]
            enough = free >= shares[:, None]
            fits = enough.sum(axis=1) >= self._devices
            useful = (enough * free).sum(axis=1)
            self._usable[found] = fits * useful * self._weights[node_class]
        return found

    def states(
        self, rows: NDArray[np.intp], cpu: NDArray[np.int64], memory: NDArray[np.int64]
    ) -> States:
        """The states of nodes with these rows of the table, CPU and memory."""
        return States(cpu, memory, self._left[rows], self._usable[rows])
