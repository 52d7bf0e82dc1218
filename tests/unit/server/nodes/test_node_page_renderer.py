"""A node's page has its record, and what it reported since."""

from typing import Any

from reconciler.model.state import records
from reconciler.server.nodes import node_page_renderer, sessions
from tests.unit.store import samples


class Store:
    """A store with one node."""

    def __init__(self) -> None:
        self.reader = self

    def node(self, name: str) -> records.NodeRecord | None:
        """Return a node."""
        return samples.node(name) if name == "n1" else None

    def attempts_alive(self, _node: str) -> list[records.AttemptRecord]:
        """Return no attempts."""
        return []


def test_a_node_that_nobody_knows_has_no_page() -> None:
    store: Any = Store()
    assert node_page_renderer.NodePageRenderer(store, sessions.Sessions()).render("n2") is None


def test_reports_since_the_last_commit_are_on_the_page() -> None:
    store: Any = Store()
    known = sessions.Sessions()
    renderer = node_page_renderer.NodePageRenderer(store, known)
    stored = renderer.render("n1")
    assert stored is not None
    assert b'node="n1"' in stored
    session = known.of("n1")
    assert session is not None
    assert renderer.render("n1") == stored, "a session without reports changes nothing"
    session.reported_at = 2_000_000_000.0
    assert renderer.render("n1") != stored
