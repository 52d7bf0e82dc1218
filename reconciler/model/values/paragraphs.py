"""Wrapped text for people; names, digests and commands stay whole, so that they can be copied."""

import re
import textwrap

#: What stands between backquotes, and a space at which no line is broken.
_QUOTED = re.compile(r"`[^`]{1,200}`")
_HARD = "\N{NO-BREAK SPACE}"


def wrapped(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    """Return lines of at most ``width``; a word, or text between backquotes, may be longer.

    Args:
        text: words.
        width: characters.
        first: prefix of the first line. others: prefix of the others.
    """
    lines = textwrap.wrap(
        _QUOTED.sub(lambda found: found[0].replace(" ", _HARD), text),
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_HARD, " ") for line in lines]
