"""``muster logs`` of several tasks: whole lines under their names, side by side or in order."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
import typer

from reconciler.cli.logs import all_tasks, logs_command, prefixed_lines
from reconciler.core.jobs import takeover
from reconciler.operations.client import api_client


class Api:
    """A controller's answers: attempts of one job, and what its tasks wrote."""

    def __init__(
        self, written: Mapping[str, list[bytes]], state: str = "Running", message: str = ""
    ) -> None:
        self.written = written
        self.message = message
        self.state = state
        self.asked: list[Mapping[str, str]] = []
        #: While two tasks are followed each waits for the other to have been asked for too.
        self.together = threading.Barrier(len(written) or 1)

    def get(self, path: str, **query: Any) -> Any:
        assert path == "/v1/jobs/train"
        attempts = [
            {"task": task, "attempt": 1, "element": None} for task in (*self.written, *self.written)
        ]
        job = {"attempts": attempts, "state": self.state, "message": self.message, "array": None}
        return {"job": job}

    def stream(self, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        self.asked.append(query)
        if query["follow"] == "true":
            self.together.wait(60)
        yield from self.written[query["task"]]


def shown(
    api: Api, capfdbinary: pytest.CaptureFixture[bytes], **query: str
) -> tuple[list[bytes], str]:
    logs_command._show_all(
        cast("api_client.ApiClient", api), "train", {"follow": "false", "stream": "stdout"} | query
    )
    out, err = capfdbinary.readouterr()
    return out.splitlines(), err.decode()


def test_tasks_are_shown_in_the_order_of_their_numbers(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    api = Api({"main-10": [b"c\n"], "main-2": [b"a", b"\nb"], "head-0": [b"\xff\n"]})
    assert shown(api, capfdbinary)[0] == [
        b"head-0  | \xff",
        b"main-2  | a",
        b"main-2  | b",
        b"main-10 | c",
    ]


def test_tasks_that_are_followed_are_read_at_the_same_time(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    many = [b"x" * 50 + b"\n"] * 200
    lines, _ = shown(Api({"main-0": many, "main-1": many}, "Succeeded"), capfdbinary, follow="true")
    assert sorted(lines) == [b"main-0 | " + b"x" * 50] * 200 + [b"main-1 | " + b"x" * 50] * 200


def test_the_first_of_many_tasks_are_shown_and_the_rest_is_said(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    api = Api({f"main-{number}": [b"x\n"] for number in range(all_tasks.TASKS_MAX + 6)})
    lines, err = shown(api, capfdbinary)
    assert len(lines) == all_tasks.TASKS_MAX
    assert "showing the first 64 of 70 tasks of job train" in " ".join(err.split())


def test_of_a_job_that_nobody_adopted_it_is_not_known_if_it_ran(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Its attempts are lost with the store, not its output."""
    api = Api({}, "Cancelled", message=takeover.DECLARED_OVER)
    with pytest.raises(typer.Exit) as left:
        shown(api, capfdbinary, follow="false")
    assert left.value.exit_code == 1
    told = " ".join(capfdbinary.readouterr().err.decode().split())
    assert "it is not known if train ever started, so no output of it is known: Cancelled" in told
    assert "never started" not in told


WIDELY = {"every": "true", "widely": "true"}


def test_a_job_that_was_never_started_says_so(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    told = "train never started, so there is no output: Cancelled"
    for follow in ("false", "true"):
        with pytest.raises(typer.Exit) as left:
            shown(Api({}, "Cancelled"), capfdbinary, follow=follow)
        assert left.value.exit_code == 1
        assert told in capfdbinary.readouterr().err.decode()


@pytest.mark.parametrize(
    ("said", "more"), [*zip(logs_command.UNSTARTED, ({}, WIDELY), strict=True)]
)
def test_what_waits_says_why_it_has_no_output(
    said: bytes, more: dict[str, str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    api = Waiting({"": [said + b"train was made yet\n"]}, "Pending")
    query = {"follow": "false", "stream": "stdout", "task": "", **more}
    with pytest.raises(typer.Exit) as left:
        logs_command._show(cast("api_client.ApiClient", api), "train", query)
    assert left.value.exit_code == 1
    out, err = capfdbinary.readouterr()
    assert out == b""
    assert "train has not started, so there is no output: NeverFits: too large" in err.decode()


class Waiting(Api):
    """A job that nothing was started of."""

    def get(self, path: str, **query: Any) -> Any:
        reasons = [{"code": "NeverFits", "message": "too large"}]
        return {"job": {"attempts": [], "state": self.state, "reasons": reasons}}


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], []),
        ([b"a\nb"], [b"a", b"b"]),
        ([b"a", b"", b"b\n", b"\n"], [b"ab", b""]),
        ([b"\r1/3", b"\r2/3\n"], [b"\r1/3\r2/3"]),
    ],
)
def test_lines_are_put_together(pieces: list[bytes], expected: list[bytes]) -> None:
    assert list(prefixed_lines.lines(pieces)) == [(text, False) for text in expected]


def test_the_rest_of_a_long_line_is_marked() -> None:
    most = prefixed_lines.LINE_BYTES_MAX
    pieces = [b"x" * (most + 1), b"y\nz\n"]
    expected = [(b"x" * most, False), (b"xy", True), (b"z", False)]
    assert list(prefixed_lines.lines(pieces)) == expected


@pytest.mark.parametrize("form", ["\r{}/24", "{}/24\r"])
def test_a_progress_bar_moves_before_its_line_ends(form: str) -> None:
    moments = iter([0.5 * number for number in range(200)])
    pieces = [form.format(number).encode() for number in range(1, 25)]
    shown = prefixed_lines.lines([*pieces, b"\n", b"done\n"], lambda: next(moments))
    states = [line.text.decode() for line in shown]
    assert states[0] == "1/24"
    assert states[-2:] == ["24/24", "done"]
    assert 5 < len(states) < 24, "some at a time"


class Retried(Api):
    """A job whose second try never started."""

    def get(self, path: str, **query: Any) -> Any:
        attempts = [{"task": "main-0", "attempt": number} for number in (1, 2, 3)]
        return {"job": {"attempts": attempts, "state": "Pending"}}

    def stream(self, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        yield from self.written[query.get("attempt", "3")]


@pytest.mark.parametrize("kept", [True, False])
def test_the_newest_try_that_has_output_is_shown(
    capfdbinary: pytest.CaptureFixture[bytes], *, kept: bool
) -> None:
    none = b"muster: node n0 keeps no stdout of this try\n"
    api = Retried({"3": [none], "2": [none], "1": [b"a\n", b"b\n"] if kept else [none]})
    query = {"follow": "false", "stream": "stdout"}
    logs_command._show(cast("api_client.ApiClient", api), "train", query)
    out, err = capfdbinary.readouterr()
    assert out == (b"a\nb\n" if kept else none)
    assert (b"try 3 has no stdout; showing try 1" in err) == kept


def test_a_gang_that_runs_is_shown_from_its_first_task(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Outside of arrays no attempt has an element."""
    api = Api({"main-0": [b"a\n"], "main-1": [b"b\n"]})
    query = {"follow": "false", "stream": "stdout"}
    found = logs_command._of_failed(cast("api_client.ApiClient", api), "train", query)
    assert found == query
    assert capfdbinary.readouterr().err == b""
