"""A report that goes to a file has the form that was asked for, or that the file's name means."""

import json
from pathlib import Path

import pytest
import typer

from reconciler.cli import terminal
from reconciler.cli.cluster import report
from reconciler.model.values import times
from reconciler.operations.reports import usage_reports

MADE = usage_reports.UsageReport(
    "usage",
    "2026-10-01T00:00:00Z",
    "2026-11-01T00:00:00Z",
    ("queue",),
    (usage_reports.Column("queue", ""), usage_reports.Column("allocated", "GPU-hours")),
    (("a-queue-of-a-very-long-name-that-no-terminal-of-eighty-columns-shows-beside-others", 12.0),),
)


@pytest.mark.parametrize(
    ("asked", "name", "form"),
    [
        (None, None, "table"),
        (None, "october.txt", "table"),
        (None, "october.csv", "csv"),
        (None, "october.JSON", "json"),
        (None, "october.yml", "yaml"),
        (None, "october.html", "html"),
        (None, "october", "table"),
        ("table", "october.csv", "table"),
        ("csv", "october.txt", "csv"),
    ],
)
def test_the_form_is_what_is_asked_for_or_what_the_name_says(
    asked: str | None, name: str | None, form: str
) -> None:
    file = None if name is None else Path(name)
    assert report._form(report.Form(asked) if asked else None, file) == form


def test_a_table_in_a_file_is_whole_and_says_what_it_is_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report._write(MADE, report.Form.TABLE, tmp_path / "october.txt")
    title, units, heads, row = (tmp_path / "october.txt").read_text().splitlines()
    assert "2026-10-01 00:00 to 2026-11-01 00:00 UTC" in title
    assert units == "allocated in GPU-hours"
    assert heads.split() == ["QUEUE", "ALLOCATED"]
    assert row.split()[0] == MADE.rows[0][0]
    terminal.out.print("after it")
    assert capsys.readouterr().out == "after it\n"


def test_json_in_a_file_is_json(tmp_path: Path) -> None:
    report._write(MADE, report.Form.JSON, tmp_path / "october.json")
    assert json.loads((tmp_path / "october.json").read_text())["what"] == "usage"


def test_a_file_that_can_not_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        report._write(MADE, report.Form.TABLE, tmp_path / "nowhere" / "october.txt")
    assert "can't be written: No such file or directory" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize(
    ("began", "ended", "told"),
    [
        ("2026-12-01", "now", '--from: found "2026-12-01", which is 2026-12-01T00:00:00.000Z'),
        ("2026-12-01", "2026-12-09", "expected a time before now"),
        ("now", "now", "expected a time before now"),
        ("2026-11-02", "2026-11-01", "before --to, which is 2026-11-01T00:00:00.000Z"),
    ],
)
def test_a_span_that_has_not_begun_is_wrong_usage(
    began: str, ended: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as left:
        report._span(began, ended, times.parse_time("2026-11-23T12:00:00Z"))
    assert left.value.exit_code == terminal.USAGE
    assert told in " ".join(capsys.readouterr().err.split())


def test_a_span_may_end_later_than_now() -> None:
    now = times.parse_time("2026-11-23T12:00:00Z")
    assert report._span("1d", "2026-12-01", now) == {
        "from": "2026-11-22T12:00:00.000Z",
        "to": "2026-12-01T00:00:00.000Z",
    }
