"""The nodes of one cycle: those observed, and those that the phases added, renewed or forgot.

A change of state is checked against the tables of ``model.state.states``, and is an event.
"""

from collections.abc import Mapping

import msgspec

from reconciler.core import cycle_cache
from reconciler.core.cycle import cycle_events
from reconciler.model.state import records, states


class CycleNodes:
    """All nodes ever seen or declared, without those that were forgotten.

    Args:
        known: records when the cycle began, by name.
        names: their names in order.
        events: of this cycle.

    Attributes:
        known: records when the cycle began, by name.
        renewed: new and renewed nodes, by name.
        left: names of nodes that were forgotten in this cycle.
    """

    def __init__(
        self,
        known: Mapping[str, records.NodeRecord],
        names: cycle_cache.Names,
        events: cycle_events.CycleEvents,
    ) -> None:
        self.known = known
        self.renewed: dict[str, records.NodeRecord] = {}
        self.left: list[str] = []
        self._names = names
        self._events = events

    def get(self, name: str) -> records.NodeRecord | None:
        """Return the current record of a node."""
        return self.renewed.get(name) or self.known.get(name)

    def pool_of(self, name: str) -> str:
        """Return the pool of a node; empty if no pool declares it."""
        record = self.get(name)
        return record.pool if record else ""

    def names(self) -> list[str]:
        """Return the names of all nodes, sorted."""
        there = dict.fromkeys(self.renewed, True) | dict.fromkeys(self.left, False)
        return self._names.with_drafts(there)

    def add(self, node: records.NodeRecord) -> None:
        """Add a node that was never seen."""
        self.renewed[node.name] = node

    def renew(self, node: records.NodeRecord, **changes: object) -> records.NodeRecord:
        """Change a node and return it. A change of state is an event."""
        renewed = msgspec.structs.replace(node, **changes)
        if renewed.state is not node.state:
            states.check(f"node {node.name}", node.state, renewed.state)
            self._events.add(f"Node{renewed.state.value}", renewed.message or "", node=node.name)
        if renewed != node:
            self.renewed[node.name] = renewed
        return renewed

    def forget(self, name: str) -> None:
        """Forget a node."""
        self.left.append(name)
        self.renewed.pop(name, None)
        self._events.add("NodeForgotten", "gone, in no pool, and silent for long", node=name)
