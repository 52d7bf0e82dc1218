"""Output of all tasks of a job, and of all elements of an array, each line after a name.

One after the other, or side by side if they are followed: then those that start later join.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from reconciler.cli import terminal
from reconciler.cli.logs import log_hints, prefixed_lines, task_output
from reconciler.model.state import states

if TYPE_CHECKING:
    from reconciler.operations.client import api_client

#: The most tasks to show together; a node serves as many readers at a time.
TASKS_MAX = 64
#: How often a job is checked for new tasks.
LOOK_EVERY_S = 2.0
#: How a name is told from a line, and from the rest of a long line.
_LINE, _REST = "|", "+"


class Look(NamedTuple):
    """The tasks of a job that ever started, the first to be shown first, and if the job is over."""

    parts: list[log_hints.TaskOfElement]
    is_over: bool


_Read = Callable[[log_hints.TaskOfElement], Iterator[bytes]]


def look(api: "api_client.ApiClient", name: str, query: Mapping[str, str]) -> Look:
    """Return the tasks of a job, or of one element of it, with what failed first in front."""
    job = log_hints.job_of(api, name, query)
    parts = sorted({log_hints.part_of(job, one) for one in job["attempts"]}, key=_place)
    failed, is_failed, _ = log_hints.failed_part(api, name, query)
    if is_failed and failed in parts and query["follow"] != "true":
        parts = [failed, *(one for one in parts if one != failed)]
    return Look(parts, job["state"] in states.FINISHED_JOB_STATES)


def print_all(look_again: Callable[[], Look], read: _Read, name: str) -> bool:
    """Print tasks one after the other. Return False if there are none."""
    parts = look_again().parts
    if len(parts) > TASKS_MAX:
        elements = any(one.element is not None for one in parts)
        terminal.note(
            f"showing the first {TASKS_MAX} of {len(parts)} tasks of job {name}; "
            f"{'--element' if elements else '--task'} shows another"
        )
        parts = parts[:TASKS_MAX]
    width = max((len(one.label) for one in parts), default=0)
    for part in parts:
        _print_part(part, read, width, live=False)
    return bool(parts)


def follow(look_again: Callable[[], Look], read: _Read) -> bool:
    """Print tasks side by side until the job is over. Return False if none ever started."""
    seen: set[log_hints.TaskOfElement] = set()
    running: list[threading.Thread] = []
    failed: list[Exception] = []
    width = 0

    def guarded(part: log_hints.TaskOfElement, width: int) -> None:
        try:
            _print_part(part, read, width, live=True)
        except Exception as error:
            failed.append(error)  # the main thread raises it

    while True:
        parts, is_over = look_again()
        running = [one for one in running if one.is_alive()]
        waiting = [one for one in parts if one not in seen]
        begun = waiting[: max(0, TASKS_MAX - len(running))]
        width = max([width, *(len(one.label) for one in begun)])
        for part in begun:
            seen.add(part)
            thread = threading.Thread(target=guarded, args=(part, width), daemon=True)
            thread.start()
            running.append(thread)
        if is_over and len(begun) == len(waiting):
            for thread in running:
                thread.join()
        elif running:
            running[0].join(LOOK_EVERY_S)
        else:
            time.sleep(LOOK_EVERY_S)
        if failed:
            raise failed[0]
        if is_over and len(begun) == len(waiting):
            return bool(seen)


def _print_part(part: log_hints.TaskOfElement, read: _Read, width: int, *, live: bool) -> None:
    """Print the output of one task as whole lines after its name."""
    output = task_output.TaskOutput(sys.stdout)
    for line in prefixed_lines.lines(read(part), time.monotonic if live else None):
        sign = _REST if line.continues else _LINE
        output.write_line(f"{part.label:<{width}} {sign} ", line.text)


def _place(part: log_hints.TaskOfElement) -> tuple[int, str, int]:
    """Return the order of a task: by element, by group, then by number."""
    group, _, index = part.task.rpartition("-")
    return part.element or 0, group, int(index) if index.isdigit() else 0
