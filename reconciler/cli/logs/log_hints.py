"""Hints of `muster logs`: output in the other stream, or of another task, element or try."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from reconciler.cli import terminal

if TYPE_CHECKING:
    from reconciler.operations.client import api_client

#: Options that select a part of a job's output, by their parameter of the API.
_OPTIONS = {"task": "--task", "element": "--element", "attempt": "--try", "run": "--run"}
#: Attempts in which tasks are counted.
_ATTEMPTS_MAX = 1000
#: How many earlier tries are searched for output.
_TRIES_MAX = 5
#: Ends caused by the task itself: one that was held or evicted has not failed.
_FAILURES = frozenset({"Exited", "StartFailed", "OutOfMemory", "DiskLimit", "TimedOut"})
#: Stands in a query for both streams, merged.
BOTH = "both"
#: Beginnings of the controller's lines if there is no output.
NOT_KEPT = (b"muster: node ", b"muster: no attempt at ")


class TaskOfElement(NamedTuple):
    """A task of an array's element, or of a job that is no array."""

    element: int | None
    task: str

    @property
    def label(self) -> str:
        """Its name before lines: the only task of most elements goes without saying."""
        if self.element is None:
            return self.task
        return f"[{self.element}]" if self.task == "main-0" else f"[{self.element}] {self.task}"


def hint_at_stderr(
    api: "api_client.ApiClient", name: str, query: dict[str, str], *, silent: bool
) -> None:
    """Print where stderr is, if stdout was empty or the task failed.

    Args:
        api: the connection that the output came from.
        name: of the job.
        query: the query for standard output.
        silent: True if there was no output.
    """
    failed = _newest_failure(api, name, query)
    if not silent and not (failed and (failed["exitCode"] or failed["signal"])):
        return
    rest = {key: text for key, text in query.items() if key in _OPTIONS}
    wanted = rest | {"stream": "stderr", "tail": "1"}
    found = b"".join(api.stream(f"/v1/jobs/{name}/logs", wanted)).strip()
    if not found or found.startswith(NOT_KEPT):
        if silent:
            terminal.note(f"{name} has no output on stdout or stderr{_why(failed)}")
        return
    words = ["muster", "logs", name]
    for key, option in _OPTIONS.items():
        words += [option, query[key]] if key in query else []
    what = "stdout is empty" if silent else "the task failed"
    terminal.note(f"{what}; for stderr: {shlex.join([*words, '--stderr'])}")


def hint_at_others(api: "api_client.ApiClient", name: str, query: dict[str, str]) -> None:
    """Print how many tasks and elements there are, if one of them is shown without being named."""
    element = query.get("element", "0")
    told: Any = api.get(
        f"/v1/jobs/{name}", run=query.get("run"), element=element, attempts=_ATTEMPTS_MAX
    )
    job = told["job"]
    elements = sum(job["elements"].values()) if job["array"] else 1
    tasks = len({one["task"] for one in job["attempts"]})
    words = []
    if "element" in query and "run" not in query:
        answer: Any = api.get(f"/v1/jobs/{name}", attempts=0)
        newest = answer["job"].get("run")
        if newest != job.get("run"):
            words.append(f"run {job['run']} (run {newest} does not have element {element})")
    if elements > 1 and "element" not in query:
        words.append(f"element {element} of {elements} (another: --element N)")
    if tasks > 1 and "task" not in query:
        words.append(f"one of {tasks} tasks (another: --task NAME; all: --all-tasks)")
    tries = _tries(job["attempts"], query)
    if len(tries) > 1 and "attempt" not in query:
        words.append(f"try {tries[0]} (earlier: --try N; all: --all)")
    if words:
        terminal.note(f"{name}: {', '.join(words)}")


def _tries(attempts: Any, query: dict[str, str]) -> list[int]:
    """Return the numbers of the tries of the shown task, newest first."""
    task = query.get("task") or (attempts[0]["task"] if attempts else "")
    mine = {a["attempt"] for a in attempts if task in (a["task"], a["task"].rpartition("-")[0])}
    return sorted(mine, reverse=True)


