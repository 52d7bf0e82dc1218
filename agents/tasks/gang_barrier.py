"""Holds prepared orders until all attempts of their gang are prepared."""

from collections.abc import Iterable
from typing import Any

Order = dict[str, Any]


class GangBarrier:
    """Orders of one node that wait for their gang. The controller releases each attempt."""

    def __init__(self) -> None:
        self._held: dict[str, Order] = {}
        #: Attempts whose gang is ready before they are prepared themselves.
        self._released: set[str] = set()

    def pass_or_hold(self, order: Order) -> list[Order]:
        """Return an order that need not wait, or hold it until its attempt is released."""
        attempt = order["id"]
        if not order.pop("hold", False) or attempt in self._released:
            self._released.discard(attempt)
            return [order]
        self._held[attempt] = order
        return []

    def release(self, attempt: str) -> list[Order]:
        """Return the held order of an attempt whose gang is ready, or remember that it is."""
        order = self._held.pop(attempt, None)
        if order is None:
            self._released.add(attempt)
            return []
        return [order]

    def forget(self, attempt: str) -> bool:
        """Forget an attempt. Return True if its order was held."""
        self._released.discard(attempt)
        return self._held.pop(attempt, None) is not None

    def held(self) -> Iterable[str]:
        """Return the attempts whose orders are held."""
        return self._held.keys()
