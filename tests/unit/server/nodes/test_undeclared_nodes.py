"""Nodes that no pool declares cost a bounded number of sessions; all others are let in."""

import asyncio
from typing import Any

import pytest

from reconciler.model import desired
from reconciler.model.values.resources import Resources
from reconciler.operations.views import stored_views
from reconciler.server.nodes import sessions, undeclared_nodes


class Bed:
    """Sessions over a store that has a pool and knows some nodes."""

    def __init__(self, *, declared: tuple[str, ...] = (), stored: tuple[str, ...] = ()) -> None:
        self.now = 1000.0
        self.sessions = sessions.Sessions(lambda: self.now)
        self.stored = stored
        self.reads = 0
        self.declare(*declared)
        reader: Any = self
        self.nodes = undeclared_nodes.UndeclaredNodes(
            self.sessions, lambda: reader, lambda: self.now
        )

    def declare(self, *names: str) -> None:
        """Have the pool declare other nodes."""
        pool = desired.Pool("p", names, Resources(1, 1))
        found = desired.Desired(structure=desired.Structure(pools={"p": pool}))
        self._views = stored_views.desired_views(found)

    def view(self, name: str) -> bytes | None:
        """Return a view, as the store does."""
        self.reads += 1
        return self._views.get(name)

    def node(self, name: str) -> str | None:
        """Return a node, as the store does."""
        return name if name in self.stored else None

    def enter(self, name: str) -> sessions.Session:
        """Have a node report."""
        session = asyncio.run(self.nodes.session_of(name))
        session.leave(int(str(session.enter(("b", "i"), 10.0, self.now))), self.now, closed=False)
        return session


def fill(bed: Bed) -> None:
    """As many undeclared nodes as may report."""
    for number in range(undeclared_nodes.UNDECLARED_MAX):
        bed.enter(f"ghost{number}")


def test_one_undeclared_node_too_many_is_refused_before_it_costs_anything() -> None:
    bed = Bed(declared=("n1",), stored=("old1",))
    fill(bed)
    with pytest.raises(undeclared_nodes.TooManyNodesError, match="To fix: add it to the `hosts`"):
        bed.enter("ghost")
    assert bed.sessions.get("ghost") is None
    for name in ("n1", "old1", "ghost0"):
        assert bed.enter(name).node == name
    assert bed.reads == 1, "the pools are not read for each stranger"


def test_one_that_was_silent_for_long_makes_room() -> None:
    bed = Bed()
    fill(bed)
    bed.now += undeclared_nodes.SILENT_S
    assert bed.enter("ghost").node == "ghost"
    assert bed.sessions.get("ghost0") is None


def test_those_that_were_declared_meanwhile_make_room() -> None:
    bed = Bed()
    fill(bed)
    bed.declare("ghost0")
    bed.now += undeclared_nodes.READ_EVERY_S
    assert bed.enter("ghost").node == "ghost"
    assert bed.sessions.get("ghost0") is not None
