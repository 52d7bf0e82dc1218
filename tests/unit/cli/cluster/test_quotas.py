"""Quotas as rows: each amount that one caps, how much of it is used, and when some comes back."""

from typing import Any

import pytest
import typer

from reconciler.cli.cluster import quotas

AT = "1970-01-01T00:59:34Z"
NONE = {"cpu": None, "memory": None, "gpu": None}
QUOTA: dict[str, Any] = {
    "name": "q",
    **dict.fromkeys(("user", "group", "queue", "pool")),
    "used": {"cpu": 3.0, "memory": 3 * 2**29, "gpu": 0.5},
    "limit": NONE,
    "running": 2,
    "firstEnds": dict.fromkeys(("cpu", "memory", "gpu", "running")),
    **dict.fromkeys(("runningMax", "pendingMax", "budget")),
}
BUDGET = {
    "gpuHours": 500.0,
    "spentGpuHours": 312.25,
    "reservedGpuHours": 8.0,
    "window_s": 30 * 86_400,
    "onExhausted": "wait",
    "returns": AT,
}


@pytest.mark.parametrize(
    ("item", "rows"),
    [
        ({"user": "ada"}, []),
        (
            {"user": "ada", "limit": {**NONE, "gpu": 16.0}, "firstEnds": {**NONE, "gpu": AT}},
            [["q", "ada", "GPUs", "0.5", "16", "1970-01-01 00:59"]],
        ),
        (
            {"queue": "students", "limit": {"cpu": 8.0, "memory": 2**31, "gpu": 16.0}},
            [
                ["q", "queue students", "GPUs", "0.5", "16", "-"],
                ["q", "queue students", "CPUs", "3", "8", "-"],
                ["q", "queue students", "memory", "1.5 GiB", "2 GiB", "-"],
            ],
        ),
        (
            {
                "group": "interns",
                "runningMax": 10,
                "pendingMax": 50,
                "firstEnds": {**NONE, "running": AT},
            },
            [
                ["q", "group interns", "jobs running", "2", "10", "1970-01-01 00:59"],
                ["q", "group interns", "jobs considered", "-", "50", "-"],
            ],
        ),
        (
            {"user": "ada", "budget": BUDGET},
            [["q", "ada", "GPU-hours in 30d", "320.25", "500", "1970-01-01 00:59"]],
        ),
        (
            {
                "user": "ada",
                "budget": BUDGET
                | {"gpuHours": 0.05, "spentGpuHours": 0.0042, "reservedGpuHours": 0.0},
            },
            [["q", "ada", "GPU-hours in 30d", "0.0042", "0.05", "1970-01-01 00:59"]],
        ),
        (
            {
                "pool": "h200",
                "running": None,
                "limit": {**NONE, "gpu": 6.0},
                "used": {**NONE, "gpu": 0.0},
            },
            [["q", "pool h200", "GPUs", "0", "6", "-"]],
        ),
    ],
)
@pytest.mark.usefixtures("in_utc")
def test_a_quota_is_a_row_for_each_amount(item: dict[str, Any], rows: list[list[str]]) -> None:
    assert quotas.quota_rows({**QUOTA, **item}) == rows


@pytest.mark.parametrize(
    ("names", "left"),
    [((), ["ada", "bob", "students"]), (("students", "ada"), ["ada", "students"])],
)
def test_quotas_are_narrowed_by_name(names: tuple[str, ...], left: list[str]) -> None:
    items = [{"name": name} for name in ("ada", "bob", "students")]
    assert [one["name"] for one in quotas.select(items, names)] == left


def test_a_quota_that_is_not_known_is_told_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(typer.Exit) as left:
        quotas.select([{"name": "students"}], ["students", "student"])
    assert left.value.exit_code == 1
    assert "there is no Quota/student; did you mean students?" in capsys.readouterr().err


def test_where_there_are_no_quotas_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    quotas.show([], wide=False)
    assert capsys.readouterr() == ("", "no quotas\n")
    quotas.show([{**QUOTA, "user": "ada", "runningMax": 3}], wide=False)
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told] == ["NAME", "q"]
