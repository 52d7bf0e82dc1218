"""Reservations on a terminal: what keeps nodes now, and next."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from reconciler.cli import lazy_import, terminal
from reconciler.model.values import hostlists

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")

Json = Any
#: The most lines of `muster status`.
LINES_MAX = 5


def read(api: "api_client.ApiClient") -> list[Json]:
    """Return the reservations, those first that are open or begin first; an earlier controller
    tells none.
    """
    try:
        found: list[Json] = api.get("/v1/reservations")["items"]
    except api_client.ApiError as error:
        if error.status != 404:
            raise
        return []
    return found


def of_node(found: list[Json], node: str, now: float, *, is_open: bool = False) -> str:
    """Return what keeps a node, or will: the window that is open or comes first; empty: nothing.

    Args:
        found: reservations.
        node: its name.
        now: seconds since the epoch.
        is_open: True for open windows alone.
    """
    for one in found:
        if is_open and not _is_open(one, now):
            continue
        if node in hostlists.expand(one["nodes"]):
            return _text(one, now)
    return ""


def lines(found: list[Json], now: float) -> Iterable[str]:
    """Yield a line for each reservation, those first that are open or begin first."""
    for one in found[:LINES_MAX]:
        yield f"{one['nodes']}: {_text(one, now)}"
    if len(found) > LINES_MAX:
        yield f"and {len(found) - LINES_MAX} more; `muster status -o json` has all"


def _is_open(one: Json, now: float) -> bool:
    begins = terminal.parse_time(one["begins"])
    return begins is not None and begins <= now


def _text(one: Json, now: float) -> str:
    what = "maintenance" if one["maintenance"] else "reserved"
    if one["queues"]:
        what += f" for {', '.join(one['queues'])}"
    until = terminal.format_clock(one["ends"])
    when = f"until {until}"
    if not _is_open(one, now):
        when = f"from {terminal.format_clock(one['begins'])} to {until}"
    return f"{what} {when} (Reservation/{one['name']})"
