"""What keeps nodes is said where nodes are shown: what is open, and what comes."""

from typing import Any

import msgspec
import pytest

from reconciler.cli.cluster import reserved_nodes
from reconciler.desired.documents import cron
from reconciler.model import desired
from reconciler.model.values import times
from reconciler.operations.views import reservation_views
from tests.unit.core.safety.test_impact import pool, state

NOW = times.parse_time("2026-11-25T10:00:00Z")


def listed(*found: desired.Reservation) -> Any:
    structure = state(pool("a", 4)).structure
    structure = desired.Structure(
        pools=structure.pools, reservations={one.name: one for one in found}
    )
    return msgspec.to_builtins(reservation_views.shown(structure, NOW))


def once(name: str, begin: float, end: float, **fields: Any) -> desired.Reservation:
    given: dict[str, Any] = {"nodes": ("a1", "a2"), "maintenance": True} | fields
    return desired.Reservation(name, starts_at=NOW + begin, ends_at=NOW + end, **given)


@pytest.mark.parametrize(
    ("found", "node", "told", "is_open"),
    [
        (once("fans", -60, 600), "a1", "maintenance until ", True),
        (once("fans", -60, 600), "a3", "", False),
        (once("fans", 60, 600), "a2", "maintenance from ", False),
        (once("fans", -60, -1), "a2", "", False),
        (once("course", 60, 600, maintenance=False, queues=("q",)), "a2", "reserved for q", False),
        (
            desired.Reservation(
                "night",
                ("a1",),
                schedule=cron.parse("0 10 * * *"),
                duration_s=60,
                maintenance=True,
            ),
            "a1",
            "maintenance until ",
            True,
        ),
    ],
)
def test_what_keeps_a_node_is_said(
    found: desired.Reservation, node: str, told: str, *, is_open: bool
) -> None:
    text = reserved_nodes.of_node(listed(found), node, NOW)
    assert text.startswith(told)
    assert bool(text) is bool(told)
    assert not text or text.endswith(f"(Reservation/{found.name})")
    assert bool(reserved_nodes.of_node(listed(found), node, NOW, is_open=True)) is is_open


def test_what_is_open_comes_first_and_many_are_counted() -> None:
    many = [once(f"r{number}", number - 0.5, 9_000) for number in range(7)]
    told = list(reserved_nodes.lines(listed(*reversed(many)), NOW))
    assert told[0].startswith("a[1-2]: maintenance until ")
    assert told[1].startswith("a[1-2]: maintenance from ")
    assert len(told) == 6
    assert told[-1] == "and 2 more; `muster status -o json` has all"
    assert list(reserved_nodes.lines([], NOW)) == []
