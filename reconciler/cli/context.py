"""What every command shares: which controller, and how its refusals become exit codes."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconciler.cli import lazy_import, terminal
from reconciler.desired.git import git_commands
from reconciler.model.values import quantities, times
from reconciler.operations.client import endpoints

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")


def _url(value: str | None) -> str | None:
    """Callback of ``--server``: whether a controller could be there."""
    if value and (wrong := endpoints.wrong_with_url(value)):
        raise typer.BadParameter(wrong)
    return value


Server = Annotated[
    str | None,
    typer.Option("--server", help="URL of the controller.", envvar="MUSTER_SERVER", callback=_url),
]
TokenFile = Annotated[
    str | None,
    typer.Option("--token-file", help="File with your token.", envvar="MUSTER_TOKEN_FILE"),
]
Form = Annotated[
    terminal.Output, typer.Option("--output", "-o", help="Form of the output.", show_default=True)
]
#: A time of day; a span of so many hours is written ``5h8m``.
_CLOCK = re.compile(r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d)?Z?")
_LIKE_A_CLOCK = re.compile(r"\d+:\d+(:\d+)?Z?")


@contextmanager
def controller(server: str | None, token_file: str | None) -> Iterator[api_client.ApiClient]:
    """A connection; what goes wrong in the block ends the command with the right exit code."""
    try:
        with api_client.ApiClient(endpoint(server, token_file)) as connection:
            yield connection
    except endpoints.EndpointError as error:  # of the token: it is read as it is used
        terminal.fail(str(error))
    except api_client.ApiError as error:
        code = terminal.REFUSED if error.refused else terminal.ERROR
        terminal.fail(str(error), code, error.problems)


def endpoint(server: str | None, token_file: str | None) -> endpoints.Endpoint:
    """Where the controller is; leaves the command where none is known here."""
    try:
        return endpoints.find(server, token_file, Path.cwd())
    except endpoints.EndpointError as error:
        terminal.fail(str(error))


def seconds(option: str, written: str) -> int:
    """A duration of the command line; leaves the command when it is none."""
    try:
        return quantities.parse_duration(written)
    except quantities.QuantityError as error:
        terminal.fail(f"{option}: {error}", terminal.USAGE)


def named(value: str | list[str] | None) -> str | list[str] | None:
    """Callback of what takes names: an empty one, as of a variable that is not set, is none."""
    if value is not None and not all([value] if isinstance(value, str) else value):
        raise typer.BadParameter("a name is empty")
    return value


def finite(value: float | None) -> float | None:
    """Callback of an option that takes a number: ``nan`` and ``inf`` are none."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no number to count with")
    return value


def moment(option: str, text: str, now: float) -> float:
    """A time, a day in UTC, or a span before now; leaves the command when it is none."""
    if text == "now":
        return now
    of_day = clock_time(text, now)
    if of_day is not None:
        return of_day
    if _LIKE_A_CLOCK.fullmatch(text):
        terminal.fail(
            f"{option}: found {text!r}, which no clock shows: a time of day is 00:00:00 to "
            "23:59:59, and a span is written as in 25h30m",
            terminal.USAGE,
        )
    try:
        return now - ago(text)
    except quantities.QuantityError:
        pass
    try:
        return times.parse_time(text if "T" in text else f"{text}T00:00:00Z")
    except ValueError:
        terminal.fail(
            f"{option}: found {text!r}, expected a span such as 30d, a day such as 2026-11-01, "
            "or a time such as 2026-11-01T12:00:00Z",
            terminal.USAGE,
        )


def ago(text: str) -> int:
    """Seconds of a span before now. One with colons is no clock time, and was meant as one.

    Raises:
        QuantityError: it is none.
    """
    if ":" in text and "-" not in text:
        raise quantities.QuantityError(f"{text!r} is no time of a day")
    return quantities.parse_duration(text)


def clock_time(text: str, now: float) -> float | None:
    """The last moment at which a clock in the reader's zone, as of all tables, showed ``05:08:00``.

    ``05:08`` is one as well, and ``05:08:00Z`` is that of a clock in UTC. None: it is written in
    another way. Seconds since the epoch.
    """
    if _CLOCK.fullmatch(text) is None:
        return None
    zone = UTC if text.endswith("Z") else None  # None: the reader's own, as it was on that day
    here = datetime.fromtimestamp(now, zone)
    hour, minute, second = [*map(int, text.removesuffix("Z").split(":")), 0][:3]
    for days in (0, 1):
        day = here.date() - timedelta(days=days)
        moment = datetime(day.year, day.month, day.day, hour, minute, second, tzinfo=zone)
        if moment.timestamp() <= now:
            break
    return moment.timestamp()


def identity() -> str | None:
    """The e-mail address that this person's commits carry."""
    command = ["git", "config", "user.email"]
    found = subprocess.run(
        command, env=git_commands.environment(), capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None
