"""One element of an array: parsing of names such as `sweep[2]`, and a sentence on its state."""

import re
from collections.abc import Iterable
from typing import Any

from reconciler.cli import terminal
from reconciler.model.state import states
from reconciler.model.values import index_ranges

Json = Any

_FINISHED = frozenset(state.value for state in states.FINISHED_JOB_STATES)
#: `JOB[ELEMENT]`, as the controller names elements of arrays.
_NAMED = re.compile(r"([^\[\]]+)\[(\d{1,6})\]")
#: `JOB[ELEMENTS]`, several of them.
_SET = re.compile(r"([^\[\]*?]+)\[([^\[\]]+)\]")
#: How many elements of an array are shown, and how much of the names of those in a state.
ELEMENTS_SHOWN, INDEXES_SHOWN = 20, 40
_RANK = tuple(state.value for state in states.ELEMENT_RANK)
#: Characters that no name of a job has.
BRACKETS = frozenset("[]")


def parse_name(written: str) -> tuple[str, int | None]:
    """Return the job of a name, and the number of its element if it names one.

    Exit if the name has brackets but is not an element's.
    """
    found = _NAMED.fullmatch(written)
    if found is None and not BRACKETS.isdisjoint(written):
        job = written.partition("[")[0].strip("]") or "JOB"
        terminal.fail(
            f"{written} is not an array element; expected a number from 0, such as {job}[3]",
            terminal.USAGE,
        )
    return (written, None) if found is None else (found[1], int(found[2]))


def resolve_element(written: str, option: int | None) -> tuple[str, int | None]:
    """Return the job and the element of a name and `--element`, which may both name the element."""
    job, element = parse_name(written)
    if element is not None and option is not None and element != option:
        terminal.fail(
            f"{written} and --element {option} name different elements; use one of them",
            terminal.USAGE,
        )
    return job, option if element is None else element


def parse_set(written: str) -> tuple[str, str]:
    """Return the job of a name, and the elements that it names, such as `1-3,7`; empty: none.

    Exit if the name has brackets that are not around indexes.
    """
    found = _SET.fullmatch(written)
    if found is None:
        return parse_name(written)[0], ""
    try:
        return found[1], index_ranges.fold(index_ranges.parse(found[2]))
    except index_ranges.IndexRangeError as error:
        terminal.fail(f"{written}: {error}", terminal.USAGE)


def joined(one: str, other: str) -> str:
    """Return the elements of two sets together."""
    return index_ranges.fold((*index_ranges.parse(one), *index_ranges.parse(other)))


def common(found: str, asked: str) -> str:
    """Return the elements of a set that are also asked for; ``asked`` empty: all."""
    among = index_ranges.parse(found)
    wanted = frozenset(index_ranges.parse(asked)) if asked else frozenset(among)
    return index_ranges.fold(one for one in among if one in wanted)


def require_whole_jobs(command: str, names: Iterable[str]) -> None:
    """Exit if a name is an array element's, because the command takes whole jobs.

    Args:
        command: with the option that takes the name, if one does, such as `events --job`.
        names: as written.
    """
    for written in names:
        job, bracket, _ = written.partition("[")
        if bracket and job:
            is_one = _NAMED.fullmatch(written) is not None
            what = "is one element" if is_one else "names elements"
            terminal.fail(
                f"{written} {what} of an array; muster {command.partition(' ')[0]} takes whole "
                f"jobs. Use: muster {command} {job}",
                terminal.USAGE,
            )
        parse_name(written)


def require_element(job: Json, element: int) -> None:
    """Exit if the job does not have this element. A job without a run has unknown elements."""
    if job.get("run") == 0:
        return
    name, count = job["name"], sum((job.get("elements") or {}).values())
    if not job.get("array"):
        terminal.fail(f"{name} is not an array, so it has no element {element}")
    if indexes := ",".join((job.get("elementIndexes") or {}).values()):
        if element not in index_ranges.parse(indexes):
            known = index_ranges.fold(index_ranges.parse(indexes))
            terminal.fail(f"{name} has no element {element}; it has {known}")
    elif element >= count:
        terminal.fail(f"{name} has no element {element}; its {count} elements count from 0")


def counts_text(by_state: dict[str, str]) -> str:
    """Return how many elements are in each state, and which those are that have not succeeded."""
    words = []
    for state in sorted(by_state, key=lambda state: _RANK.index(state) if state in _RANK else 0):
        which = by_state[state]
        count = len(index_ranges.parse(which))
        named = terminal.shortened(which, INDEXES_SHOWN)
        words.append(f"{count} {state}" + (f" ({named})" if state != "Succeeded" else ""))
    return ", ".join(words)


def describe_element(job: Json, element: int) -> str:
    """Return a sentence about an element, such as `Element 2: Running on n1 (try 1).`"""
    attempts_of_element = [one for one in job["attempts"] if one.get("element") == element]
    if not attempts_of_element:
        return _untried(job, element)
    newest = max(one["attempt"] for one in attempts_of_element)
    last = [one for one in attempts_of_element if one["attempt"] == newest]
    here = [one for one in last if one["state"] != "Ended"]
    if here:
        states, nodes = _several(one["state"] for one in here), _several(o["node"] for o in here)
        return f"Element {element}: {states} on {nodes} (try {newest})."
    nodes = _several(one["node"] for one in last)
    state = f"{known}; " if (known := state_of(job, element)) else ""
    return f"Element {element}: {state}last try ({newest}) ended on {nodes}."


def state_of(job: Json, element: int) -> str:
    """Return the state of an element of a run; empty if the answer does not have it."""
    by_state = job.get("elementIndexes") or {}
    return next((one for one in by_state if element in index_ranges.parse(by_state[one])), "")


def is_over(job: Json, element: int) -> bool:
    """Return True if an element is known to have ended in this run."""
    return state_of(job, element) in _FINISHED


def _untried(job: Json, element: int) -> str:
    """Return a sentence about an element without known tries; tries of long ago are removed."""
    state = state_of(job, element)
    if is_over(job, element):
        return f"Element {element}: {state}; no tries recorded."
    if not state and any(job["elements"].get(one) for one in _FINISHED):
        return f"Element {element}: no tries recorded. It waits, or ended long ago."
    return f"Element {element}: waiting."


def _several(words: Iterable[str]) -> str:
    return ", ".join(sorted(set(words)))


def done_words(item: Json) -> list[str]:
    """Return how many elements succeeded, of how many, and how many ended otherwise:
    `5/6`, `1 failed`.
    """
    # of a run of chosen elements the whole array is shown
    counts = (item.get("wholeElements") or item["elements"]) if item["array"] else {}
    total = sum(counts.values())
    if not total:
        return ["-"]
    words = [f"{counts.get('Succeeded', 0)}/{total}"]
    for word, ends in (("failed", ("Failed", "TimedOut")), ("cancelled", ("Cancelled",))):
        count = sum(counts.get(state, 0) for state in ends)
        words += [f"{count} {word}"] if count else []
    return words
