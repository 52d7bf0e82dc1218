"""What commands print reaches a pipe in whole lines, and tables have room for what matters."""

import pytest

from reconciler.cli import drifting, explaining


def test_reasons_are_lines_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 60 + "end"
    reason = {
        "code": "OverLimit",
        "message": long,
        "funnel": [{"count": 2, "why": long}],
        "unblocks": long,
    }
    item = {"job": {"place": None, "estimatedStart": None}, "reasons": [reason], "queue": None}
    explaining._explain_job(item, "j is Pending.")
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "word" in line] == [
        f"OverLimit: {long}",
        f"      2 nodes: {long}",
        f"  It would end with: {long}.",
    ]


@pytest.mark.parametrize(
    ("subject", "expected"),
    [("0123456789abcdef" * 2 + "01234567", "0123456789ab"), ("gpu001", "gpu001"), ("x" * 40,) * 2],
)
def test_commits_are_short_in_tables(subject: str, expected: str) -> None:
    assert drifting._short(subject) == expected
