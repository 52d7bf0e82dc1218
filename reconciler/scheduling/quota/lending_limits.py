"""The most that queues could ever have of each resource, as the ledger of a cycle reads them.

What is written of queues comes in with the nodes that have joined, also those that take no work
for the moment; for a queue and a resource one amount goes out: what ``QuotaLedger.over_lending``
would let an idle cluster start.
"""

from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.snapshots import UNLIMITED, Charge
from reconciler.scheduling.quota import queue_tree, quota_ledger


class LendingLimits:
    """The bounds of one cycle."""

    def __init__(self, situation: snapshots.Snapshot, ledger: quota_ledger.QuotaLedger) -> None:
        self._resources = ledger.resources
        whole = flavors.capacity(situation, also_closed=True) if ledger.lends else ledger.nothing
        self._most = queue_tree.most(queue_tree.of(situation.queues), whole)

    def beyond(self, queue: int, shape: snapshots.Shape, asked: Charge) -> int | None:
        """The first resource of which a start asks for more than its queue could ever have.

        ``asked``: what it is charged at the most; of what asks for memory of GPUs nobody knows
        which part of one that comes to.
        """
        if self._most is None or any(group.share_bytes for group in shape.groups):
            return None
        return next((r for r in self._resources if asked[r] > self.of(queue, r)), None)

    def of(self, queue: int, resource: int) -> int:
        """The most of one resource; ``UNLIMITED`` where only the nodes are a bound."""
        found = None if self._most is None else self._most.of(queue, resource)
        return UNLIMITED if found is None else found
