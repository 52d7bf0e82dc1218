"""The table of jobs."""

from typing import Any

import pytest

from reconciler.cli import array_elements, reason_order
from reconciler.cli.jobs import job_list


@pytest.mark.parametrize(
    ("code", "state"), [("Invalid", "Invalid"), ("NotAllowed", "Pending"), ("Held", "Pending")]
)
def test_a_job_that_is_refused_as_written_is_shown_as_invalid(
    code: str, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = {"code": code, "message": "m", "never": True}
    job: dict[str, Any] = {
        "name": "w",
        "queue": None,
        "state": "Pending",
        "reasons": [reason],
        "array": False,
    }
    job |= {"submitted": None, "started": None, "ended": None, "attempts": [], "elements": {}}
    job_list.show([job], 0.0, wide=False)
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["w", "-", state]


@pytest.mark.parametrize(
    ("state", "running", "code", "shown"),
    [
        ("Running", 0, "Held", "Pending"),  # it waits to be adopted
        ("Running", 1, "Held", "Running"),
        ("Running", 0, "NoFit", "Running"),
        ("Succeeded", 0, "Held", "Succeeded"),
    ],
)
def test_a_gang_of_which_nothing_runs_and_that_has_to_be_adopted_waits(
    state: str, running: int, code: str, shown: str
) -> None:
    tasks = {"running": running, "min": 1, "max": 3}
    reasons = [{"code": code, "message": "m", "never": False}]
    assert reason_order.state_text({"state": state, "tasks": tasks}, reasons) == shown


def _try(number: int, started: int | None, ended: int | None) -> dict[str, Any]:
    def clock(second: int | None) -> str | None:
        return None if second is None else f"1970-01-01T00:00:{second:02}Z"

    state = "Running" if ended is None else "Ended"
    return {
        "attempt": number, "state": state, "started": clock(started), "ended": clock(ended)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("state", "tries", "expected"),
    [
        ("Pending", [], "50s"),
        ("Running", [_try(1, 12, None)], "2.0s"),
        ("Pending", [_try(1, 12, 30)], "20s"),
        ("Running", [_try(1, 12, 30), _try(2, 37, None)], "7.0s"),
        ("Running", [_try(1, 12, 30), _try(2, None, None)], "20s"),
        ("Succeeded", [_try(1, 12, 30), _try(2, 37, 40)], "9.0s"),
        ("Succeeded", [_try(1, 10, 30), _try(2, None, 31), _try(3, 37, 40)], "7.0s"),
        ("Pending", [_try(1, 10, 30), _try(2, 30, 31)], "19s"),
        # a task of a gang that goes on, or that still stops, has left no wait behind
        ("Running", [_try(1, 12, None), _try(1, 12, 30), _try(2, 37, None)], "2.0s"),
        ("Running", [_try(1, 12, None), _try(1, 12, 30)], "2.0s"),
        # of more tries than are listed: whether the others have ended is not known
        ("Running", [_try(1, 12, 30)] * 16, "2.0s"),
        ("Pending", [_try(1, 12, 30)] * 16, "<=38s"),
    ],
)
def test_the_wait_of_what_was_evicted_is_that_since_then(
    state: str, tries: list[dict[str, Any]], expected: str
) -> None:
    began = "1970-01-01T00:00:12Z" if tries else None
    job = {"state": state, "array": False, "attempts": tries, "started": began}
    job |= {"submitted": "1970-01-01T00:00:10Z", "ended": None}
    now = 60.0 if not tries else 50.0
    assert job_list._waited(job, now) == expected


def test_waits_are_not_summed_if_not_all_tries_are_known() -> None:
    tries = [_try(1, 12, 30), *[_try(2, 37, 40)] * (job_list.TRIES_OF_JOB - 1)]
    job = {"state": "Pending", "array": False, "submitted": "1970-01-01T00:00:10Z"}
    assert job_list.waits_text(job | {"attempts": tries}, 60.0) == ""
    assert job_list.waits_text(job | {"attempts": tries[:-1]}, 60.0) != ""


def _sweep(name: str, queue: str) -> dict[str, Any]:
    reason = {"code": "InsufficientResources", "message": "1 CPU asked, none free", "never": False}
    return {
        "name": name, "queue": queue, "state": "Pending", "reasons": [reason], "array": True,
        "elements": {"Succeeded": 5, "Failed": 1, "Pending": 1}, "attempts": [], "run": 1,
        "submitted": "1970-01-01T00:00:00Z", "started": None, "ended": None, "path": "a.yaml",
        "estimatedStart": "1970-01-02T00:00:00Z", "estimatedCertain": False,
    }  # fmt: skip


@pytest.mark.parametrize("queues", [("default", "default"), ("default", "research")])
def test_names_are_told_apart_in_a_line_of_80_columns(
    queues: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ("hostname-3fa81c", "hostname-77b0d2")
    job_list.show([_sweep(*one) for one in zip(names, queues, strict=True)], 60.0, wide=False)
    said = capsys.readouterr()
    for name in names:
        assert name in said.out
    headings = said.out.splitlines()[0].split()
    assert ("QUEUE" in headings) is (len(set(queues)) > 1)
    assert ("muster jobs -o wide" in said.err) is ("START" not in headings)
    assert all(len(line) <= 80 for line in said.out.splitlines())


@pytest.mark.parametrize(
    ("columns", "cell"), [("80", "5/9"), ("120", "5/9, 1 failed, 2 cancelled")]
)
def test_ends_of_elements_are_whole_words_in_any_line(
    columns: str, cell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    job = _sweep("hostname-3fa81c", "default")
    job |= {"elements": {"Succeeded": 5, "Failed": 1, "Cancelled": 2, "Running": 1}, "reasons": []}
    job_list.show([job | {"state": "Running", "estimatedStart": None}], 60.0, wide=False)
    shown = capsys.readouterr().out
    assert f" {cell} " in shown
    assert "1 failed, 2 cancelled" in shown
    assert "…" not in shown


def test_the_whole_of_an_array_that_ran_again_in_part_is_counted() -> None:
    job = {"array": True, "elements": {"Succeeded": 1}, "wholeElements": {"Succeeded": 6}}
    assert array_elements.done_words(job) == ["6/6"]
    assert array_elements.done_words(job | {"wholeElements": {}}) == ["1/1"]


@pytest.mark.parametrize(
    ("state", "tries", "expected"),
    [
        ("Pending", [], ""),
        ("Running", [_try(1, 12, None)], ""),
        (
            "Pending",
            [_try(1, 12, 30), _try(2, 37, 40)],
            "20s since the end of the last try, 29s in 3 waits",
        ),
        (
            "Running",
            [_try(1, 12, 30), _try(2, 37, None)],
            "7.0s since the end of the last try, 9.0s in 2 waits",
        ),
    ],
)
def test_all_waits_of_a_job_are_summed(
    state: str, tries: list[dict[str, Any]], expected: str
) -> None:
    job = {"state": state, "array": False, "attempts": tries}
    assert job_list.waits_text(job | {"submitted": "1970-01-01T00:00:10Z"}, 60.0) == expected


def test_an_estimate_that_has_passed_is_no_time() -> None:
    job = {"state": "Pending", "estimatedStart": "1970-01-01T00:01:00Z", "estimatedCertain": True}
    assert job_list._start(job, 61.0) == "any moment"
    assert job_list._start(job, 59.0) == "1970-01-01 00:01"
