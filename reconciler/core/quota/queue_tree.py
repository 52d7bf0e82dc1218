"""The tree of queues that git declares."""

from collections.abc import Mapping

from reconciler.model import desired


def path_to_root(queues: Mapping[str, desired.Queue], queue: str) -> tuple[str, ...]:
    """Return a queue and its ancestors, the queue first; empty if it is not declared."""
    path: list[str] = []
    name: str | None = queue
    while name is not None and name in queues and name not in path:
        path.append(name)
        name = queues[name].parent
    return tuple(path)
