"""One element of an array: its name as plans and reasons write it, and what is told of it.

``sweep[2]`` comes in, a job and the number of its element go out; of the job's view, the sentences
that are about this element.
"""

import re
from collections.abc import Iterable
from typing import Any

from reconciler.cli import terminal
from reconciler.model.state import states

Json = Any

_FINISHED = frozenset(state.value for state in states.FINISHED_JOB_STATES)
#: ``JOB[ELEMENT]``, as the controller names elements of arrays.
_NAMED = re.compile(r"([^\[\]]+)\[(\d{1,6})\]")
#: What no name of a job has.
_BRACKETS = frozenset("[]")


def parted(written: str) -> tuple[str, int | None]:
    """The job that a name means, and the number of its element where it names one.

    What has brackets and means no element of anything leaves the command.
    """
    found = _NAMED.fullmatch(written)
    if found is None and not _BRACKETS.isdisjoint(written):
        job = written.partition("[")[0].strip("]") or "JOB"
        terminal.fail(
            f"{written} names no element of an array: one is written as {job}[3], by its number, "
            "counted from 0",
            terminal.USAGE,
        )
    return (written, None) if found is None else (found[1], int(found[2]))


def chosen(written: str, option: int | None) -> tuple[str, int | None]:
    """The job and the element that a name and ``--element`` mean together, which both may say."""
    job, element = parted(written)
    if element is not None and option is not None and element != option:
        terminal.fail(
            f"{written} and --element {option} are two elements: name one of them", terminal.USAGE
        )
    return job, option if element is None else element


def whole(command: str, names: Iterable[str]) -> None:
    """Leave a command that takes whole jobs where a name means elements of one.

    ``command``: with the option that takes the name, where one does, as ``events --job``.
    """
    for written in names:
        job, bracket, _ = written.partition("[")
        if bracket and job:
            is_one = _NAMED.fullmatch(written) is not None
            what = "is one element" if is_one else "means elements"
            terminal.fail(
                f"{written} {what} of an array, and muster {command.partition(' ')[0]} takes whole "
                f"jobs: muster {command} {job} is for all of it",
                terminal.USAGE,
            )
        parted(written)


def require(job: Json, element: int) -> None:
    """Leave the command where the job has no such element; of one without a run nobody knows."""
    if job.get("run") == 0:
        return
    name, count = job["name"], sum((job.get("elements") or {}).values())
    if not job.get("array"):
        terminal.fail(f"{name} is no array: it has no element {element}")
    if element >= count:
        terminal.fail(f"there is no element {element}: {name} has {count}, counted from 0")


def told(job: Json, element: int) -> str:
    """``Element 2 is Running on n1.``, as far as tries of it are told."""
    own = [one for one in job["attempts"] if one.get("element") == element]
    if not own:
        return _untried(job, element)
    newest = max(one["attempt"] for one in own)
    last = [one for one in own if one["attempt"] == newest]
    here = [one for one in last if one["state"] != "Ended"]
    if here:
        states, nodes = _several(one["state"] for one in here), _several(o["node"] for o in here)
        return f"Element {element} is {states} on {nodes}, its try {newest}."
    nodes = _several(one["node"] for one in last)
    return f"The last try of element {element} that is told, {newest}, has ended on {nodes}."


def _untried(job: Json, element: int) -> str:
    """An element of which no try is told: one that ended long ago has none any more."""
    if any(job["elements"].get(state) for state in _FINISHED):
        return f"No try of element {element} is told: it waits, or ended long ago."
    return f"Element {element} waits."


def _several(words: Iterable[str]) -> str:
    return ", ".join(sorted(set(words)))
