"""Bounds what nodes cost that no pool declares: a session, a page and a row of the store each.

Some may report, because `muster drift` and `muster export` show them to whoever is to declare them.
"""

import asyncio
import time
from collections.abc import Callable

from reconciler.operations.views import stored_views
from reconciler.server.nodes import sessions
from reconciler.store import StoreReader

#: How many undeclared nodes may report at a time.
UNDECLARED_MAX = 256
#: An undeclared node that was silent for so long makes room for another.
SILENT_S = 600.0
#: For how long the names that pools declare are not read again.
READ_EVERY_S = 1.0


class TooManyNodesError(Exception):
    """Error: a node is one too many; the message says how it gets in."""


class UndeclaredNodes:
    """Admits nodes to a session.

    Args:
        known: the sessions.
        reader: gives the store.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        known: sessions.Sessions,
        reader: Callable[[], StoreReader],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sessions = known
        self._reader = reader
        self._clock = clock
        self._declared: frozenset[str] = frozenset()
        self._read_at = -READ_EVERY_S
        self._undeclared: dict[str, None] = {}

    async def session_of(self, node: str) -> sessions.Session:
        """Return the session of a node that reports.

        Raises:
            TooManyNodesError: it is one too many.
            StoreError: the store can't be read.
        """
        found = self._sessions.get(node)
        if found is not None:
            return found
        now = self._clock()
        if now - self._read_at >= READ_EVERY_S:
            self._declared = await asyncio.to_thread(self._names)
            self._read_at = now
        if node not in self._declared and not await asyncio.to_thread(self._is_stored, node):
            self._make_room(node, now)
            self._undeclared[node] = None
        session = self._sessions.of(node)
        if session is None:
            raise TooManyNodesError(f"node {node}: {sessions.NODES_MAX} nodes are known already")
        return session

    def _names(self) -> frozenset[str]:
        """Return the nodes that the pools in force declare."""
        pools = stored_views.stored_pools(self._reader().view(stored_views.POOLS))
        return frozenset(name for pool in pools for name in pool.nodes)

    def _is_stored(self, node: str) -> bool:
        """Return True if a node has been here before: its pool may be gone while its tasks run."""
        return self._reader().node(node) is not None

    def _make_room(self, node: str, now: float) -> None:
        """Forget undeclared nodes that are declared now, or were silent for long.

        Raises:
            TooManyNodesError: there is no room for one more.
        """
        for name in list(self._undeclared):
            session = self._sessions.get(name)
            if name in self._declared or session is None:
                del self._undeclared[name]
            elif not session.open and now - session.heard_at >= SILENT_S:
                del self._undeclared[name]
                self._sessions.forget(name)
        if len(self._undeclared) >= UNDECLARED_MAX:
            raise TooManyNodesError(
                f"node {node}: no pool declares it, and {UNDECLARED_MAX} such nodes report "
                "already. To fix: add it to the `hosts` of a NodePool"
            )
