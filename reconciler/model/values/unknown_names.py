"""The one text about a name that nothing has: of checks of documents, and of jobs that wait."""

from collections.abc import Iterable

import msgspec

from reconciler.model.values import found_values, suggestions

#: The most known names that are listed.
LISTED_MAX = 10


class UnknownName(msgspec.Struct, frozen=True):
    """A name that nothing of its kind has, as text: what is wrong, and what was expected."""

    message: str
    found: str
    expected: str

    def text(self, field: str) -> str:
        """Return all on one line: ``spec.queue: unknown queue: …; found …; expected …``."""
        return f"{field}: {self.message}; found {self.found}; expected {self.expected}"


def describe(what: str, name: str, known: Iterable[str]) -> UnknownName:
    """Return the text about an unknown name.

    Args:
        what: the kind in words, such as ``queue``.
        name: as written.
        known: the names that exist.
    """
    names = sorted(known)
    if not names:
        expected = f"none, as there is no {what}"
    else:
        more = " …" if len(names) > LISTED_MAX else ""
        hint = suggestions.hint(name, names)
        expected = f"one of {', '.join(names[:LISTED_MAX])}{more}{hint}"
    return UnknownName(
        f"unknown {what}: add it or name another", found_values.quote(name), expected
    )
