"""Reservations on a terminal: what keeps nodes now, and next."""

from collections.abc import Iterable
from typing import Any

from reconciler.cli import terminal
from reconciler.model.values import hostlists

Json = Any
#: The most lines of `muster status`.
LINES_MAX = 5


def of_node(page: Json, node: str, now: float, *, is_open: bool = False) -> str:
    """Return what keeps a node, or will: the window that is open or comes first; empty: nothing.

    Args:
        page: the answer about nodes; older controllers say nothing of reservations.
        node: its name.
        now: seconds since the epoch.
        is_open: True for open windows alone.
    """
    for one in page.get("reservations") or []:
        if is_open and not _is_open(one, now):
            continue
        if node in hostlists.expand(one["nodes"]):
            return _text(one, now)
    return ""


def lines(page: Json, now: float) -> Iterable[str]:
    """Yield a line for each reservation, those first that are open or begin first."""
    found = page.get("reservations") or []
    for one in found[:LINES_MAX]:
        yield f"{one['nodes']}: {_text(one, now)}"
    if len(found) > LINES_MAX:
        yield f"and {len(found) - LINES_MAX} more; `muster nodes -o json` has all"


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
