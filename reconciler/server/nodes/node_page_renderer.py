"""Renders a node's page from its record in the store and what it reported since."""

from reconciler import metrics
from reconciler.server.nodes import sessions
from reconciler.server.server_store import ServerStore


class NodePageRenderer:
    """Renderer of the Prometheus pages of nodes; to be called in a thread.

    Args:
        store: has the record of a node and its attempts.
        known: the sessions, with what a node reported since.
    """

    def __init__(self, store: ServerStore, known: sessions.Sessions) -> None:
        self._store = store
        self._sessions = known

    def render(self, node: str) -> bytes | None:
        """Return a node's page; None for an unknown node.

        Raises:
            StoreError: the store can't be read.
        """
        reader = self._store.reader
        record = reader.node(node)
        if record is None:
            return None
        session = self._sessions.get(node)
        if session is None:
            return metrics.render_node(record, reader.attempts_alive(node))
        return metrics.render_node(
            session.newest(record),
            reader.attempts_alive(node),
            session.gpu_usage,
            words=dict(session.task_metrics),
            uses=session.task_use,
        )
