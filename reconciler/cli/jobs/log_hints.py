"""What ``muster logs`` adds for people: that what they look for stands elsewhere.

In the other stream, or at another task or element than the one that is shown.
"""

import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from reconciler.cli import terminal

if TYPE_CHECKING:
    from reconciler.operations.client import api_client

#: Options that name a part of a job's output, by their parameter of the API.
_OPTIONS = {"task": "--task", "element": "--element", "attempt": "--try", "run": "--run"}
#: Of how many attempts tasks are counted.
_ATTEMPTS_MAX = 1000
#: At how many tries before the newest it is looked for output.
_TRIES_MAX = 5
#: Ends that are the task's own doing: one that was held, or made room, has not failed.
_FAILURES = frozenset({"Exited", "StartFailed", "OutOfMemory", "TimedOut"})
#: How it says of a node that it has none of a try.
NONE_OF_TRY = re.compile(rb"muster: node \S+ keeps no \w+ of this try\n?")
#: How the controller says that there is no such output: a node has none, or nothing was started.
NOT_KEPT = (b"muster: node ", b"muster: no attempt at ")


def hint(api: "api_client.ApiClient", name: str, query: dict[str, str], *, silent: bool) -> None:
    """Say on stderr where the rest is, of output that was ``silent`` or of a task that failed.

    Args:
        api: where the output came from.
        name: of the job.
        query: what was asked for of standard output.
        silent: there was none.
    """
    if not silent and not _failed(api, name, query):
        return
    rest = {key: text for key, text in query.items() if key in _OPTIONS}
    wanted = rest | {"stream": "stderr", "tail": "1"}
    found = b"".join(api.stream(f"/v1/jobs/{name}/logs", wanted)).strip()
    if not found or found.startswith(NOT_KEPT):
        if silent:
            terminal.note(f"{name} has written nothing to stdout and stderr")
        return
    words = ["muster", "logs", name]
    for key, option in _OPTIONS.items():
        words += [option, query[key]] if key in query else []
    what = "nothing on stdout" if silent else "it failed"
    terminal.note(f"{what}; its stderr: {shlex.join([*words, '--stderr'])}")


def tell_others(api: "api_client.ApiClient", name: str, query: dict[str, str]) -> None:
    """Say on stderr of how many tasks and elements one is shown that nobody has named."""
    element = query.get("element", "0")
    told: Any = api.get(
        f"/v1/jobs/{name}", run=query.get("run"), element=element, attempts=_ATTEMPTS_MAX
    )
    job = told["job"]
    elements = sum(job["elements"].values()) if job["array"] else 1
    tasks = len({one["task"] for one in job["attempts"]})
    words = []
    if elements > 1 and "element" not in query:
        words.append(f"element {element} of {elements} (--element N shows another)")
    if tasks > 1 and "task" not in query:
        words.append(f"one of {tasks} tasks (--task NAME shows another, --all-tasks all)")
    tries = _tries(job["attempts"], query)
    if len(tries) > 1 and "attempt" not in query:
        words.append(f"try {tries[0]} (--try N shows an earlier one, --all all tries)")
    if words:
        terminal.note(f"{name}: this is {', '.join(words)}")


def _tries(attempts: Any, query: dict[str, str]) -> list[int]:
    """The numbers of the tries of the task that is shown, the newest first."""
    task = query.get("task") or (attempts[0]["task"] if attempts else "")
    mine = {a["attempt"] for a in attempts if task in (a["task"], a["task"].rpartition("-")[0])}
    return sorted(mine, reverse=True)


def earlier(api: "api_client.ApiClient", name: str, query: dict[str, str]) -> Iterator[bytes]:
    """The output of the newest try that has any, where that is not the newest; says so.

    A try that never started has none, and what people look for is mostly what the one before said.
    """
    asked = {key: query[key] for key in ("run",) if key in query}
    element = query.get("element", "0")
    told: Any = api.get(f"/v1/jobs/{name}", element=element, attempts=_ATTEMPTS_MAX, **asked)
    newest, *others = _tries(told["job"]["attempts"], query) or [0]
    for number in others[:_TRIES_MAX]:
        pieces = api.stream(f"/v1/jobs/{name}/logs", {**query, "attempt": str(number)})
        first = next(pieces, b"")
        if first and not first.startswith(NOT_KEPT):
            terminal.note(f"{name}: try {newest} has no {query['stream']}; this is try {number}")
            yield first
            yield from pieces
            return


def _failed(api: "api_client.ApiClient", name: str, query: dict[str, str]) -> bool:
    """Whether the newest attempt at the task that was asked for ended badly, and by itself."""
    told: Any = api.get(f"/v1/jobs/{name}", run=query.get("run"), element=query.get("element", "0"))
    tries = told["job"]["attempts"]
    if "attempt" in query:
        tries = [one for one in tries if str(one["attempt"]) == query["attempt"]]
    task = query.get("task", "")
    tries = [one for one in tries if task in (one["task"], one["task"].rpartition("-")[0])] or tries
    newest = max(tries, key=lambda one: one["attempt"], default=None)
    if newest is None or newest["endReason"] not in _FAILURES:
        return False
    return bool(newest["exitCode"] or newest["signal"])
