"""The most that queues could ever have of each resource, as others lend of their guarantees.

What is written of queues comes in with the nodes that have joined, also those that take no work
for the moment; for a queue and a resource one amount goes out: what ``QuotaLedger.over_lending``
would let an idle cluster start.
"""

from reconciler.model.rules import guarantees
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.snapshots import UNLIMITED, Charge
from reconciler.scheduling.quota import queue_tree


class LendingLimits:
    """The bounds of one cycle."""

    def __init__(self, situation: snapshots.Snapshot) -> None:
        specs = queue_tree.of(situation.queues)
        #: None: all lend everything.
        self._most: guarantees.Most | None = None
        if specs.lends:
            self._most = guarantees.Most(
                specs.paths,
                owed=specs.guaranteed,
                lent=specs.lending,
                measured=specs.rationed,
                whole=flavors.capacity(situation, also_closed=True),
            )

    @property
    def bound(self) -> bool:
        """Whether any queue keeps something back from others."""
        return self._most is not None

    def beyond(self, queue: int, shape: snapshots.Shape, asked: Charge) -> int | None:
        """Return the first resource of which a start asks for more than its queue could ever have.

        ``asked``: what it is charged at the most; of what asks for memory of GPUs nobody knows
        which part of one that comes to.
        """
        if self._most is None or any(group.share_bytes for group in shape.groups):
            return None
        return next((r for r, amount in enumerate(asked) if amount > self.of(queue, r)), None)

    def of(self, queue: int, resource: int) -> int:
        """Return the most of one resource; ``UNLIMITED`` where only the nodes are a bound."""
        found = None if self._most is None else self._most.of(queue, resource)
        return UNLIMITED if found is None else found
