"""What one task of a group asks of a node, resolved against the nodes of a snapshot."""

import copy

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import WHOLE
from reconciler.scheduling.nodes import device_choice

#: As many tasks of a node as anyone asks for: what a task that takes nothing fits.
PLENTY = 2**31
#: A share that no device has: where the memory of a device is unknown or too small.
IMPOSSIBLE = 10 * WHOLE


def needs_inner(group: snapshots.TaskGroupShape) -> bool:
    """Whether it matters which devices of a node are near each other; one is near itself."""
    is_whole = group.profile < 0 and not group.share_bytes and group.share >= WHOLE
    return group.inner >= 0 and group.devices > 1 and is_whole


class TaskRequirements:
    """One task group against a snapshot's nodes.

    Attributes:
        cpu, memory: milli-CPUs and bytes of one task.
        devices: devices, or MIG instances, of one task.
        share: milli-GPUs of each device; 0: it depends on the node.
        shares: (n,) milli-GPUs of each device by node where it depends on it, else None.
        profile: MIG profile, -1 for none.
        closed: (n,) nodes that can't serve it at all, for want of known memory or of sharing.
        inner: (n, d) domains within nodes, in one of which the devices of a task have to be.
        rather: the same where they only should be.
        per_node: tasks that a node takes if it takes any; 0: any number.
    """

    __slots__ = (
        "amounts",
        "closed",
        "cpu",
        "devices",
        "inner",
        "instances",
        "memory",
        "per_node",
        "profile",
        "rather",
        "share",
        "shares",
    )

    def __init__(self, group: snapshots.TaskGroupShape, nodes: snapshots.NodeColumns) -> None:
        self.amounts = group.amounts
        self.cpu, self.memory, _ = group.amounts
        self.profile, self.per_node = group.profile, group.per_node
        is_mig = group.profile >= 0
        self.instances = group.devices if is_mig else 0
        self.devices = 0 if is_mig else group.devices
        self.share = group.share
        self.shares: NDArray[np.int64] | None = None
        self.closed: snapshots.Mask | None = None
        self.inner: NDArray[np.int8] | None = None
        self.rather: NDArray[np.int8] | None = None
        if not self.devices:
            return
        if needs_inner(group):
            layouts = (
                nodes.inner[group.inner]
                if nodes.inner
                else np.full_like(nodes.devices, -1, dtype=np.int8)
            )
            if group.inner_preferred:
                self.rather = layouts
            else:
                self.inner = layouts
        if group.share_bytes:
            known = np.maximum(nodes.device_memory, 1)
            shares = -(-WHOLE * group.share_bytes // known)
            shares[(nodes.device_memory <= 0) | (shares > WHOLE)] = IMPOSSIBLE
            self.share, self.shares = 0, shares
            self.closed = (shares > WHOLE) | ((shares < WHOLE) & ~nodes.shareable)
        elif group.share < WHOLE:
            self.closed = ~nodes.shareable

    def bound(self) -> "TaskRequirements":
        """The same where what should be of one domain has to be."""
        twin = copy.copy(self)
        twin.inner, twin.rather = self.rather, None
        return twin

    def inner_on(self, node: int) -> device_choice.Layout | None:
        """Domains of the node's devices, where they have to be of one."""
        return None if self.inner is None else tuple(self.inner[node].tolist())

    def has_devices(self, free: tuple[int, ...], node: int) -> bool:
        """Whether there are devices for one task where so much is free of those of a node."""
        layout = self.inner_on(node)
        if layout is not None:
            return device_choice.count_within(free, self.devices, layout) > 0
        return device_choice.count_fits(free, self.devices, self.share_on(node)) > 0

    def give(
        self, free: tuple[int, ...], node: int, values: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The devices that a task gets of a node, and what is free afterwards.

        Raises:
            ValueError: the node has no such devices.
        """
        layouts = self.rather if self.inner is None else self.inner
        if layouts is not None:
            found = device_choice.give_within(free, self.devices, tuple(layouts[node].tolist()))
            if found is not None:
                return found
            if self.inner is not None:
                raise ValueError(
                    f"{self.devices} idle devices of one domain are asked of a node that has "
                    f"{list(free)} in {layouts[node].tolist()}: the plan is not of this room"
                )
        return device_choice.give(free, self.devices, self.share_on(node), values)

    def share_on(self, node: int) -> int:
        """Milli-GPUs of each device on this node."""
        return self.share if self.shares is None else int(self.shares[node])

    def charged(self, node: int) -> snapshots.Vector:
        """(cpu, memory, gpu) that one task is charged on this node."""
        if self.shares is None:
            return self.amounts
        return (self.cpu, self.memory, self.devices * int(self.shares[node]))
