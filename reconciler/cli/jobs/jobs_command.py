"""The command `muster jobs`, and messages for a list that would be empty.

A wrong name, queue or state is an error, so that an empty table never hides a typing error.
"""

import fnmatch
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconciler.cli import array_elements, completion, context, lazy_import, terminal
from reconciler.cli.jobs import job_list
from reconciler.model.state import states
from reconciler.model.values import found_values, suggestions, times

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
    from reconciler.operations.views import cluster_status
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")
    cluster_status = lazy_import.module("reconciler.operations.views.cluster_status")

Json = Any

STATES = tuple(state.value for state in states.JobState)
#: How many jobs a table has, unless more are asked for.
SHOWN = 50
#: How many are sorted by something else than their submission.
SORTED_MAX = 20_000
#: How long a job that has ended stays in the table by itself.
RECENT_S = 24 * 3600
#: The most names that the controller searches for; of more, all jobs are read.
NAMES_MAX = 64
#: What jobs can be sorted by; what has no value comes last.
ORDERS: dict[str, Callable[[Json], Any] | None] = {
    "submitted": None,
    "name": lambda item: item["name"],
    "queue": lambda item: item["queue"],
    "owner": lambda item: item.get("owner"),
    "state": lambda item: item["state"],
    "priority": lambda item: -item["priority"],
    "start": lambda item: item.get("started") or item.get("estimatedStart"),
}


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(jobs)


def jobs(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Only these jobs; * and ? are wildcards. Default: all.",
            autocompletion=completion.jobs,
            callback=context.require_name,
        ),
    ] = None,
    *,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            "-q",
            help="Only jobs of this queue. Default: all.",
            autocompletion=completion.queues,
            callback=context.require_name,
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state", "-s", help="Only jobs in this state, such as Pending. Default: all."
        ),
    ] = None,
    owner: Annotated[
        str | None, typer.Option(help="Only jobs of this owner. Default: all.")
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", "-l", help="Only jobs with this label, KEY=VALUE. Default: all."),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            help="Order: submitted (newest first), name, queue, owner, state, priority, start."
        ),
    ] = "submitted",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            help=f"Number of jobs, newest first. Default: {SHOWN} in tables, all as data.",
            min=1,
        ),
    ] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Only jobs of your own.")] = False,
    active: Annotated[
        bool,
        typer.Option(
            "--active", help="Only what is alive or ended in the last day. Default in tables."
        ),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="All jobs, in tables, too.")
    ] = False,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """List jobs, newest first, with the reason if they wait.

    In a table those that are alive, or ended in the last day, unless you name jobs, a state or
    --all. START is the estimated start of those that wait; after ~, others may come first. WAITED
    is the time from submission to the first start. RAN is the time in which the job ran, in all
    tries together; time on hold or between tries does not count. For jobs of many tries, such as
    large arrays, RAN is shown as <= with the time since the first start. TASKS is shown if there
    are elastic jobs: `3 of 2-6` means 3 tasks run, between 2 and 6 are allowed. A long reason is
    printed below its row; `as above` means the same reason as the row before. -o wide prints one
    line a job.

    Example: muster jobs --queue research --state Pending

    Example: muster jobs 'sweep-*' --mine --sort start
    """
    if mine and owner is not None:
        terminal.fail("--mine and --owner can't be combined", terminal.USAGE)
    names = names or []
    array_elements.require_whole_jobs("jobs", [one for one in names if not _is_pattern(one)])
    whole = everything or bool(names) or output.is_data
    wanted = None if state is None else _state(state)
    for label in labels or ():
        if not label.partition("=")[1] or label.startswith("="):
            terminal.fail(
                f"--label: found {found_values.quote(label)}, expected KEY=VALUE", terminal.USAGE
            )
    order = _order(sort)
    query: dict[str, Any] = {
        "queue": queue,
        "state": wanted,
        "owner": owner,
        "mine": "true" if mine else None,
        "label": labels or None,
        "name": names if 0 < len(names) <= NAMES_MAX else None,
    }
    if active or not (whole or wanted):
        query["endedSince"] = times.format_time(time.time() - RECENT_S)
    most = limit if limit is not None or whole else SHOWN
    with context.controller(server, token_file) as api:
        items, has_more = _found(api, query, most, order, names)
        if queue is not None and not items:
            _check_queue(api, queue)
        unknown = _unknown(api, names, items)
        if output in (terminal.Output.JSON, terminal.Output.YAML):
            page = api.get("/v1/jobs", limit=1)
            page["items"] = items
            terminal.print_document(page, output)
        elif items or not unknown:  # unknown names are reported below
            is_recent = "endedSince" in query
            job_list.show(items, time.time(), wide=output is terminal.Output.WIDE, recent=is_recent)
            sync = api.get("/v1/sync")["sync"]
            if told := cluster_status.submissions_line(sync, terminal.format_clock):
                terminal.note(told)
            if has_more and limit is None:
                terminal.note(
                    f"the {'newest' if order is None else 'first'} {len(items)} are shown: --all "
                    "shows all; names, --state, --queue, --owner, --mine and --label select"
                )
    if unknown:
        terminal.fail(unknown[0], details=unknown[1:])


