"""How far two clocks differ, by the dates of answers: what is said is sure."""

import datetime as dt

import pytest

from agents.host import clock_skew

AT = dt.datetime(2026, 2, 8, 8, 49, 37, tzinfo=dt.UTC).timestamp()
DATE = "Sun, 08 Feb 2026 08:49:37 GMT"
AHEAD = "the clock is more than 10 s ahead of the controller's"
BEHIND = "the clock is more than 10 s behind the controller's"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DATE, AT),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("", None),
        ("yesterday", None),
        ("Sun, 08 Feb 2026 08:49:37 CET", None),
        ("Sun, 31 Feb 2026 08:49:37 GMT", None),
        ("Sun, 08 Mee 2026 08:49:37 GMT", None),
        ("Sunday, 08-Feb-26 08:49:37 GMT", None),
        ("Sun, 08 Feb 99999999999999 08:49:37 GMT", None),
    ],
)
def test_dates(text: str, expected: float | None) -> None:
    assert clock_skew.moment(text) == expected


@pytest.mark.parametrize(
    ("ahead_s", "took_s", "expected"),
    [
        (0.0, 0.1, ""),
        (9.9, 0.1, ""),
        (-10.0, 0.1, ""),
        (12.1, 0.1, AHEAD),
        (-10.2, 0.1, BEHIND),
        (3600.0, 0.1, AHEAD),
        (-3600.0, 0.1, BEHIND),
        (3600.0, 60.0, AHEAD),  # a long poll
        (-3600.0, 60.0, BEHIND),
        (-65.0, 60.0, ""),  # dated at its begin or at its end: nobody knows
    ],
)
def test_one_answer(ahead_s: float, took_s: float, expected: str) -> None:
    skew = clock_skew.ClockSkew()
    skew.heard(DATE, AT + ahead_s, AT + ahead_s + took_s, took_s)
    assert skew.problem == expected


def test_what_is_known_stays_until_an_answer_is_sure_of_the_contrary() -> None:
    skew = clock_skew.ClockSkew()
    skew.heard(DATE, AT + 60, AT + 60.1, 0.1)
    assert skew.problem == AHEAD
    skew.heard(DATE, AT - 20, AT + 20, 40.0)  # a long poll that may have been dated at any moment
    skew.heard("", AT, AT + 0.1, 0.1)
    skew.heard(DATE, AT - 50, AT + 0.1, 0.1)  # the clock was set meanwhile
    assert skew.problem == AHEAD
    skew.heard(DATE, AT, AT + 0.1, 0.1)
    assert skew.problem == ""
