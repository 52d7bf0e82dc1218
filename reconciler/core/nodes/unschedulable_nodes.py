"""Short texts why a node takes no new work, for the reasons of pending jobs.

They contain nothing that changes on its own, such as times, so that a reason is written only when
it changes. ``muster node NAME`` shows the rest.
"""

import re

from reconciler.model.state import records
from reconciler.model.state.states import NodeState

#: Beginning of the message of a node whose check fails. The check's own text follows.
_FAILED = re.compile(r"check (?P<name>[^\s:]+) failed:")
_WORDS = {
    NodeState.UNKNOWN: "not heard of",
    NodeState.DRAINING: "being drained",
    NodeState.DRAINED: "drained",
    NodeState.GONE: "gone",
}


def words(node: records.NodeRecord | None) -> str:
    """Return ``unhealthy (check disk failed)``, ``drained`` and the like.

    Empty if it takes work.
    """
    if node is None:
        return "never heard of"
    if node.state is NodeState.UNHEALTHY:
        failed = _FAILED.match(node.message)
        return f"unhealthy (check {failed['name']} failed)" if failed else "unhealthy"
    return _WORDS.get(node.state, "" if node.pool else "in no pool")
