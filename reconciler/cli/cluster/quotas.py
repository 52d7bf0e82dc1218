"""The command `muster quotas`: whom each quota is for, what it caps, and its usage."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from reconciler.cli import completion, context, terminal
from reconciler.model.values import quantities, suggestions

Json = Any
#: Subjects of a quota, as its view names them.
SUBJECTS = ("user", "group", "queue", "pool")
TITLES = (("gpu", "GPUs"), ("cpu", "CPUs"), ("memory", "memory"))


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(quotas)


def quotas(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Only these quotas. Default: all.",
            autocompletion=completion.quotas,
            callback=context.require_name,
        ),
    ] = None,
    *,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """List quotas and their usage.

    A row for each amount that a quota caps. USED of a budget is what was spent in its window plus
    what is reserved for running work. BACK BY is when some of it comes back at the latest, by a
    time limit or because spending leaves the window. Unknown without a time limit. `jobs
    considered` has no count.

    Example: muster quotas -o json

    Example: muster quotas students
    """
    with context.controller(server, token_file) as api:
        page = api.get("/v1/quotas")
    page["items"] = select(page["items"], names or ())
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_document(page, output)
        return
    show(page["items"], wide=output is terminal.Output.WIDE)


def show(items: list[Json], *, wide: bool) -> None:
    """Print the table."""
    if not items:
        terminal.note("no quotas")
        return
    terminal.print_table(
        ["NAME", "SUBJECT", "RESOURCE", "USED", "LIMIT", "BACK BY"],
        [row for item in items for row in quota_rows(item)],
        right="USED LIMIT",
        cut=not wide,
    )


def select(items: list[Json], names: Sequence[str]) -> list[Json]:
    """Return the named quotas, or all if none is named. Exit if a name is unknown."""
    known = [item["name"] for item in items]
    for name in names:
        if name not in known:
            terminal.fail(suggestions.missing("Quota", name, known))
    return [item for item in items if not names or item["name"] in names]


def quota_rows(item: Json) -> list[list[str]]:
    """Return a row for each amount that a quota caps: subject, usage and limit."""
    kind = next((one for one in SUBJECTS if item[one]), "user")
    whom = item[kind] if kind == "user" else f"{kind} {item[kind]}"
    ends = item["firstEnds"]
    rows = []
    for resource, title in TITLES:
        if item["limit"][resource] is not None:
            used = item["used"][resource] or 0
            cells = [_amount(resource, used), _amount(resource, item["limit"][resource])]
            rows.append([title, *cells, terminal.format_clock(ends[resource])])
    if item["runningMax"] is not None:
        cells = [str(item["running"]), str(item["runningMax"])]
        rows.append(["jobs running", *cells, terminal.format_clock(ends["running"])])
    if item["pendingMax"] is not None:
        rows.append(["jobs considered", "-", str(item["pendingMax"]), "-"])
    budget = item["budget"]
    if budget is not None:
        window = quantities.format_duration(budget["window_s"])
        amounts = (budget["spentGpuHours"] + budget["reservedGpuHours"], budget["gpuHours"])
        cells = [*map(quantities.format_hours, amounts), terminal.format_clock(budget["returns"])]
        rows.append([f"GPU-hours in {window}", *cells])
    return [[item["name"], whom, *row] for row in rows]


def _amount(resource: str, amount: float) -> str:
    """Return an amount. Memory is in GiB."""
    return f"{amount / 2**30:.4g} GiB" if resource == "memory" else f"{amount:g}"
