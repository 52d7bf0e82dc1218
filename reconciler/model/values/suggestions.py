"""Suggestions for misspelt names, for messages."""

import difflib
import itertools
from collections.abc import Iterable

#: The most names that are compared, and the most that are told.
COMPARED_MAX = 5000
TOLD_MAX = 3


def hint(name: str, names: Iterable[str]) -> str:
    """Return ``; did you mean a or b?``, or nothing if no name is near."""
    beginning = name[:1]
    alike = itertools.islice((one for one in names if one[:1] == beginning), COMPARED_MAX)
    found = difflib.get_close_matches(name, list(alike), n=TOLD_MAX)
    return f"; did you mean {' or '.join(found)}?" if found else ""
