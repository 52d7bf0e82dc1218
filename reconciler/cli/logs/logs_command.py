"""The command `muster logs`: output of tasks, over tries, restarts and requeues.

The controller streams one task at a time. Several tasks are read one by one, or side by side if
they are followed, and whole lines are printed after the names of their tasks.
"""

import functools
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconciler.cli import (
    array_elements,
    common_options,
    context,
    lazy_import,
    retries,
    stream_position,
    terminal,
)
from reconciler.cli.logs import all_tasks, log_hints, merged_streams, task_output
from reconciler.model.state import states
from reconciler.model.values import times

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")

Json = Any
#: Beginning of the message of a job that nobody adopted after a store was lost or restored.
COUNTS_AS_DONE = "it counts as done"
#: Beginnings of the controller's line if no try of the task was made.
UNSTARTED = (
    b"muster: no attempt at this task of job ",
    b"muster: no attempt at any task of job ",
)


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(logs)


_Every = Annotated[
    bool,
    typer.Option(
        "--all", "-a", help="All tries of all tasks, each under a heading. Default: the newest."
    ),
]
_Since = Annotated[
    str | None,
    typer.Option(
        "--since", help="Output after this time: 2h (ago), or 2026-11-01T12:00:00Z. Default: all."
    ),
]
_Until = Annotated[
    str | None,
    typer.Option("--until", help="Output before this time, in the same formats. Default: now."),
]
_Timestamps = Annotated[bool, typer.Option("--timestamps", help="Print the time before each line.")]


