"""Times as text and back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.values import times


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0.0),
        ("2027-01-31T06:00:00Z", 1_801_375_200.0),
        ("2027-01-31T07:00:00+01:00", 1_801_375_200.0),
        ("2027-01-31T06:00:00.250Z", 1_801_375_200.25),
    ],
)
def test_parse(text: str, seconds: float) -> None:
    assert times.parse_time(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "x", "2027-01-31", "2027-01-31T06:00:00", "2027-13-01T00:00:00Z", "12:00Z"]
)
def test_no_time(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"expected a time such as 20|has no offset from UTC"
    ) as no:
        times.parse_time(text)
    assert f'"{text}"' in str(no.value)


@given(st.integers(0, 4 * 10**12))
def test_there_and_back(milliseconds: int) -> None:
    text = times.format_time(milliseconds / 1000)
    assert times.parse_time(text) == pytest.approx(milliseconds / 1000, abs=0.0011)
    assert times.format_time(times.parse_time(text)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1e18, "9999-12-31T00:00:00.000Z"),
        (math.inf, "9999-12-31T00:00:00.000Z"),
        (math.nan, "9999-12-31T00:00:00.000Z"),
        (-1e18, "0001-01-02T00:00:00.000Z"),
    ],
)
def test_moments_that_no_text_can_name_are_shown_as_the_nearest(seconds: float, text: str) -> None:
    assert times.format_time(seconds) == text
    assert times.format_time(times.parse_time(text)) == text
