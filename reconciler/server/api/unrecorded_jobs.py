"""Jobs of a list that no record has: they come before the others, and count in its pages."""

from collections.abc import Sequence
from typing import NamedTuple

from reconciler.operations.views import view_types
from reconciler.store import statements

#: In a cursor, a position above that of any record.
_ABOVE = 10**18 - 1


class PagePart(NamedTuple):
    """The part of a page that no record has.

    Attributes:
        items: what the page begins with.
        following: cursor of the next page; None: the page goes on with records.
        after: cursor from which records follow; None: from the first.
    """

    items: list[view_types.JobView]
    following: str | None
    after: str | None


def is_among(after: str | None) -> bool:
    """Return True if a page begins among the jobs that no record has.

    Raises:
        ValueError: the cursor is none.
    """
    return after is None or statements.parse_cursor(after)[0] == _ABOVE


def part_of(jobs: Sequence[view_types.JobView], limit: int, after: str | None) -> PagePart:
    """Return what a page begins with.

    Args:
        jobs: all that no record has, in order.
        limit: the most items of a page.
        after: cursor of the page; None: it is the first.

    Raises:
        ValueError: the cursor is none.
    """
    if not is_among(after):
        return PagePart([], None, after)
    begin = 0 if after is None else _place_after(jobs, statements.parse_cursor(after)[1])
    items = list(jobs[begin : begin + limit])
    end = begin + len(items)
    is_full = len(items) == limit
    following = f"{_ABOVE}.{end}.{items[-1].name}" if is_full else None
    return PagePart(items, following, None)


def _place_after(jobs: Sequence[view_types.JobView], written: str) -> int:
    """Return where the next page begins: after the last job of the one before, if that is there."""
    count, _, name = written.partition(".")
    for place, one in enumerate(jobs):
        if one.name == name:
            return place + 1
    return int(count) if count.isdecimal() else 0