def logs(
    name: common_options.JobOrElement,
    task: Annotated[
        str | None,
        typer.Option("--task", "-t", help="Task, such as main-0 or worker-3. Default: the first."),
    ] = None,
    element: Annotated[
        int | None,
        typer.Option("--element", "-e", help="Array index. Default: as for tasks.", min=0),
    ] = None,
    *,
    every_task: Annotated[
        bool,
        typer.Option(
            "--all-tasks", help="Every task, of every array element, its name before each line."
        ),
    ] = False,
    attempt: Annotated[
        int | None,
        typer.Option("--try", help="A try by its number, from 1. Default: the newest.", min=1),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue as output is written.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option("--tail", "-n", help="Only so many of the last lines. Default: all.", min=0),
    ] = None,
    stdout: Annotated[bool, typer.Option("--stdout", help="Only standard output.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Only standard error.")] = False,
    run: Annotated[
        int | None,
        typer.Option("--run", help="A run by its number, from 1. Default: the newest.", min=1),
    ] = None,
    every: _Every = False,
    since: _Since = None,
    until: _Until = None,
    timestamps: _Timestamps = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Print the output of a task: stdout and stderr, in the order of time.

    By default it is the task (or array element) that failed first, else the first one, its newest
    try. --all-tasks prints all tasks of all elements; a progress bar is printed as lines, and +
    instead of | is the rest of a long line. --all, --since and --until print every try in that
    time, of all tasks and elements unless one is named. Times of lines are exact to half a second.
    --follow continues through retries and requeues of one task, and waits for the first start;
    without it a job that has not started exits with 1 and the reason.

    Example: muster logs train --task worker-0 -f

    Example: muster logs sweep --element 7 --stderr

    Example: muster logs train --all-tasks -f

    Example: muster logs train --tail 100

    Example: muster logs train --since 12h --timestamps
    """
    name, element = array_elements.resolve_element(name, element)
    if every_task and task is not None:
        terminal.fail("--all-tasks and --task can't be combined", terminal.USAGE)
    if stdout and stderr:
        terminal.fail(
            "--stdout and --stderr can't be combined: both is the default", terminal.USAGE
        )
    widely = bool(every or since or until) and not (follow or every_task)
    every_task |= every and follow and task is None
    query = {
        "stream": "stderr" if stderr else "stdout" if stdout else log_hints.BOTH,
        "follow": "true" if follow else "false",
        **_named({"task": task, "element": element, "attempt": attempt, "run": run, "tail": tail}),
        **_switched({"every": every, "timestamps": timestamps, "widely": widely}),
        **_timed({"since": since, "until": until}),
    }
    with context.controller(server, token_file) as api:
        try:
            _print(api, name, query, every_task=every_task)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except retries.GoneError as error:
            terminal.fail(f"{error}; {name} continues: muster logs -f {name}", retries.FAILED)


def _print(
    api: "api_client.ApiClient", name: str, query: dict[str, str], *, every_task: bool
) -> None:
    """Print the requested output, and on stderr hints about other output."""
    if every_task:
        _show_all(api, name, query)
        return
    if "widely" not in query:
        if query["follow"] == "false" and not query.keys() & {"task", "every"}:
            query = _of_failed(api, name, query)
        log_hints.hint_at_others(api, name, query)
    silent = _show(api, name, query)
    if query.keys() & {"every", "widely"}:
        return
    if query["stream"] == "stdout":
        log_hints.hint_at_stderr(api, name, query, silent=silent)
    elif query["stream"] == log_hints.BOTH and silent:
        log_hints.note_silence(api, name, query)


def _of_failed(api: "api_client.ApiClient", name: str, query: dict[str, str]) -> dict[str, str]:
    """Return the query for what failed first of several tasks or elements, if anything has.

    Of an array without a named element it is else the first one that has run.
    """
    found, is_failed, several = log_hints.failed_part(api, name, query)
    if found is None or not several:
        return query
    words = {} if found.element is None or "element" in query else {"element": str(found.element)}
    if not is_failed and not found.element:
        return query
    if not is_failed:
        terminal.note(f"{name}{found.label} is the first that ran; others: --element N")
    else:
        how = "--element N" if words else "--task NAME"
        which = f"{name}: {found.task}" if found.element is None else f"{name}{found.label}"
        terminal.note(f"{which} failed first; others: {how}, all: --all-tasks")
        words["task"] = found.task
    return {**query, **words}


def _read(
    api: "api_client.ApiClient", patient: retries.Patient, name: str, query: Mapping[str, str]
) -> Iterator[bytes]:
    """Yield the output of one task as it comes: of one stream, or of both in order of time."""
    path, follows = f"/v1/jobs/{name}/logs", query["follow"] == "true"
    if query["stream"] != log_hints.BOTH:
        pieces = patient.follow(name, query) if follows else api.stream(path, query)
        yield from pieces if follows else stream_position.without_gap(pieces, terminal.note)
        return

    def opened(stream: str) -> Iterator[bytes]:
        timed = {**query, "stream": stream, "timestamps": "true"}
        yield from patient.follow(name, timed) if follows else api.stream(path, timed)

    tail = int(query["tail"]) if "tail" in query else None
    yield from merged_streams.merged(
        opened, follows=follows, shown="timestamps" in query, tail=tail, tell=terminal.note
    )


def _named(options: dict[str, str | int | None]) -> dict[str, str]:
    """Return options of a query that have a value."""
    return {option: str(value) for option, value in options.items() if value is not None}


def _switched(options: dict[str, bool]) -> dict[str, str]:
    """Return options of a query that are on."""
    return dict.fromkeys([option for option, on in options.items() if on], "true")


def _timed(options: dict[str, str | None]) -> dict[str, str]:
    """Return options of a query that are times, parsed."""
    now = time.time()
    return {
        option: times.format_time(context.parse_moment(f"--{option}", text, now))
        for option, text in options.items()
        if text is not None
    }


def _show(api: "api_client.ApiClient", name: str, query: dict[str, str]) -> bool:
    """Print the output of a query as it comes. Return True if there was none."""
    silent = True
    follows = query["follow"] == "true"
    output = task_output.TaskOutput(sys.stdout)
    read = functools.partial(_read, api, retries.Patient(api), name)
    for piece in read(query):
        if silent and piece.startswith(UNSTARTED):
            _leave_unstarted(api, name, query)
        newest = silent and not follows and not query.keys() & {"attempt", "every", "widely"}
        is_none = newest and stream_position.is_none(piece)
        if is_none and output.copy(log_hints.earlier_output(api, name, query, read)):
            return False
        if is_none and log_hints.note_unwritten(api, name, query):
            continue
        output.write(piece)
        silent = False
    output.end()
    return silent


def _show_all(api: "api_client.ApiClient", name: str, query: dict[str, str]) -> None:
    """Print every task, of every element: one after the other, or side by side if followed."""
    patient = retries.Patient(api)

    def read(part: log_hints.TaskOfElement) -> Iterator[bytes]:
        element = {} if part.element is None else {"element": str(part.element)}
        return _read(api, patient, name, {**query, **element, "task": part.task})

    look = functools.partial(all_tasks.look, api, name, query)
    if query["follow"] == "true":
        found = all_tasks.follow(look, read)
    else:
        found = all_tasks.print_all(look, read, name)
    if not found:
        _leave_unstarted(api, name, query)


def _leave_unstarted(api: "api_client.ApiClient", name: str, query: dict[str, str]) -> None:
    """Exit with the reason why there is no output; return if something has run."""
    selection = {key: query[key] for key in ("run", "element") if key in query}
    job = api.get(f"/v1/jobs/{name}", **selection)["job"]
    if job["attempts"]:
        return
    over = job["state"] in states.FINISHED_JOB_STATES
    why = [f"{one['code']}: {one['message']}" for one in job.get("reasons", ())[:1]]
    why = why or [": ".join(filter(None, (job["state"], job.get("message"))))]
    which = f"element {query['element']} of {name}" if "element" in query else name
    if over and why[0].partition(": ")[2].startswith(COUNTS_AS_DONE):
        terminal.fail(
            f"it is not known if {which} ever started, so no output of it is known: {why[0]}. If "
            "it ran before the store was lost, its output is on its nodes, in `logs` of each "
            "agent's folder"
        )
    verb = "never started" if over else "has not started"
    terminal.fail(f"{which} {verb}, so there is no output: {why[0]}")
