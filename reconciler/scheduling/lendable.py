"""The most that a queue could ever have: its guarantee, and what others do not keep to themselves.

What is written of queues comes in with the nodes that have joined, also those that take no work
for the moment; for each queue and resource one amount goes out. It is what ``Ledger.over_lending``
would let an idle cluster start: what others use of their guarantees they lend to nobody, and what
they leave idle is kept back only as far as it is not lent, so that no use of theirs makes it more.
"""

from reconciler.scheduling import bypool
from reconciler.scheduling import ledger as ledgers
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.snapshot import UNLIMITED, Charge


class Lendable:
    """The bounds of one cycle; each is worked out when it is first asked for."""

    def __init__(self, situation: snapshots.Snapshot, ledger: ledgers.Ledger) -> None:
        self._ledger = ledger
        self._whole = bypool.capacity(situation, also_closed=True) if ledger.lends else ()
        self._most: dict[tuple[int, int], int] = {}

    def beyond(self, queue: int, asked: Charge) -> int | None:
        """The first resource of which a start asks for more than its queue could ever have."""
        if not self._ledger.lends:
            return None
        return next((r for r in self._ledger.resources if asked[r] > self.of(queue, r)), None)

    def of(self, queue: int, resource: int) -> int:
        """The most of one resource; ``UNLIMITED`` where only the nodes are a bound."""
        if not self._ledger.lends:
            return UNLIMITED
        found = self._most.get((queue, resource))
        if found is None:
            found = self._most[queue, resource] = self._found(queue, resource)
        return found

    def _found(self, queue: int, resource: int) -> int:
        """What a guarantee on its path covers, or what the guarantees of others leave of all."""
        ledger, most, kept = self._ledger, 0, 0
        path = ledger.paths[queue]
        for member, above in zip(path, (*path[1:], -1), strict=True):
            if ledger.rationed[member][resource]:
                most = max(most, ledger.guaranteed[member][resource] - kept)
            beside = [other for other in ledger.children[above] if other != member]
            kept += sum(self._kept(other, resource) for other in beside)
        return max(most, self._whole[resource] - kept) if kept else UNLIMITED

    def _kept(self, queue: int, resource: int) -> int:
        """What a queue and those below it lend to nobody while they leave it idle."""
        ledger = self._ledger
        own = ledger.guaranteed[queue][resource] - ledger.lending[queue][resource]
        below = sum(self._kept(child, resource) for child in ledger.children[queue])
        return max(0, min(own, self._whole[resource]), below)
