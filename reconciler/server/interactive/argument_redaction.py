"""Command lines as they may be written down: without what looks like a secret. Pure."""

import re
from collections.abc import Sequence

#: The most characters of a command line that are kept.
SHOWN_MAX = 200
HIDDEN = "***"
_SECRET = re.compile(r"(?i)pass|secret|token|key|auth|cred|bearer|cookie")
_IN_URL = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)")
_NAMED = re.compile(r"([^\s=:]*)([=:]\s*)(\S.*)", re.DOTALL)


def redacted(argv: Sequence[str]) -> str:
    """Return a command line in which values of what is named like a secret are hidden.

    A value follows its name after ``=`` or ``:``, or as the next word after an option.
    """
    words: list[str] = []
    hides_next = False
    for word in argv:
        if hides_next and not word.startswith("-"):
            words.append(HIDDEN)
            hides_next = False
            continue
        words.append(_within(_IN_URL.sub(HIDDEN, word)))
        hides_next = word.startswith("-") and "=" not in word and bool(_SECRET.search(word))
    text = " ".join(" ".join(words).split())
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 1]}…"


def _within(word: str) -> str:
    """Return a word, of which each part that gives a secret its value is hidden."""
    parts = re.split(r"(\s+)", word)
    for at, part in enumerate(parts):
        found = _NAMED.fullmatch(part)
        if found is not None and _SECRET.search(found[1]):
            parts[at] = f"{found[1]}{found[2]}{HIDDEN}"
            # `Authorization: Bearer TEXT`: all that follows belongs to it
            if found[2].startswith(":"):
                return "".join(parts[: at + 1])
        elif part.endswith((":", "=")) and _SECRET.search(part) and at + 2 < len(parts):
            return f"{''.join(parts[: at + 1])} {HIDDEN}"
    return "".join(parts)