def _found(
    api: "api_client.ApiClient",
    query: dict[str, Any],
    most: int | None,
    order: Callable[[Json], Any] | None,
    names: list[str],
) -> tuple[list[Json], bool]:
    """Return the jobs to show, in order, and if there are more.

    Args:
        api: the connection.
        query: what the controller selects by.
        most: how many to show; None: all.
        order: key to sort by; None: as the controller lists them, the newest first.
        names: of jobs, some with wildcards; empty: all.
    """
    read = most if order is None else SORTED_MAX
    items = api.items("/v1/jobs", most=None if read is None else read + 1, **query)
    if len(names) > NAMES_MAX:  # the controller was not asked for them
        items = [one for one in items if any(fnmatch.fnmatchcase(one["name"], n) for n in names)]
    if order is not None:
        values = {one["name"]: order(one) for one in items}
        items.sort(key=lambda one: (values[one["name"]] is None, values[one["name"]], one["name"]))
    return items[:most], most is not None and len(items) > most


def _is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def _order(written: str) -> Callable[[Json], Any] | None:
    """Return the key of an order, None for that of the controller. Exit if there is no such."""
    if written not in ORDERS:
        terminal.fail(
            f"--sort: found {found_values.quote(written)}, expected one of {', '.join(ORDERS)}"
            f"{suggestions.hint(written, ORDERS)}",
            terminal.USAGE,
        )
    return ORDERS[written]


def _state(written: str) -> str:
    """Return a state in its usual spelling. Exit if there is no such state."""
    found = {name.lower(): name for name in STATES}.get(written.lower())
    if found is None:
        hint = suggestions.hint(written.capitalize(), STATES)
        terminal.fail(
            f"--state: found {found_values.quote(written)}, expected one of "
            f"{', '.join(STATES)}{hint}",
            terminal.USAGE,
        )
    return found


def _check_queue(api: "api_client.ApiClient", queue: str) -> None:
    """Exit if no queue has that name."""
    known = [one["name"] for one in api.get("/v1/queues")["items"]]
    if queue not in known:
        terminal.fail(suggestions.missing("Queue", queue, known))


def _unknown(api: "api_client.ApiClient", names: list[str], items: list[Json]) -> list[str]:
    """Return the messages about names that no job has; a filter may leave out one that is there."""
    shown = {item["name"] for item in items}
    found = []
    for name in dict.fromkeys(names):
        if name in shown:
            continue
        if _is_pattern(name):
            if not api.get("/v1/jobs", name=[name], limit=1)["items"]:
                found.append(f"no job has a name like {found_values.quote(name)}")
            continue
        try:
            api.get(f"/v1/jobs/{name}")
        except api_client.ApiError as error:
            if error.status != 404:
                raise
            found.append(str(error))
    return found