def earlier_output(
    api: "api_client.ApiClient",
    name: str,
    query: dict[str, str],
    read: Callable[[Mapping[str, str]], Iterator[bytes]],
) -> Iterator[bytes]:
    """Yield the output of the newest earlier try that has any, and print that it is an earlier one.

    A try that never started has no output; people usually want that of the try before.
    """
    of_run = {key: query[key] for key in ("run",) if key in query}
    element = query.get("element", "0")
    answer: Any = api.get(f"/v1/jobs/{name}", element=element, attempts=_ATTEMPTS_MAX, **of_run)
    newest, *others = _tries(answer["job"]["attempts"], query) or [0]
    for number in others[:_TRIES_MAX]:
        pieces = read({**query, "attempt": str(number)})
        first = next(pieces, b"")
        if first and not first.startswith(NOT_KEPT):
            what = "output" if query["stream"] == BOTH else query["stream"]
            terminal.note(f"{name}: try {newest} has no {what}; showing try {number}")
            yield first
            yield from pieces
            return


def _why(failed: Any) -> str:
    """Return how an attempt failed; nothing for None."""
    if failed is None:
        return ""
    status = f" with status {failed['exitCode']}" if failed["exitCode"] else ""
    message = f": {failed['message']}" if failed["message"] else ""
    return f"; it failed: {failed['endReason']}{status}{message}"


def job_of(api: "api_client.ApiClient", name: str, query: Mapping[str, str]) -> Any:
    """Return a job with the newest tries of its tasks, or of those of the query's element."""
    wanted = {key: query[key] for key in ("run", "element") if key in query}
    answer: Any = api.get(f"/v1/jobs/{name}", attempts=_ATTEMPTS_MAX, **wanted)
    return answer["job"]


def part_of(job: Any, attempt: Any) -> TaskOfElement:
    """Return the task of an attempt; without an element if the job is no array."""
    return TaskOfElement(_element(attempt) if job["array"] else None, attempt["task"])


def _element(attempt: Any) -> int:
    """Return the element of an attempt; 0 if its job is no array."""
    return int(attempt.get("element") or 0)


def failed_part(
    api: "api_client.ApiClient", name: str, query: Mapping[str, str]
) -> tuple[TaskOfElement | None, bool, bool]:
    """Return the task that failed first in the newest try of its element.

    Returns:
        That task; if none failed, the first one that has run, or None. True if it failed. True if
        there are several tasks or elements.
    """
    job = job_of(api, name, query)
    newest: dict[int, int] = {}
    for one in job["attempts"]:
        newest[_element(one)] = max(newest.get(_element(one), 0), one["attempt"])
    asked = int(query.get("attempt", 0))
    tries = [one for one in job["attempts"] if one["attempt"] == (asked or newest[_element(one)])]
    failed = [
        one
        for one in tries
        if one.get("endReason") in _FAILURES
        and (one["endReason"] != "Exited" or one["exitCode"] or one["signal"])
    ]
    if failed:
        first = min(failed, key=lambda one: one["ended"] or "")
    else:
        first = min(tries, key=_element, default=None)
    part = None if first is None else part_of(job, first)
    is_array = job["array"] and "element" not in query
    return part, bool(failed), len(tries) > 1 or bool(is_array)


def note_silence(api: "api_client.ApiClient", name: str, query: dict[str, str]) -> None:
    """Print that there is no output, and why the task failed if it did."""
    why = _why(_newest_failure(api, name, query))
    terminal.note(f"{name} has no output on stdout or stderr{why}")


def note_unwritten(api: "api_client.ApiClient", name: str, query: dict[str, str]) -> bool:
    """Print why a task that has written nothing failed. Return False if it did not fail."""
    failed = _newest_failure(api, name, query)
    if failed is None or not failed["message"]:
        return False
    terminal.note(
        f"{failed['task']} of {name} has written nothing: {failed['endReason']}: "
        f"{failed['message']}"
    )
    return True


def _newest_failure(api: "api_client.ApiClient", name: str, query: dict[str, str]) -> Any:
    """Return the newest attempt at the task if it failed by itself; None if not."""
    told: Any = api.get(f"/v1/jobs/{name}", run=query.get("run"), element=query.get("element", "0"))
    tries = told["job"]["attempts"]
    if "attempt" in query:
        tries = [one for one in tries if str(one["attempt"]) == query["attempt"]]
    task = query.get("task", "")
    tries = [one for one in tries if task in (one["task"], one["task"].rpartition("-")[0])] or tries
    newest = max(tries, key=lambda one: one["attempt"], default=None)
    return newest if newest is not None and newest.get("endReason") in _FAILURES else None
