"""Parts that all commands share: the connection to the controller, and parsing of times."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconciler.cli import lazy_import, terminal
from reconciler.model.values import found_values, quantities, times
from reconciler.operations import local_git
from reconciler.operations.client import endpoints

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")


def require_url(value: str | None) -> str | None:
    """Return the URL of a controller. Raise BadParameter if none can have it."""
    if value and (wrong := endpoints.wrong_with_url(value)):
        raise typer.BadParameter(wrong)
    return value


Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        help="URL of the controller. Default: the cluster of this folder.",
        envvar="MUSTER_SERVER",
        callback=require_url,
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        help="File that holds your token. Default: the cluster of this folder.",
        envvar="MUSTER_TOKEN_FILE",
    ),
]
Form = Annotated[
    terminal.Output, typer.Option("--output", "-o", help="Output format.", show_default=True)
]
#: A time of day; five hours and eight minutes are written `5h8m`.
_CLOCK = re.compile(r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d)?Z?")
_LIKE_A_CLOCK = re.compile(r"\d+:\d+(:\d+)?Z?")


@contextmanager
def controller(
    server: str | None, token_file: str | None, *, failed: int | None = None
) -> Iterator[api_client.ApiClient]:
    """Open a connection. An error inside the block ends the command with the right exit code.

    Args:
        server, token_file: as the options name them.
        failed: exit code of errors but refusals, for a command whose other codes are those of
            something that it runs.
    """
    try:
        with api_client.ApiClient(endpoint(server, token_file, failed=failed)) as connection:
            yield connection
    except endpoints.EndpointError as error:  # of the token, which is read when it is used
        terminal.fail(str(error), failed or terminal.ERROR)
    except api_client.ApiError as error:
        code = terminal.REFUSED if error.refused else failed or terminal.ERROR
        terminal.fail(str(error), code, error.problems)


def endpoint(
    server: str | None, token_file: str | None, *, failed: int | None = None
) -> endpoints.Endpoint:
    """Return the address of the controller. Exit if none is configured, with ``failed`` or 1."""
    try:
        return endpoints.find(server, token_file, Path.cwd())
    except endpoints.EndpointError as error:
        terminal.fail(str(error), failed or terminal.ERROR)


def parse_seconds(option: str, written: str) -> int:
    """Return the seconds of a duration. Exit if the text is not a duration."""
    try:
        return quantities.parse_duration(written)
    except quantities.QuantityError as error:
        terminal.fail(f"{option}: {error}", terminal.USAGE)


def require_text(value: str | list[str] | None) -> str | list[str] | None:
    """Return names as given. Raise BadParameter if one is empty, for example from an unset
    variable.
    """
    if value is not None and not all([value] if isinstance(value, str) else value):
        raise typer.BadParameter("a name is empty")
    return value


def require_name(value: str | list[str] | None) -> str | list[str] | None:
    """Return names as given. Raise BadParameter if one is empty, has its kind before it, or a slash
    for another reason: in the address of a request it would name something else.
    """
    require_text(value)
    for name in [value] if isinstance(value, str) else value or ():
        kind, slash, bare = name.partition("/")
        if slash and bare and kind.isalpha():
            raise typer.BadParameter(f"{name}: expected a name without its kind, {bare}")
        if slash and bare:
            raise typer.BadParameter(f"{name}: expected a name, which has no /")
    return value


def require_one(value: str | None) -> str | None:
    """Return the name of one job as given. Raise BadParameter if it has wildcards."""
    require_name(value)
    if value is not None and not {"*", "?"}.isdisjoint(value):
        quoted = f"'{value}'"
        raise typer.BadParameter(f"expected the name of one job; muster jobs {quoted} lists them")
    return value


def require_finite(value: float | None) -> float | None:
    """Return a number as given. Raise BadParameter for `nan` and `inf`."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


def parse_moment(option: str, text: str, now: float) -> float:
    """Return seconds since the epoch of a time, a UTC day, or a span before now. Exit otherwise."""
    if text == "now":
        return now
    of_day = parse_clock_time(text, now)
    if of_day is not None:
        return of_day
    if _LIKE_A_CLOCK.fullmatch(text):
        terminal.fail(
            f"{option}: found {found_values.quote(text)}, expected a time of day from 00:00:00 "
            "to 23:59:59, or a "
            "span such as 25h30m",
            terminal.USAGE,
        )
    try:
        return now - parse_ago(text)
    except quantities.QuantityError:
        pass
    try:
        return times.parse_time(text if "T" in text else f"{text}T00:00:00Z")
    except ValueError:
        terminal.fail(
            f"{option}: found {found_values.quote(text)}, expected a span such as 30d, a day "
            "such as 2026-11-01, "
            f"or a time such as 2026-11-01T12:00:00Z{quantities.suggest_duration(text)}",
            terminal.USAGE,
        )


def parse_ago(text: str) -> int:
    """Return the seconds of a span before now. A text with colons was meant as a clock time.

    Raises:
        QuantityError: the text is not a span.
    """
    if ":" in text and "-" not in text:
        raise quantities.QuantityError(f"{found_values.quote(text)} is not a time of day")
    return quantities.parse_duration(text)


def parse_clock_time(text: str, now: float) -> float | None:
    """Return the last moment at which a clock in the reader's time zone showed `05:08:00`.

    `05:08` is accepted as well; `05:08:00Z` is the time of a clock in UTC. Return None for any
    other text. The unit is seconds since the epoch.
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


def identity(clone: Path | None = None) -> str | None:
    """Return the e-mail address of this person's commits in a clone, or None."""
    return local_git.user_email(clone)
