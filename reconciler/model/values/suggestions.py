"""Suggestions for misspelt names, for messages."""

import difflib
import itertools
from collections.abc import Iterable

#: The most names that are compared, and the most that are told.
COMPARED_MAX = 5000
TOLD_MAX = 3
#: The most names to list if none is near.
LISTED_MAX = 8


def hint(name: str, names: Iterable[str]) -> str:
    """Return ``; did you mean a or b?``, or nothing if no name is near."""
    beginning = name[:1]
    alike = itertools.islice((one for one in names if one[:1] == beginning), COMPARED_MAX)
    found = difflib.get_close_matches(name, list(alike), n=TOLD_MAX)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def missing(kind: str, name: str, names: Iterable[str]) -> str:
    """Return ``there is no Queue/gpu`` with similar names, or with all of them if they are few."""
    known = list(names)
    near = hint(name, known)
    if not near and 0 < len(known) <= LISTED_MAX:
        near = f"; known: {', '.join(known)}"
    return f"there is no {kind}/{name}{near}"
