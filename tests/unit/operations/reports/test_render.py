"""Pictures of reports: whom they show, how they call them, and what they say of nothing."""

import pytest

from reconciler.operations.reports import render, usage_reports

HOURS = (
    usage_reports.Column("guaranteed", "GPU-hours"),
    usage_reports.Column("counted", "GPU-hours"),
)
PARTS = (usage_reports.Column("allocated", "GPU-hours"), usage_reports.Column("share", "ratio"))
NOTHING = "nothing in this span"
UNIT = "<!-- GPU-hours -->"


def report(
    rows: tuple[tuple[usage_reports.Value, ...], ...],
    columns: tuple[usage_reports.Column, ...] = HOURS,
) -> usage_reports.UsageReport:
    began, ended = "2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z"
    heads = (usage_reports.Column("queue"), *columns)
    return usage_reports.UsageReport("fairness", began, ended, ("queue",), heads, rows)


def drawing(made: usage_reports.UsageReport) -> str:
    """The picture of a page, without its table; its texts are in comments."""
    page = render.page(made)
    return page[page.index("<svg") : page.index("</svg>")]


def test_thirty_queues_are_all_there_and_of_more_the_largest() -> None:
    rows = tuple((f"team{number:02d}", 10.0, float(number)) for number in range(30))
    shown = drawing(report(rows))
    assert [name for name, *_ in rows if f"<!-- {name} -->" not in shown] == []
    assert "the 30 largest" not in shown
    shown = drawing(report((*rows, ("large", 0.0, 99.0), ("small", 0.0, 0.5))))
    assert "<!-- large -->" in shown
    assert "<!-- small -->" not in shown
    assert "the 30 largest of 32" in shown


def test_a_long_name_leaves_room_for_its_bar() -> None:
    name = "a" * 40 + "-of-" + "b" * 40
    shown = drawing(report(((name, 1.0, 2.0),)))
    assert name not in shown
    assert f"<!-- {'a' * 29}…{'b' * 29} -->" in shown


@pytest.mark.parametrize(
    ("rows", "says", "not_said"),
    [
        ((), NOTHING, UNIT),
        ((("idle", 0.0, 0.0),), "<!-- idle -->", UNIT),
        ((("busy", 0.0, 1.0),), UNIT, NOTHING),
    ],
)
def test_of_nothing_there_is_no_scale(
    rows: tuple[tuple[usage_reports.Value, ...], ...], says: str, not_said: str
) -> None:
    shown = drawing(report(rows))
    assert says in shown
    assert not_said not in shown


def test_parts_are_written_beside_the_bars_and_drawn_as_none() -> None:
    made = report((("team", 8.0, 0.8), ("other", 2.0, 0.2)), PARTS)
    shown = drawing(made)
    assert "<!-- 8.00 / 80.0% -->" in shown
    assert "part of everything allocated" in shown
    assert render.title(made).startswith("Who got which part, 2026-10-01")
    assert render.title(report(())).startswith("Who got what was promised, 2026-10-01")
