"""No cell of any CSV is a formula, whatever users call their jobs and queues."""

import csv
import io
import re

import pytest

from reconciler import package_data
from reconciler.operations.reports import csv_text, render, usage_reports


def read_back(row: list[str]) -> list[str]:
    """The one row that a reader finds."""
    (found,) = csv.reader(io.StringIO(csv_text.csv_text([row]), newline=""))
    return found


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "-", "+", "-inf", "--1"],
)
def test_what_begins_a_formula_is_text(text: str) -> None:
    assert csv_text.cell(text) == f"'{text}"
    assert read_back([text, "b"]) == [f"'{text}", "b"]


@pytest.mark.parametrize("text", ["a\r=1+1", "a\n=1+1", 'a",=1+1', "a\r\n=1"])
def test_no_cell_begins_another_row_or_cell(text: str) -> None:
    assert read_back([text, "b"]) == [text, "b"]


@pytest.mark.parametrize("value", ["-1.5", "+3", "-1e9", "train", "", "a=b", "ä", -1, 2.5, None])
def test_numbers_and_names_stay_as_they_are(value: object) -> None:
    assert csv_text.cell(value) is value


def test_reports_are_written_by_it() -> None:
    columns = (usage_reports.Column("owner"), usage_reports.Column("gpu", "GPU-hours"))
    rows = (("=HYPERLINK(0)", -1.5), ("ada", 2.0))
    report = usage_reports.UsageReport("usage", "", "", ("user",), columns, rows)
    text = render.as_csv(report)
    assert text == "owner,gpu_gpu_hours\n'=HYPERLINK(0),-1.5\nada,2.0\n"


def test_nothing_else_writes_csv() -> None:
    package = package_data.checkout() / "reconciler"
    writers = {
        path.name
        for path in package.rglob("*.py")
        if re.search(r"csv\.(writer|DictWriter)\(", path.read_text())
    }
    assert writers == {"csv_text.py"}
