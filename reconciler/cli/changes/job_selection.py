"""Selection of jobs by names, wildcards and filters, alike in all commands that take several.

A wrong name, queue or state is an error, so that a typing error never selects nothing silently.
"""

import fnmatch
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from reconciler.cli import completion, context, lazy_import, terminal
from reconciler.model.state import states
from reconciler.model.values import found_values, suggestions

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")

Json = Any

#: The state of a job that is submitted and not in git yet; the controller lists these first.
SUBMITTING = "Submitting"
STATES = (SUBMITTING, *(state.value for state in states.JobState))
#: The most names that the controller searches for; of more, all jobs are read.
NAMES_MAX = 64

Queue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        "-q",
        help="Only jobs of this queue. Default: all.",
        autocompletion=completion.queues,
        callback=context.require_name,
    ),
]
State = Annotated[
    str | None,
    typer.Option("--state", "-s", help="Only jobs in this state, such as Pending. Default: all."),
]
Owner = Annotated[
    str | None, typer.Option("--owner", help="Only jobs of this owner. Default: all.")
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", "-l", help="Only jobs with this label, KEY=VALUE. Default: all."),
]
Mine = Annotated[bool, typer.Option("--mine", help="Only jobs of your own.")]


class Filters(NamedTuple):
    """Filters of jobs as written; None, empty and False do not filter."""

    queue: str | None = None
    state: str | None = None
    owner: str | None = None
    labels: Sequence[str] | None = None
    mine: bool = False

    def query(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the controller's parameters for these filters and names. Exit if one is wrong."""
        if self.mine and self.owner is not None:
            terminal.fail("--mine and --owner can't be combined", terminal.USAGE)
        for label in self.labels or ():
            if not label.partition("=")[1] or label.startswith("="):
                terminal.fail(
                    f"--label: found {found_values.quote(label)}, expected KEY=VALUE",
                    terminal.USAGE,
                )
        return {
            "queue": self.queue,
            "state": None if self.state is None else state_named(self.state),
            "owner": self.owner,
            "mine": "true" if self.mine else None,
            "label": self.labels or None,
            "name": list(names) if 0 < len(names) <= NAMES_MAX else None,
        }


def is_pattern(name: str) -> bool:
    """Return True if a name has wildcards."""
    return "*" in name or "?" in name


def read(
    api: "api_client.ApiClient", query: dict[str, Any], names: Sequence[str], most: int | None
) -> list[Json]:
    """Return jobs as the controller lists them, the newest first.

    Args:
        api: the connection.
        query: what the controller selects by.
        names: of jobs, some with wildcards; empty: all.
        most: the most jobs to read; None: all.
    """
    if query.get("state") == SUBMITTING:  # those come with any page, and no record has the state
        items = _submitting(api, {**query, "state": None})
    else:
        items = api.items("/v1/jobs", most=most, **query)
    if len(names) > NAMES_MAX:  # the controller was not asked for them
        items = [one for one in items if any(fnmatch.fnmatchcase(one["name"], n) for n in names)]
    return items


def _submitting(api: "api_client.ApiClient", query: dict[str, Any]) -> list[Json]:
    """Return jobs that wait for git: the controller lists them before all others."""
    found: list[Json] = []
    after: str | None = None
    while True:
        page = api.get("/v1/jobs", after=after, **query)
        those = [one for one in page["items"] if one["state"] == SUBMITTING]
        found += those
        after = page.get("next")
        if not after or len(those) < len(page["items"]):
            return found


def expanded(api: "api_client.ApiClient", names: Sequence[str]) -> list[str]:
    """Return names with those in place of wildcards that jobs have now, the oldest first.

    Exit if no job has a name like one with wildcards.
    """
    found: dict[str, None] = {}
    for name in names:
        items = read(api, {"name": [name]}, [name], None) if is_pattern(name) else [{"name": name}]
        if not items:
            terminal.fail(f"no job has a name like {found_values.quote(name)}")
        found |= dict.fromkeys(str(one["name"]) for one in reversed(items))
    return list(found)


def state_named(written: str) -> str:
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


def check_queue(api: "api_client.ApiClient", queue: str) -> None:
    """Exit if no queue has that name."""
    known = [one["name"] for one in api.get("/v1/queues")["items"]]
    if queue not in known:
        terminal.fail(suggestions.missing("Queue", queue, known))


def unknown_names(
    api: "api_client.ApiClient", names: Sequence[str], items: Sequence[Json]
) -> list[str]:
    """Return the messages about names that no job has; a filter may leave out one that is there."""
    shown = {item["name"] for item in items}
    found = []
    for name in dict.fromkeys(names):
        if name in shown:
            continue
        if is_pattern(name):
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
