"""Paths from a queue to the root of its tree."""

from collections.abc import Callable


def ancestors(queue: str, parent_of: Callable[[str], str | None]) -> list[str]:
    """Return the ancestors of a queue, the nearest first.

    Args:
        queue: its name.
        parent_of: returns the parent of a queue; None: it has none, or is not known.
    """
    found: list[str] = []
    above = parent_of(queue)
    while above is not None and above not in found:
        found.append(above)
        above = parent_of(above)
    return found
