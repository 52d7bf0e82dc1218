"""How many tasks of a plain gang nodes have room for, kept up as nodes change.

A gang whose tasks may lie anywhere has room where the tasks that each node could take come to
enough. Whoever goes from moment to moment and asks the same of a room each time needs to count only
the nodes that changed since; where they lie is worked out once there is room.
"""

from dataclasses import dataclass

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.nodes import device_choice, topology
from reconciler.scheduling.nodes.free_resources import FreeResources
from reconciler.scheduling.nodes.node_rows import NodeRow
from reconciler.scheduling.nodes.requirements import TaskRequirements


@dataclass(slots=True)
class GangCapacity:
    """What nodes have room for, as of a length of the log of an inventory.

    Attributes:
        need: tasks that start together; no node counts for more.
        usable: (n,) nodes that may be used.
        within: the nodes that it was asked for, None for all.
        counts: for each node. total: of all.
        at: the length of the log.
    """

    need: int
    usable: snapshots.Mask
    within: snapshots.Mask | None
    counts: list[int]
    total: int
    at: int

    @classmethod
    def of(
        cls,
        stock: FreeResources,
        ask: TaskRequirements,
        need: int,
        eligible: snapshots.Mask,
        within: snapshots.Mask | None,
    ) -> "GangCapacity":
        """Count all nodes."""
        usable = eligible & stock.opened_mask
        if within is not None:
            usable &= within
        if ask.closed is not None:
            usable &= ~ask.closed
        found = stock.counts(ask, usable)
        if ask.per_node:
            found = topology.per_node(found, ask.per_node)
        counts = found.clip(max=need).tolist()
        return cls(need, usable, within, counts, sum(counts), len(stock.log))

    def renew(self, stock: FreeResources, ask: TaskRequirements) -> None:
        """Count the nodes that changed since."""
        if len(stock.log) == self.at:
            return
        counts = self.counts
        for node in stock.touched(self.at):
            held = _held(stock.rows[node], ask, self.need) if self.usable[node] else 0
            self.total += held - counts[node]
            counts[node] = held
        self.at = len(stock.log)

    def copy(self) -> "GangCapacity":
        """The same for a copy of the inventory, whose log is empty."""
        return GangCapacity(self.need, self.usable, self.within, self.counts.copy(), self.total, 0)


def _held(row: NodeRow, ask: TaskRequirements, most: int) -> int:
    """How many tasks a node has room for, ``most`` at the most; as ``FreeResources.counts``
    says."""
    if row.exclusive > 0:
        return 0
    if ask.cpu:
        most = min(most, row.cpu // ask.cpu)
    if ask.memory:
        most = min(most, row.memory // ask.memory)
    if ask.devices:
        most = min(most, device_choice.count_fits(row.devices, ask.devices, ask.share))
    if ask.per_node:
        return ask.per_node if most >= ask.per_node else 0
    return max(most, 0)
