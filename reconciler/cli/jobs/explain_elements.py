"""Sentences of `muster explain` on elements: where they run, and who cancelled some."""

import re
from collections.abc import Sequence
from typing import Any

from reconciler.cli import array_elements, terminal
from reconciler.model.values import index_ranges

Json = Any

#: The most nodes of an array whose elements are listed.
ELEMENT_NODES_SHOWN = 8
#: How many of the newest cancellations of elements are shown.
CANCELLATIONS_SHOWN = 5
_CANCELLED = "ElementsCancelled"
#: The elements of the message of such an event; a number of them if they are many.
_WHICH = re.compile(r"elements? ([0-9,:-]+) ")


def sentences(item: Json, element: int | None) -> list[str]:
    """Return lines about how many elements are in which state, where they run, and who cancelled
    them.

    Args:
        item: the answer of the controller.
        element: the only one that is asked about; None: all.
    """
    job = item["job"]
    counts: dict[str, int] = job["elements"] if job.get("array") else {}
    if not counts:
        return []
    told = ", ".join(f"{count} {state}" for state, count in counts.items())
    found = [f"\n{terminal.counted(sum(counts.values()), 'element')}: {told}."]
    if whole := job.get("elementsOfAllRuns"):
        found.append(f"All runs of this array: {array_elements.counts_text(whole)}.")
    here: dict[str, set[int]] = {}
    for one in job["attempts"]:
        if one["state"] != "Ended":
            here.setdefault(one["node"], set()).add(one["element"])
    nodes = sorted(here)[:ELEMENT_NODES_SHOWN]
    found += [f"  on {node}: {_spans_of(here[node])}" for node in nodes]
    if len(here) > ELEMENT_NODES_SHOWN:
        more = len(here) - ELEMENT_NODES_SHOWN
        found.append(f"  on {more} more nodes: muster job {job['name']}")
    return [*found, *_cancellations(item.get("events") or [], element)]


def messages(item: Json) -> list[str]:
    """Return the messages that ``sentences`` may say."""
    return [one["message"] for one in item.get("events") or [] if one["kind"] == _CANCELLED]


def _cancellations(events: Sequence[Json], element: int | None) -> list[str]:
    told = [
        one["message"]
        for one in events
        if one["kind"] == _CANCELLED and (element is None or _is_of(one["message"], element))
    ]
    shown = [f"{one[0].upper()}{one[1:]}" for one in told[-CANCELLATIONS_SHOWN:] if one]
    if len(told) > len(shown):
        before = terminal.counted(len(told) - len(shown), "earlier cancellation")
        shown.insert(0, f"({before} of elements)")
    return [f"\n{shown[0]}", *shown[1:]] if shown else []


def _is_of(message: str, element: int) -> bool:
    """Return True if the message of an event may be about an element."""
    found = _WHICH.match(message)
    return found is None or element in index_ranges.parse(found[1])


def _spans_of(numbers: set[int]) -> str:
    """Return `2, 5-9`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
