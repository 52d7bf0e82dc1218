"""Moments as people write them, in local time."""

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from reconciler.cli.changes import local_times
from reconciler.model.values import times

#: A Friday in winter, two days before nothing changes; Berlin is one hour ahead then.
NOW = "2027-01-29T17:30:15+01:00"


@pytest.fixture(autouse=True)
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "2027-01-29T16:30:15"),
        ("now+60", "2027-01-29T16:31:15"),
        ("now+1hour", "2027-01-29T17:30:15"),
        ("now+2h", "2027-01-29T18:30:15"),
        ("now+3days", "2027-02-01T16:30:15"),
        ("now+1w", "2027-02-05T16:30:15"),
        ("2h", "2027-01-29T18:30:15"),
        ("90m", "2027-01-29T18:00:15"),
        ("18:00", "2027-01-29T17:00:00"),
        ("17:30:15", "2027-01-30T16:30:15"),
        ("6:05", "2027-01-30T05:05:00"),
        ("Noon", "2027-01-30T11:00:00"),
        ("midnight", "2027-01-29T23:00:00"),
        ("today", "2027-01-29T16:30:15"),
        ("tomorrow", "2027-01-30T16:30:15"),
        ("2027-01-31", "2027-01-30T23:00:00"),
        ("2027-01-31T06:00", "2027-01-31T05:00:00"),
        ("2027-01-31T06:00Z", "2027-01-31T06:00:00"),
        ("2027-07-31T06:00", "2027-07-31T04:00:00"),  # summer
    ],
)
def test_a_moment_is_read_in_local_time(text: str, expected: str) -> None:
    found = local_times.parse(text, datetime.fromisoformat(NOW))
    assert times.format_time(found) == f"{expected}.000Z"


def test_the_same_hour_of_the_next_day_is_meant_where_clocks_change() -> None:
    now = datetime.fromisoformat("2027-03-27T07:00+01:00")
    assert times.format_time(local_times.parse("6:00", now)) == "2027-03-28T04:00:00.000Z"


@pytest.mark.parametrize(
    "text",
    ["", "soon", "24:00", "12:60", "now+", "now-1h", "now+1parsec", "31.1.2027", "now+99999999999"],
)
def test_other_words_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as 2h"):
        local_times.parse(text, datetime.fromisoformat(NOW))
