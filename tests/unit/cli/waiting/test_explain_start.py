"""A bound on a start and a forecast of it are told apart by one word."""

import pytest

from reconciler.cli.waiting import explain_start

BOUND = {
    "estimatedStart": "1970-01-01T02:00:00Z",
    "latestStart": "1970-01-01T03:30:00Z",
    "estimatedCertain": True,
}
FORECAST = {**BOUND, "estimatedCertain": False}
AT, LATEST = "1970-01-01 02:00", "1970-01-01 03:30"


@pytest.mark.parametrize(
    ("job", "now", "told"),
    [
        (BOUND, 3600.0, f"by {LATEST}"),
        (BOUND, 4 * 3600.0, ""),
        (BOUND, 2.5 * 3600.0, f"by {LATEST}"),
        (FORECAST, 2.5 * 3600.0, ""),
        (FORECAST, 3600.0, f"about {AT}"),
        ({**BOUND, "latestStart": None}, 3600.0, f"about {AT}"),
        ({"estimatedStart": None}, 3600.0, ""),
    ],
)
def test_by_is_a_bound_and_about_a_forecast(job: dict[str, object], now: float, told: str) -> None:
    assert explain_start.short_start(job, now) == told


def test_one_moment_is_not_told_twice() -> None:
    job = {**BOUND, "latestStart": BOUND["estimatedStart"]}
    assert explain_start.start_text(job, 3600.0) == f"by {AT} (in 1h00m)"
