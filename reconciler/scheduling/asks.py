"""What one task of a group asks of a node, resolved against the nodes of a snapshot."""

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.snapshot import WHOLE

#: As many tasks of a node as anyone asks for: what a task that takes nothing fits.
PLENTY = 2**31
#: A share that no device has: where the memory of a device is unknown or too small.
IMPOSSIBLE = 10 * WHOLE


class Ask:
    """One task group against a snapshot's nodes.

    Attributes:
        cpu, memory: milli-CPUs and bytes of one task.
        devices: devices, or MIG instances, of one task.
        share: milli-GPUs of each device; 0: it depends on the node.
        shares: (n,) milli-GPUs of each device by node where it depends on it, else None.
        profile: MIG profile, -1 for none.
        closed: (n,) nodes that can't serve it at all, for want of known memory or of sharing.
    """

    __slots__ = (
        "amounts",
        "closed",
        "cpu",
        "devices",
        "instances",
        "memory",
        "profile",
        "share",
        "shares",
    )

    def __init__(self, group: snapshots.GroupShape, nodes: snapshots.NodeColumns) -> None:
        self.amounts = group.amounts
        self.cpu, self.memory, _ = group.amounts
        self.profile = group.profile
        is_mig = group.profile >= 0
        self.instances = group.devices if is_mig else 0
        self.devices = 0 if is_mig else group.devices
        self.share = group.share
        self.shares: NDArray[np.int64] | None = None
        self.closed: snapshots.Mask | None = None
        if not self.devices:
            return
        if group.share_bytes:
            known = np.maximum(nodes.device_memory, 1)
            shares = -(-WHOLE * group.share_bytes // known)
            shares[(nodes.device_memory <= 0) | (shares > WHOLE)] = IMPOSSIBLE
            self.share, self.shares = 0, shares
            self.closed = (shares > WHOLE) | ((shares < WHOLE) & ~nodes.shareable)
        elif group.share < WHOLE:
            self.closed = ~nodes.shareable

    def share_on(self, node: int) -> int:
        """Milli-GPUs of each device on this node."""
        return self.share if self.shares is None else int(self.shares[node])

    def charged(self, node: int) -> snapshots.Vector:
        """(cpu, memory, gpu) that one task is charged on this node."""
        if self.shares is None:
            return self.amounts
        return (self.cpu, self.memory, self.devices * int(self.shares[node]))
