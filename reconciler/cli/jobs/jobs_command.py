"""The command `muster jobs`."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconciler.cli import array_elements, completion, context, lazy_import, terminal
from reconciler.cli.changes import job_selection
from reconciler.cli.jobs import job_list
from reconciler.model.values import found_values, suggestions, times

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
    from reconciler.operations.views import cluster_status
else:
    cluster_status = lazy_import.module("reconciler.operations.views.cluster_status")

Json = Any

#: How many jobs a table has, unless more are asked for.
SHOWN = 50
#: How many are sorted by something else than their submission.
SORTED_MAX = 20_000
#: How long a job that has ended stays in the table by itself.
RECENT_S = 24 * 3600
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
    queue: job_selection.Queue = None,
    state: job_selection.State = None,
    owner: job_selection.Owner = None,
    labels: job_selection.Labels = None,
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
    mine: job_selection.Mine = False,
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
    is the time from submission to the first start, or the last wait of a job that was evicted or
    retried: all its waits once it has ended. RAN is the time in which the job ran, in all tries
    together; time on hold or between tries does not count. For jobs of many tries, such as large
    arrays, RAN is shown as <= with the time since the first start, and so is WAITED if such a job
    waits again. TASKS is shown if there are
    elastic jobs: `3 of 2-6` means 3 tasks run, between 2 and 6 are allowed. A long reason is
    printed below its row; `as above` means the same reason as the row before. -o wide prints one
    line a job.

    Example: muster jobs --queue research --state Pending

    Example: muster jobs 'sweep-*' --mine --sort start
    """
    names = names or []
    array_elements.require_whole_jobs(
        "jobs", [one for one in names if not job_selection.is_pattern(one)]
    )
    whole = everything or bool(names) or output.is_data
    order = _order(sort)
    query = job_selection.Filters(queue, state, owner, labels, mine).query(names)
    if active or not (whole or state):
        query["endedSince"] = times.format_time(time.time() - RECENT_S)
    most = limit if limit is not None or whole else SHOWN
    with context.controller(server, token_file) as api:
        items, has_more = _found(api, query, most, order, names)
        if queue is not None and not items:
            job_selection.check_queue(api, queue)
        unknown = job_selection.unknown_names(api, names, items)
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
    items = job_selection.read(api, query, names, None if read is None else read + 1)
    if order is not None:
        values = {one["name"]: order(one) for one in items}
        items.sort(key=lambda one: (values[one["name"]] is None, values[one["name"]], one["name"]))
    return items[:most], most is not None and len(items) > most


def _order(written: str) -> Callable[[Json], Any] | None:
    """Return the key of an order, None for that of the controller. Exit if there is no such."""
    if written not in ORDERS:
        terminal.fail(
            f"--sort: found {found_values.quote(written)}, expected one of {', '.join(ORDERS)}"
            f"{suggestions.hint(written, ORDERS)}",
            terminal.USAGE,
        )
    return ORDERS[written]
