"""The command `muster accounting`: files of ended attempts, one a day, for a warehouse."""

import datetime as dt
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from reconciler.cli import context, lazy_import, terminal
from reconciler.model.values import found_values

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
    from reconciler.operations.reports import attempt_files, attempt_forms, attempt_rows
else:
    attempt_files = lazy_import.module("reconciler.operations.reports.attempt_files")
    attempt_forms = lazy_import.module("reconciler.operations.reports.attempt_forms")
    attempt_rows = lazy_import.module("reconciler.operations.reports.attempt_rows")

#: The most days of one command.
DAYS_MAX = 3660


class TableForm(StrEnum):
    """Formats of the files."""

    CSV = "csv"
    PARQUET = "parquet"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(accounting)


def accounting(
    *,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the files. Default: this folder.")
    ] = Path(),
    began: Annotated[
        str | None,
        typer.Option("--from", help="First day (UTC), such as 2026-11-26. Default: yesterday."),
    ] = None,
    ended: Annotated[
        str | None, typer.Option("--to", help="Last day, included. Default: the day of --from.")
    ] = None,
    form: Annotated[
        TableForm, typer.Option("--format", help="Format: csv, or parquet, which needs pyarrow.")
    ] = TableForm.CSV,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Write ended attempts to files, one a day.

    A file has a row for each attempt at a task that ended on its day (UTC). Writing a day again
    brings its file up to date, and keeps what the store no longer has.

    Example: muster accounting --from 2026-11-01 --to 2026-11-30 --format csv --out warehouse
    """
    days = _days(began, ended, time.time())
    try:
        attempt_files.require(form.value)
        with context.controller(server, token_file) as api:
            for day in days:
                written = attempt_files.write_day(out, day, _pages(api, day), form.value)
                terminal.out.print(str(written.path), markup=False)
                kept = f", {written.kept} of them kept from the file" if written.kept else ""
                terminal.note(f"{day}: {terminal.counted(written.rows, 'attempt')}{kept}")
    except attempt_forms.TableFileError as error:
        terminal.fail(str(error))


def _pages(api: "api_client.ApiClient", day: str) -> Iterator[list["attempt_rows.AttemptRow"]]:
    """Yield the rows of a day, a page at a time."""
    after: str | None = None
    while True:
        answer: Any = api.get("/v1/accounting/attempts", day=day, after=after)
        yield msgspec.convert(answer["items"], list[attempt_rows.AttemptRow])
        following = answer["next"]
        if not following or following == after:
            return
        after = following


def _days(began: str | None, ended: str | None, now: float) -> list[str]:
    """Return the days to write. Exit if there are none, or too many."""
    today = dt.datetime.fromtimestamp(now, dt.UTC).date()
    first = today - dt.timedelta(1) if began is None else _day("--from", began)
    last = first if ended is None else _day("--to", ended)
    count = (last - first).days + 1
    if not 1 <= count <= DAYS_MAX:
        terminal.fail(
            f"--to: found {last}, expected a day from {first} on, at most {DAYS_MAX} days",
            terminal.USAGE,
        )
    return [(first + dt.timedelta(number)).isoformat() for number in range(count)]


def _day(option: str, text: str) -> dt.date:
    """Return a day. Exit if the text is none."""
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        terminal.fail(
            f"{option}: found {found_values.quote(text)}, expected a day such as 2026-11-27",
            terminal.USAGE,
        )
