"""``muster report``: what was used, waited for, wasted and shared over a span of time."""

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from reconciler.cli import context, lazily, terminal
from reconciler.model import nearest, times

if TYPE_CHECKING:
    from reconciler.operations import reports
else:
    reports = lazily.module("reconciler.operations.reports")

reportviews: Any = lazily.module("reconciler.operations.reportviews")
pictures: Any = lazily.module("reconciler.simulation.pictures")

BYS = ("queue", "user", "pool", "model")


class What(StrEnum):
    """What can be reported."""

    USAGE = "usage"
    WAITING = "waiting"
    EFFICIENCY = "efficiency"
    FAIRNESS = "fairness"


class Form(StrEnum):
    """Forms of a report."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    YAML = "yaml"
    PNG = "png"
    HTML = "html"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(report)


def report(
    what: Annotated[What, typer.Argument(help="What of.")],
    began: Annotated[
        str, typer.Option("--from", help="Since when: 30d (ago), 2026-11-01, or with a time.")
    ] = "30d",
    ended: Annotated[str, typer.Option("--to", help="Until when, in the same forms.")] = "now",
    by: Annotated[
        str, typer.Option(help="What to tell apart, by commas: queue, user, pool, model.")
    ] = "queue",
    *,
    prices: Annotated[
        Path | None, typer.Option(help="YAML with prices; usage is shown with its cost.")
    ] = None,
    output: Annotated[Form, typer.Option("--output", "-o", help="Form.")] = Form.TABLE,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Write there instead of stdout.")
    ] = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Report GPU-hours, waiting, efficiency or fairness.

    Hours are whole, those of waiting days, in UTC. What still runs is charged up to now.

    Example: muster report usage --from 2026-10-01 --to 2026-11-01 --by queue,user

    Example: muster report usage --by user --prices prices.yaml -o html -f october.html
    """
    now = time.time()
    query: dict[str, Any] = {
        "from": times.format_time(context.moment("--from", began, now)),
        "to": times.format_time(context.moment("--to", ended, now)),
    }
    groups = _groups(by)
    if prices is not None and what is not What.USAGE:
        terminal.fail("--prices goes with usage: cost is made of GPU-hours", terminal.USAGE)
    paid = None if prices is None else _prices(prices)
    if paid is not None and "model" in groups:
        groups.remove("model")
        terminal.note("by model is left out: a cost is summed up over models")
    if output in (Form.PNG, Form.HTML):
        _require_pictures(file, output)
    query["by"] = ",".join([*groups, "model"] if paid is not None else groups)
    with context.controller(server, token_file) as api:
        answer = api.get(f"/v1/report/{what.value}", **query)["report"]
    made = msgspec.convert(answer, reports.Report)
    if paid is not None:
        made = reports.priced(made, paid, msgspec.convert(groups, list[reports.By]))
    _write(made, output, file)


def _write(made: "reports.Report", output: Form, file: Path | None) -> None:
    if output is Form.TABLE and file is None:
        terminal.note(reportviews.title(made))
        terminal.note(reportviews.units(made))
        heads = [column.name.upper() for column in made.columns]
        numbers = " ".join(heads[len(made.by) :])
        terminal.table(heads, reportviews.cells(made), right=numbers)
        return
    if output is Form.PNG:
        data = reportviews.png(made)
    elif output is Form.HTML:
        data = reportviews.page(made).encode()
    elif output is Form.CSV:
        data = reportviews.as_csv(made).encode()
    elif output is Form.YAML:
        data = msgspec.yaml.encode(made)
    else:
        data = msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n"
    if file is None:
        sys.stdout.buffer.write(data)
        return
    try:
        file.write_bytes(data)
    except OSError as error:
        terminal.fail(f"{file} can't be written: {error.strerror}")


def _require_pictures(file: Path | None, output: Form) -> None:
    """Say before anything is asked for that it could not be shown."""
    if output is Form.PNG and file is None and sys.stdout.isatty():
        terminal.fail("a picture is no text: name a file with --file", terminal.USAGE)
    try:
        pictures.require()
    except pictures.PicturesMissingError as error:
        terminal.fail(str(error))


def _groups(by: str) -> list[str]:
    groups = list(dict.fromkeys(one.strip() for one in by.split(",") if one.strip()))
    for one in groups:
        if one not in BYS:
            hint = nearest.hint(one, BYS)
            terminal.fail(f"--by: found {one!r}, expected {', '.join(BYS)}{hint}", terminal.USAGE)
    return groups or ["queue"]


def _prices(path: Path) -> "reports.Prices":
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=reports.Prices)
    except msgspec.ValidationError as error:
        shape = "currency: EUR, gpuHour: {MODEL: 2.5}, otherGpuHour: 1, cpuHour: 0.02"
        terminal.fail(f"prices {path}: {_wrong_price(error)}; expected what reads like {shape}")
    except (OSError, msgspec.MsgspecError) as error:
        terminal.fail(f"prices {path}: {error}")


def _wrong_price(error: msgspec.ValidationError) -> str:
    """What msgspec found, in the words of the document."""
    what, _, place = str(error).partition(" - at `")
    field = place.rstrip("`").removeprefix("$").removeprefix(".").replace("[...]", " of a model")
    what = (
        what.replace("`float`", "a number").replace("`str`", "a text").replace("`object`", "keys")
    )
    return f"{field}: {what[:1].lower()}{what[1:]}" if field else f"{what[:1].lower()}{what[1:]}"
