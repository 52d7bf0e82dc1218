"""Times of day on the command line, and in sentences, are those of the tables."""

import os
import time
from collections.abc import Iterator

import pytest
import typer

from reconciler.cli import context, main, terminal
from reconciler.model.values import times

NOW = times.parse_time("2026-11-22T10:00:00Z")


@pytest.fixture(params=["UTC", "UTC-2"])
def zone_s(request: pytest.FixtureRequest) -> Iterator[int]:
    """A zone to be in, as seconds east of UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield 0 if request.param == "UTC" else 7200
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("05:08:00", "2026-11-22T05:08:00Z"),
        ("5:08", "2026-11-22T05:08:00Z"),
        ("13:30:01", "2026-11-21T13:30:01Z"),
    ],
)
def test_a_time_of_day_is_the_last_one(written: str, moment: str, zone_s: int) -> None:
    expected = times.parse_time(moment) - zone_s
    assert context.parse_clock_time(written, NOW) == expected
    assert context.parse_moment("--since", written, NOW) == expected


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("05:08:00Z", "2026-11-22T05:08:00Z"),
        ("9:59Z", "2026-11-22T09:59:00Z"),
        ("13:30:01Z", "2026-11-21T13:30:01Z"),
    ],
)
def test_a_time_of_day_in_utc_is_one_wherever_it_is_read(
    written: str, moment: str, zone_s: int
) -> None:
    assert context.parse_clock_time(written, NOW) == times.parse_time(moment)
    assert context.parse_moment("--since", written, NOW) == times.parse_time(moment)


@pytest.mark.parametrize("written", ["10m", "36:00:00", "2026-11-22T05:08:00Z", "now", "5"])
def test_what_is_written_in_another_way_is_none(written: str) -> None:
    assert context.parse_clock_time(written, NOW) is None


def test_times_in_sentences_are_as_in_tables() -> None:
    at = times.format_time(time.time())
    assert terminal.format_clocks(f"from {at} on") == f"from {terminal.format_clock(at)} on"
    assert "T" not in terminal.format_clocks(at)


def test_a_time_of_another_year_tells_it() -> None:
    this = time.localtime().tm_year
    assert terminal.format_clock(f"{this - 1}-06-11T12:00:00Z").startswith(f"{this - 1}-06-11 ")
    other = "06-11" if time.localtime().tm_mon != 6 else "05-11"
    assert terminal.format_clock(f"{this}-{other}T12:00:00Z").startswith(f"{other} ")


@pytest.mark.parametrize(
    "written", ["25:00:00", "12:60", "yesterday", "2026-11-20", "10", "1-12:00:00"]
)
def test_what_is_no_time_is_told_which_forms_are(
    written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["explain", "train", "--at", written, "--server", "http://127.0.0.1:1"]
    code = None
    try:
        code = main.application("explain").main(words, prog_name="muster", standalone_mode=False)
    except typer.Exit as error:
        code = error.exit_code
    told = " ".join(capsys.readouterr().err.split())
    if written in {"10", "1-12:00:00"}:  # seconds, or days and hours ago
        assert "no time" not in told
        assert code != terminal.USAGE
        return
    assert code == terminal.USAGE
    for form in (written, "2026-11-20T23:30:00Z", "05:08:00", "10m"):
        assert form in told


@pytest.mark.parametrize("written", ["25:00:00", "12:60", "25:00:00Z"])
def test_a_time_that_no_clock_shows_is_no_span(
    written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as left:
        context.parse_moment("--from", written, 1e9)
    assert left.value.exit_code == terminal.USAGE
    assert f'--from: found "{written}", expected a time of day' in capsys.readouterr().err
