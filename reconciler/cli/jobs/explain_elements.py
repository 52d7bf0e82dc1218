"""Sentences of `muster explain` on elements: where they run, who cancelled some, which are held."""

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
#: Reason of a wait for the next try.
BACKING_OFF = "BackingOff"
_CANCELLED = "ElementsCancelled"
_HELD, _RELEASED = "JobHoldAsked", "JobReleased"
#: The elements of the message of such an event; a number of them if they are many.
_WHICH = re.compile(r"elements? ([0-9,:-]+) ")
#: The elements that a message names at its begin or its end.
_NAMED = re.compile(r"\belements? ([0-9][0-9,:-]*)")
#: The element that an event of an array is about.
_ABOUT = re.compile(r"element (\d+)\b")


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
    events = item.get("events") or []
    found += _cancellations(events, element)
    return found if element is None else [*found, *_hold(job, events, element)]


def is_about(message: str, element: int | None) -> bool:
    """Return True if the message of an event is about an element, or about the array; None: any."""
    about = None if element is None else _ABOUT.match(message)
    return about is None or int(about[1]) == element


def may_wait(item: Json, element: int | None) -> bool:
    """Return False if what is asked about is an element that runs, has ended, or is held.

    Args:
        item: the answer of the controller.
        element: the only one that is asked about; None: all.
    """
    job = item["job"]
    if element is None or not job.get("array"):
        return True
    if array_elements.state_of(job, element) not in {"Pending", ""}:
        return False
    if any(one["state"] != "Ended" for one in _tries(job, element)):
        return False
    return not _hold(job, item.get("events") or [], element)


def reasons(item: Json, element: int | None) -> list[Json]:
    """Return the reasons for which what is asked about waits.

    Those of an array are about its waiting elements, and a wait for the next try is about elements
    that were tried.

    Args:
        item: the answer of the controller.
        element: the only one that is asked about; None: all.
    """
    found: list[Json] = item.get("reasons") or []
    if not may_wait(item, element):
        return []
    if element is None or not item["job"].get("array") or _tries(item["job"], element):
        return found
    return [one for one in found if one["code"] != BACKING_OFF]


def _tries(job: Json, element: int) -> list[Json]:
    return [one for one in job["attempts"] if one.get("element") == element]


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


def _hold(job: Json, events: Sequence[Json], element: int) -> list[str]:
    """Return a line about an element that is held, and how it is released."""
    of_it = [
        one
        for one in events
        if one["kind"] in {_HELD, _RELEASED}
        and (named := _NAMED.search(one["message"]))
        and element in index_ranges.parse(named[1])
    ]
    if not of_it or of_it[-1]["kind"] != _HELD or array_elements.is_over(job, element):
        return []
    since = terminal.format_clock(of_it[-1]["at"])
    return [
        f"\nElement {element} is held by its document since {since}.",
        f"  To fix: run `muster release '{job['name']}[{element}]'`.",
    ]


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
