"""Elements of arrays by the names that plans and reasons give them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pytest
import typer

from reconciler.cli import array_elements
from reconciler.cli.changes import job_verbs
from reconciler.cli.cluster import inspect_commands
from reconciler.cli.jobs import explain, jobs_command, plot, show, wait

if TYPE_CHECKING:
    from reconciler.operations.client import api_client


def attempt(element: int, number: int, state: str, node: str) -> dict[str, object]:
    return {"element": element, "attempt": number, "state": state, "node": node, "task": "main-0"}


HOG: dict[str, Any] = {
    "name": "hog",
    "state": "Running",
    "array": True,
    "elements": {"Running": 2, "Pending": 2},
    "place": None,
    "estimatedStart": None,
    "attempts": [
        attempt(0, 1, "Running", "n1"),
        attempt(1, 1, "Ended", "n1"),
        attempt(1, 2, "Running", "n2"),
        attempt(2, 1, "Ended", "n3"),
    ],
}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("hog", ("hog", None)),
        ("hog[2]", ("hog", 2)),
    ],
)
def test_a_name_means_a_job_or_one_of_its_elements(
    written: str, expected: tuple[str, int | None]
) -> None:
    assert array_elements.parse_name(written) == expected


@pytest.mark.parametrize(
    ("written", "like"),
    [
        ("hog[2", "hog[3]"),
        ("hog2]", "hog2[3]"),
        ("hog[x]", "hog[3]"),
        ("hog[0-3]", "hog[3]"),
        ("[2]", "JOB[3]"),
    ],
)
def test_what_means_no_element_is_answered_with_how_one_is_written(
    written: str, like: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for read in (
        array_elements.parse_name,
        lambda name: array_elements.resolve_element(name, None),
    ):
        with pytest.raises(typer.Exit) as left:
            read(written)
        assert left.value.exit_code == 64
        told = " ".join(capsys.readouterr().err.split())
        assert f"{written} is not an array element; expected a number from 0" in told
        assert f"such as {like}" in told


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        (0, "Element 0: Running on n1 (try 1)."),
        (1, "Element 1: Running on n2 (try 2)."),
        (2, "Element 2: last try (1) ended on n3."),
        (3, "Element 3: waiting."),
    ],
)
def test_what_is_told_of_an_element(
    element: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    explain._explain_job({"job": HOG, "reasons": [], "queue": None}, 0.0, element=element)
    assert expected in capsys.readouterr().out.splitlines()


def test_an_element_without_tries_may_have_ended() -> None:
    job = HOG | {"elements": {"Succeeded": 1, "Running": 2, "Pending": 1}}
    assert (
        array_elements.describe_element(job, 3)
        == "Element 3: no tries recorded. It waits, or ended long ago."
    )


STATES = {"Succeeded": "2", "Cancelled": "3", "Running": "0", "Pending": "1"}


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        (2, "Element 2: Succeeded; last try (1) ended on n3."),
        (3, "Element 3: Cancelled; no tries recorded."),
    ],
)
def test_an_element_that_has_ended_says_how(element: int, expected: str) -> None:
    job = HOG | {"elements": dict.fromkeys(STATES, 1), "elementIndexes": STATES}
    assert array_elements.describe_element(job, element) == expected


def test_an_element_that_was_not_tried_waits_though_others_have_ended() -> None:
    job = HOG | {"elementIndexes": {"Pending": "3", "Succeeded": "0-2"}}
    assert array_elements.describe_element(job, 3) == "Element 3: waiting."


def _event(kind: str, message: str) -> dict[str, str]:
    return {"kind": kind, "message": message, "at": "2026-11-20T23:30:00Z"}


@pytest.mark.usefixtures("in_utc")
@pytest.mark.parametrize(
    ("told", "element", "is_held"),
    [
        ([("JobHoldAsked", "elements 1,3 held by its document")], 3, True),
        ([("JobHoldAsked", "elements 1,3 held by its document")], 0, False),
        ([("JobHoldAsked", "elements 1,2 held by its document")], 2, False),
        (
            [
                ("JobHoldAsked", "elements 1,3 held by its document"),
                ("JobReleased", "its document no longer holds element 3"),
            ],
            3,
            False,
        ),
    ],
)
def test_an_element_that_is_held_says_so(
    told: list[tuple[str, str]], element: int, *, is_held: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    item = {
        "job": HOG | {"elementIndexes": STATES | {"Pending": "1,3", "Cancelled": ""}},
        "reasons": [],
        "queue": None,
        "events": [_event(*one) for one in told],
    }
    explain._explain_job(item, 0.0, element=element)
    lines = capsys.readouterr().out.splitlines()
    held = [f"Element {element} is held by its document since 11-20 23:30."]
    assert [one for one in lines if "is held" in one] == (held if is_held else [])
    assert (f"  To fix: run `muster release 'hog[{element}]'`." in lines) is is_held


@pytest.mark.usefixtures("in_utc")
@pytest.mark.parametrize(
    ("element", "told"),
    [
        (0, []),  # runs
        (1, ["InsufficientResources", "BackingOff"]),  # waits, after a try
        (2, []),  # has succeeded
        (3, []),  # was cancelled
        (4, ["InsufficientResources"]),  # waits, and was never tried
        (5, []),  # is held
        (None, ["InsufficientResources", "BackingOff"]),
    ],
)
def test_reasons_of_an_array_are_those_of_elements_that_wait(
    element: int | None, told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ended = attempt(1, 1, "Ended", "n1")
    ended |= {"task": "main-0", "endReason": "Exited", "exitCode": 3, "started": None}
    ended |= {"ended": "2026-11-20T23:31:00Z"}
    tries = [attempt(0, 1, "Running", "n1"), ended]
    states = {"Running": "0", "Pending": "1,4,5", "Succeeded": "2", "Cancelled": "3"}
    job = HOG | {"state": "Running", "elementIndexes": states, "attempts": tries}
    job |= {"elements": {"Running": 1, "Pending": 3, "Succeeded": 1, "Cancelled": 1}}
    reasons = [
        {"code": "BackingOff", "message": "element 1 failed; its next try is at 23:40"},
        {"code": "InsufficientResources", "message": "8 GPUs asked"},
    ]
    events = [
        _event("JobHoldAsked", "element 5 held by its document"),
        _event("JobPlaced", "element 0, try 1: 1 task on n1"),
    ]
    item = {"job": job, "reasons": reasons, "queue": None, "events": events}
    explain._explain_job(item, 0.0, element=element)
    lines = capsys.readouterr().out.splitlines()
    shown = [code for code in ("InsufficientResources", "BackingOff") if f"{code}: " in str(lines)]
    assert shown == told
    assert ("Waiting elements:" in lines) is bool(told)
    assert any("try 1: 1 task on n1" in line for line in lines) is (element in {0, None})


@pytest.mark.usefixtures("in_utc")
def test_the_end_of_an_element_is_told_without_that_of_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ends = {0: ("Exited", 3), 1: ("Exited", 0), 2: ("Cancelled", None)}
    tries = [
        attempt(element, 1, "Ended", "n1")
        | {
            "task": "main-0",
            "endReason": reason,
            "exitCode": code,
            "started": "2026-11-20T23:30:00Z",
            "ended": "2026-11-20T23:31:00Z",
        }
        for element, (reason, code) in ends.items()
    ]
    states = {"Failed": "0", "Succeeded": "1", "Cancelled": "2"}
    job = HOG | {"state": "Failed", "elementIndexes": states, "attempts": tries}
    job |= {"elements": dict.fromkeys(states, 1), "message": "task main-0 of element 0 failed"}
    job |= {"submitted": None, "started": None, "ended": None}
    placed = [_event("JobPlaced", f"element {element}, try 1: 1 task on n1") for element in ends]
    item = {"job": job, "reasons": [], "queue": None, "events": placed}
    told = {}
    for element in ends:
        explain._explain_job(item, 0.0, element=element)
        told[element] = capsys.readouterr().out
    for element, text in told.items():
        assert [other for other in ends if f"element {other}, try 1" in text] == [element]
        assert [other for other in ends if f"[{other}] main-0" in text] == [element]
    assert "of element 0 failed" not in told[1]
    assert "Output:" not in told[1]
    assert "Output: muster logs hog --task main-0 --element 0 --stderr" in told[0]


@pytest.mark.parametrize(
    ("job", "element", "expected"),
    [
        (HOG, 4, "hog has no element 4; its 4 elements count from 0"),
        (HOG | {"array": False}, 0, "hog is not an array, so it has no element 0"),
    ],
)
def test_an_element_that_is_not_there(
    job: dict[str, object],
    element: int,
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    array_elements.require_element(HOG, 3)
    array_elements.require_element(HOG | {"run": 0, "array": False, "elements": {}}, 3)
    with pytest.raises(typer.Exit):
        array_elements.require_element(job, element)
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "option", "expected"),
    [
        ("hog", None, ("hog", None)),
        ("hog", 3, ("hog", 3)),
        ("hog[2]", None, ("hog", 2)),
        ("hog[2]", 2, ("hog", 2)),
    ],
)
def test_a_name_and_an_option_mean_one_element(
    written: str, option: int | None, expected: tuple[str, int | None]
) -> None:
    assert array_elements.resolve_element(written, option) == expected


def test_two_elements_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left:
        array_elements.resolve_element("hog[2]", 3)
    assert left.value.exit_code == 64
    assert "hog[2] and --element 3 name different elements" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("hog", ("hog", "")),
        ("hog[2]", ("hog", "2")),
        ("hog[7,1-3]", ("hog", "1-3,7")),
        ("hog[0-8:2]", ("hog", "0-8:2")),
    ],
)
def test_a_name_means_a_job_or_some_of_its_elements(
    written: str, expected: tuple[str, str]
) -> None:
    assert array_elements.parse_set(written) == expected


@pytest.mark.parametrize("written", ["hog[", "hog[x]", "hog[3-1]", "hog[]", "[3]", "ho*[3]"])
def test_what_means_no_elements_is_wrong_usage(
    written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as left:
        job_verbs.cancel([written])
    assert left.value.exit_code == 64
    assert written in capsys.readouterr().err


def test_a_job_and_elements_of_it_are_not_named_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(typer.Exit) as left:
        job_verbs.hold(["hog[1]", "hog"])
    assert left.value.exit_code == 64
    assert "hog is named as a whole and by elements" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("command", "call"),
    [
        ("wait", wait.wait),
        ("jobs", jobs_command.jobs),
    ],
)
def test_what_takes_whole_jobs_says_what_to_write(
    command: str, call: Callable[[list[str]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as left:
        call(["train", "hog[2]"])
    assert left.value.exit_code == 64
    told = " ".join(capsys.readouterr().err.split())
    assert f"hog[2] is one element of an array; muster {command} takes whole jobs" in told
    assert f"muster {command} hog" in told


@pytest.mark.parametrize(
    ("written", "what"),
    [("hog[2]", "is one element"), ("hog[x]", "names elements"), ("hog[0-3]", "names elements")],
)
def test_events_of_an_element_are_those_of_its_job(
    written: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as left:
        inspect_commands.events(written)
    assert left.value.exit_code == 64
    told = " ".join(capsys.readouterr().err.split())
    assert f"{written} {what} of an array; muster events takes whole jobs" in told
    assert "muster events --job hog" in told


class Api:
    """What the controller says of one job, which has written nothing."""

    def __init__(self, job: dict[str, object]) -> None:
        self.job = job

    def get(self, path: str, **query: object) -> dict[str, object]:
        return {"job": self.job}

    def stream(self, path: str, query: dict[str, str]) -> list[bytes]:
        return []


@pytest.mark.parametrize(
    ("job", "element", "expected"),
    [
        (HOG | {"array": False}, "0", "hog is not an array, so it has no element 0"),
        (HOG, "4", "hog has no element 4; its 4 elements count from 0"),
    ],
)
def test_a_plot_of_an_element_that_is_not_there(
    job: dict[str, object], element: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api = cast("api_client.ApiClient", Api(job))
    with pytest.raises(typer.Exit):
        plot.written(api, "hog", {"element": element})
    assert expected in capsys.readouterr().err
    assert not plot.written(api, "hog", {}).curves


def _whole(**more: object) -> dict[str, Any]:
    tries = [
        {**one, "phase": None, "devices": [], "started": None, "ended": None, "asked": {}, **more}
        for one in HOG["attempts"]
    ]
    return {**HOG, "attempts": tries, "run": 1, "queue": "q"}


@pytest.mark.usefixtures("in_utc")
def test_a_job_shows_the_tries_of_the_element_alone(capsys: pytest.CaptureFixture[str]) -> None:
    whole = _whole()
    show.show_job(whole, [], 1)
    told = capsys.readouterr().out
    assert "Element   Element 1: Running on n2 (try 2)." in told
    assert told.count("[1] main-0") >= 2
    assert "[0] main-0" not in told
    show.show_job(whole, [])
    assert "[0] main-0" in capsys.readouterr().out


@pytest.mark.usefixtures("in_utc")
def test_what_the_end_of_a_try_says_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    said = "no checkpoint was written within the grace"
    show.show_job(_whole(state="Ended", endReason="Preempted", message=said), [])
    assert f"[0] main-0, try 1: Preempted, {said}" in capsys.readouterr().out
    show.show_job(_whole(state="Ended", endReason="Preempted", message=""), [])
    assert "Preempted, " not in capsys.readouterr().out
