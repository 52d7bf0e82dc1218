"""The command `muster report`: usage, waiting, efficiency and fairness over a span of time."""

import contextlib
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from reconciler.cli import context, lazy_import, terminal
from reconciler.model.values import found_values, suggestions, times

if TYPE_CHECKING:
    from reconciler.operations.reports import usage_reports
else:
    usage_reports = lazy_import.module("reconciler.operations.reports.usage_reports")

reportviews: Any = lazy_import.module("reconciler.operations.reports.render")
pictures: Any = lazy_import.module("reconciler.operations.reports.trace_plots")

BYS = ("queue", "user", "pool", "model")


class What(StrEnum):
    """Subjects of a report."""

    USAGE = "usage"
    WAITING = "waiting"
    EFFICIENCY = "efficiency"
    FAIRNESS = "fairness"


class Form(StrEnum):
    """Formats of a report."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    YAML = "yaml"
    PNG = "png"
    HTML = "html"


#: Suffixes of files that select a format.
ENDINGS = frozenset({"csv", "json", "yaml", "yml", "png", "html"})


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(report)


def report(
    what: Annotated[What, typer.Argument(help="Subject of the report.")],
    began: Annotated[
        str, typer.Option("--from", help="Begin: 30d (ago), 2026-11-01, or 2026-11-01T12:00:00Z.")
    ] = "30d",
    ended: Annotated[str, typer.Option("--to", help="End, in the same formats.")] = "now",
    by: Annotated[
        str, typer.Option(help="Group by these, comma-separated: queue, user, pool, model.")
    ] = "queue",
    *,
    prices: Annotated[
        Path | None,
        typer.Option(help="YAML with prices, to add costs to usage. Default: no costs."),
    ] = None,
    output: Annotated[
        Form | None,
        typer.Option("--output", "-o", help="Format. Default: by the suffix of --file, or table."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Write to this file. Default: to standard output."),
    ] = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Report GPU-hours, waiting times, efficiency or fairness.

    Spans are rounded to whole hours (UTC), for waiting to whole days. Running work is charged up to
    now.

    Example: muster report usage --from 2026-10-01 --to 2026-11-01 --by queue,user

    Example: muster report usage --by user --prices prices.yaml -f october.html
    """
    now = time.time()
    query: dict[str, Any] = _span(began, ended, now)
    groups = _groups(by)
    if prices is not None and what is not What.USAGE:
        terminal.fail("--prices works only with `report usage`", terminal.USAGE)
    paid = None if prices is None else _prices(prices)
    if paid is not None and "model" in groups:
        groups.remove("model")
        terminal.note("not grouped by model: costs are summed over models")
    form = _form(output, file)
    if form in (Form.PNG, Form.HTML):
        _require_pictures(file, form)
    query["by"] = ",".join([*groups, "model"] if paid is not None else groups)
    with context.controller(server, token_file) as api:
        answer = api.get(f"/v1/report/{what.value}", **query)["report"]
    result = msgspec.convert(answer, usage_reports.UsageReport)
    if paid is not None:
        result = usage_reports.priced(result, paid, msgspec.convert(groups, list[usage_reports.By]))
    _write(result, form, file)


def _span(began: str, ended: str, now: float) -> dict[str, str]:
    """Return the begin and the end of the report. Exit if the begin is not in the past."""
    began_at = context.parse_moment("--from", began, now)
    ended_at = context.parse_moment("--to", ended, now)
    if began_at >= min(now, ended_at):
        than = "now" if began_at >= now else f"--to, which is {times.format_time(ended_at)}"
        terminal.fail(
            f"--from: found {found_values.quote(began)}, which is "
            f"{times.format_time(began_at)}; expected a time "
            f"before {than}",
            terminal.USAGE,
        )
    return {"from": times.format_time(began_at), "to": times.format_time(ended_at)}


def _form(asked: Form | None, file: Path | None) -> Form:
    """Return the requested format; else that of the file's name."""
    if asked is not None:
        return asked
    ending = "" if file is None else file.suffix.lower().removeprefix(".")
    return Form({"yml": "yaml"}.get(ending, ending)) if ending in ENDINGS else Form.TABLE


def _table(made: "usage_reports.UsageReport", file: Path | None) -> None:
    """Print the table and its title: above it in a file, on stderr otherwise."""
    heads = [column.name.upper() for column in made.columns]
    cells, numbers = reportviews.cells(made), " ".join(heads[len(made.by) :])
    if file is None:
        terminal.note(reportviews.title(made))
        terminal.note(reportviews.units(made))
        terminal.print_table(heads, cells, right=numbers)
        return
    with file.open("w", encoding="utf-8") as stream, contextlib.redirect_stdout(stream):
        terminal.print_line(reportviews.title(made))
        terminal.print_line(reportviews.units(made))
        terminal.print_table(heads, cells, right=numbers, cut=False)


def _write(result: "usage_reports.UsageReport", output: Form, file: Path | None) -> None:
    try:
        if output is Form.TABLE:
            _table(result, file)
        elif file is not None:
            file.write_bytes(_data(result, output))
        elif output is Form.PNG:
            sys.stdout.buffer.write(_data(result, output))
        else:
            terminal.write_text(_data(result, output).decode())
    except OSError as error:
        if file is None:
            raise
        terminal.fail(f"{file} can't be written: {error.strerror}")


def _data(made: "usage_reports.UsageReport", output: Form) -> bytes:
    """Return a report in a format other than a table."""
    if output is Form.PNG:
        return bytes(reportviews.png(made))
    if output is Form.HTML:
        return str(reportviews.page(made)).encode()
    if output is Form.CSV:
        return str(reportviews.as_csv(made)).encode()
    if output is Form.YAML:
        return terminal.document_text(made, is_yaml=True).encode()
    return terminal.document_text(made, is_yaml=False).encode()


def _require_pictures(file: Path | None, output: Form) -> None:
    """Exit if a picture could not be shown, before the controller is asked."""
    if output is Form.PNG and file is None and sys.stdout.isatty():
        terminal.fail(
            "a terminal can't show a PNG. To fix: name a file with --file", terminal.USAGE
        )
    try:
        pictures.require()
    except pictures.PicturesMissingError as error:
        terminal.fail(str(error))


def _groups(by: str) -> list[str]:
    groups = list(dict.fromkeys(one.strip() for one in by.split(",") if one.strip()))
    for one in groups:
        if one not in BYS:
            hint = suggestions.hint(one, BYS)
            terminal.fail(
                f"--by: found {found_values.quote(one)}, expected {', '.join(BYS)}{hint}",
                terminal.USAGE,
            )
    return groups or ["queue"]


def _prices(path: Path) -> "usage_reports.Prices":
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=usage_reports.Prices)
    except msgspec.ValidationError as error:
        shape = "currency: EUR, gpuHour: {MODEL: 2.5}, otherGpuHour: 1, cpuHour: 0.02"
        terminal.fail(f"prices {path}: {_wrong_price(error)}; expected YAML such as {shape}")
    except (OSError, msgspec.MsgspecError) as error:
        terminal.fail(f"prices {path}: {error}")


def _wrong_price(error: msgspec.ValidationError) -> str:
    """Return msgspec's finding in the words of the document."""
    what, _, place = str(error).partition(" - at `")
    field = place.rstrip("`").removeprefix("$").removeprefix(".").replace("[...]", " of a model")
    what = (
        what.replace("`float`", "a number").replace("`str`", "a text").replace("`object`", "keys")
    )
    return f"{field}: {what[:1].lower()}{what[1:]}" if field else f"{what[:1].lower()}{what[1:]}"
