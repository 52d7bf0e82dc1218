"""Found values as messages show them: one rule for all messages.

Text stands in double quotes; quotes in it and what can't be printed are escaped. Numbers, true,
false and null are bare. What a message describes in its own words, such as ``9 slices``, is no
value and does not come here.
"""

from collections.abc import Iterable
from typing import Any

#: More of a value is not repeated in a message; the longest name fits, with its quotes.
CHARACTERS_MAX = 65
#: The most keys of a mapping that are named.
KEYS_MAX = 5
_WORDS = {True: "true", False: "false", None: "null"}


def quote(value: Any) -> str:
    """Return a value for a message, shortened."""
    if isinstance(value, bool) or value is None:
        return _WORDS[value]
    if isinstance(value, str):
        return f'"{_shortened(_escaped(value), CHARACTERS_MAX - 2)}"'
    if isinstance(value, dict):
        keys = ", ".join(map(str, list(value)[:KEYS_MAX]))
        return _shortened(f"a mapping with {keys}", CHARACTERS_MAX) if value else "{}"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "[]"
    return _shortened(f"{value}", CHARACTERS_MAX)


def quote_all(values: Iterable[str]) -> str:
    """Return some names for a message: ``"a", "b"``."""
    return ", ".join(map(quote, values))


def _escaped(text: str) -> str:
    """Return a text on one line, in which a double quote is not the end."""
    text = text[: CHARACTERS_MAX + 1].replace("\\", "\\\\").replace('"', '\\"')
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def few(names: Iterable[str], most: int = 3) -> str:
    """Return the first names of several and how many more there are; empty for none."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
