"""Why a node takes no new work, in the few words that a waiting job's reason has for it.

The words hold nothing that changes by itself, such as times: a reason is told anew only when what
it says is different. ``muster node NAME`` tells the rest.
"""

import re

from reconciler.model.state import records
from reconciler.model.state.states import NodeState

#: How a message begins of a node whose check fails; the rest is what the check itself said.
_FAILED = re.compile(r"check (?P<name>[^\s:]+) failed:")
_WORDS = {
    NodeState.UNKNOWN: "not heard of",
    NodeState.DRAINING: "being drained",
    NodeState.DRAINED: "drained",
    NodeState.GONE: "gone",
}


def words(node: records.NodeRecord | None) -> str:
    """``unhealthy (check disk failed)``, ``drained``; empty where it takes work."""
    if node is None:
        return "never heard of"
    if node.state is NodeState.UNHEALTHY:
        failed = _FAILED.match(node.message)
        return f"unhealthy (check {failed['name']} failed)" if failed else "unhealthy"
    return _WORDS.get(node.state, "" if node.pool else "in no pool")
