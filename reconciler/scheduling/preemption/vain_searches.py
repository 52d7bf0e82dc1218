"""Searches for victims that would end with nobody leaving, since all would be spared again.

An ask that has room once all that leaves has left needs nobody: only reservations of others keep it
out, and whoever was taken for it would be let go. A search and an ask come in; whether it is so for
certain goes out.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.placement.capacity import Capacity
from reconciler.scheduling.preemption import candidates
from reconciler.scheduling.quota import quota_ledger


class AskedSearch(Protocol):
    """What is read of the searches of a cycle: ``preemptor.Preemption``."""

    ledger: quota_ledger.QuotaLedger
    later: Capacity

    @property
    def some_fixed(self) -> bool:
        """Whether some of what runs might have to find room beside who evicts it."""

    def is_placed_anew(self, ask: request.PlacementRequest) -> bool:
        """Whether it matters where those go whom room is promised, when they are placed anew."""

    def may_start(
        self,
        ask: request.PlacementRequest,
        losing: Iterable[int],
        freed: snapshots.Charge = quota_ledger.NOTHING,
    ) -> bool:
        """Whether limits, lenders and shares let the ask start."""


def needs_nobody(
    search: AskedSearch, ask: request.PlacementRequest, scopes: Sequence[candidates.VictimScope]
) -> bool:
    """Whether an ask could start once all that leaves has left, whoever else is taken for it.

    Each part of whoever was taken would do as well, and so would nobody. False may be wrong: it is
    where that could depend on who is taken.
    """
    ledger = search.ledger
    if ledger.lends or search.some_fixed or search.is_placed_anew(ask):
        return False
    if not ask.fits(search.later):
        return False
    own = any(scope.own for scope in scopes)
    if own and not ledger.grows_within_share(ask.queue, ask.amounts, ledger.nothing):
        return False
    return search.may_start(ask, range(len(ledger.paths)))
