"""One event, one line, whatever stands in it."""

import io
import json
import logging
import sys
import time
from collections.abc import Callable

import pytest

from agents import settings, state
from agents.host import operator_log
from agents.logs import event_log
from reconciler import log_format
from reconciler.model.protocol import agent_messages
from reconciler.model.state import events, records, states
from reconciler.model.values import log_lines, resources

NASTY = 'a "b" = c\nlevel=ERROR \x1b[31m\u2028\x9b\u202eend'
FIELDS = {"job": "train", "node": "", "cycle": 7, "revision": None, "path": "a b"}


def test_readable_lines() -> None:
    line = log_lines.line("readable", 0.5, "loop", NASTY, level="INFO", fields=FIELDS)
    assert line == (
        '1970-01-01T00:00:00.500Z INFO    loop: a "b" = c\\nlevel=ERROR '
        '\\x1b[31m\\u2028\\x9b\\u202eend job=train cycle=7 path="a b"'
    )


def test_json_lines() -> None:
    line = log_lines.line("json", 0.5, "loop", NASTY, level="INFO", fields=FIELDS)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.500Z",
        "level": "INFO",
        "source": "loop",
        "job": "train",
        "cycle": 7,
        "path": "a b",
        "message": NASTY,
    }


@pytest.mark.parametrize("form", log_lines.FORMS)
def test_no_value_begins_a_line_of_its_own(form: str) -> None:
    fields = {"job": NASTY, "node": NASTY}
    line = log_lines.line(form, 0.0, "loop", NASTY, level="INFO", fields=fields)
    assert len(line.splitlines()) == 1
    assert not set("\x1b\x9b\u202e") & set(line)


def _record(message: str, **extra: object) -> logging.LogRecord:
    record = logging.getLogger("muster.test").makeRecord(
        "muster.test", logging.WARNING, __file__, 1, message, (), None, extra=extra
    )
    record.created = 0.0
    return record


def test_records_of_loggers_carry_their_fields() -> None:
    lines = log_format.ReadableFormatter("readable", "loop")
    assert lines.format(_record("can't read", revision="abc", other="x")) == (
        "1970-01-01T00:00:00.000Z WARNING loop: can't read revision=abc"
    )


def test_an_exception_stays_on_its_line() -> None:
    record = _record("failed")
    try:
        int("first\nsecond")
    except ValueError:
        record.exc_info = sys.exc_info()
    told = json.loads(log_format.ReadableFormatter("json", "loop").format(record))
    assert "ValueError: invalid literal" in told["exception"].splitlines()[-1]
    assert len(log_format.ReadableFormatter("readable", "loop").format(record).splitlines()) == 1


def test_events_of_a_cycle_are_lines() -> None:
    stream = io.StringIO()
    lines = log_format.EventLines("json", "loop", stream)
    happened = [
        events.Event(1.0, "JobPlaced", "try 1: 2 tasks on n1", job="train"),
        events.Event(1.0, "NodeReady", "", node="n1"),
    ]
    lines.write(happened, cycle=4, revision="abc")
    lines.write([], cycle=5, revision="abc")
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(one["event"], one["cycle"], one["revision"]) for one in told] == [
        ("JobPlaced", 4, "abc"),
        ("NodeReady", 4, "abc"),
    ]
    assert (told[0]["job"], told[1]["node"]) == ("train", "n1")
    said = ["try 1: 2 tasks on n1", events.SENTENCES["NodeReady"]]
    assert [one["message"] for one in told] == said


def test_a_stream_that_is_gone_costs_nothing() -> None:
    stream = io.StringIO()
    stream.close()
    event = events.Event(1.0, "NodeReady", "", node="n1")
    log_format.EventLines("readable", "loop", stream).write([event], cycle=1, revision="")


@pytest.mark.parametrize(("level", "written"), [("info", True), ("warning", False)])
def test_levels(level: str, written: bool, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    try:
        lines = log_format.configure("readable", level, "server")
        assert (lines is not None) is written
        logging.getLogger("muster.test").info("heard")
        assert ("server: heard" in capsys.readouterr().err) is written
    finally:
        root.handlers[:] = before[1]
        root.setLevel(before[0])


@pytest.mark.parametrize("form", log_lines.FORMS)
def test_agents_speak_in_the_same_form(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    operator_log.Console("gpu001", form).say("no controller")
    line = capsys.readouterr().err
    if form == "json":
        assert json.loads(line)["node"] == "gpu001"
    else:
        assert line.endswith(" WARNING agent: no controller node=gpu001\n")


def _agent(
    level: str = "info", clock: Callable[[], float] = time.monotonic
) -> tuple[event_log.EventLog, state.AgentState]:
    given = settings.parse(
        ["--server", "http://c:7420", "--name", "gpu001", "--root", "/var/muster"]
    )
    says = operator_log.Console("gpu001", "json", level)
    return event_log.EventLog(given, says, clock), state.AgentState("boot")


def _told(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    lines = map(json.loads, capsys.readouterr().err.splitlines())
    return [(line["level"], line["message"]) for line in lines]


def test_an_agent_says_who_it_is_and_what_it_offers(capsys: pytest.CaptureFixture[str]) -> None:
    tells, _ = _agent()
    gpus = tuple(records.Gpu(i, f"GPU-{i}", "NVIDIA H200", 2**37) for i in range(8))
    has = resources.Resources(64_000, 512 * 2**30, 8000)
    tells.begins(records.Inventory(capacity=has, gpus=gpus, agent_version="1.0"))
    ((level, message),) = _told(capsys)
    assert level == "INFO"
    assert message.startswith("agent 1.0 starts in /var/muster, ")
    assert message.endswith("at http://c:7420; it offers 64 CPUs, 512Gi, 8 NVIDIA H200")


def test_an_agent_says_when_its_session_begins_breaks_and_is_taken_up_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [100.0]
    tells, _ = _agent(clock=lambda: now[0])
    for _ in range(3):
        tells.reached(4)
    now[0] += 30  # an answer that was waited for, and never came
    assert _told(capsys) == [("INFO", "registered with the controller of epoch 4")]
    for _ in range(3):
        tells.unreached(OSError("refused"), 2)
    (level, message), again = _told(capsys)
    assert (level, again) == ("WARNING", ("WARNING", "refused"))
    assert message.startswith("no connection to the controller: refused; 2 tasks keep running")
    now[0] += 12
    tells.reached(4)
    tells.reached(4)
    tells.reached(5)
    (_, message), newer = _told(capsys)
    assert message.startswith("connected to the controller again after 42 s; its epoch is ")
    assert newer == ("INFO", "the controller of epoch 5 leads now, after epoch 4")


def test_an_agent_says_once_that_a_task_starts_and_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tells, node = _agent()
    node.assignments = {"a": agent_messages.Assignment("a", "t", "boot", devices=(0, 3))}
    node.templates = {"t": agent_messages.TaskTemplate("train", 1, "main")}
    runs = records.AttemptReport("a", states.AttemptState.RUNNING, started_at=100.0)
    ends = records.AttemptReport(
        "a", states.AttemptState.ENDED, started_at=100.0, ended_at=160.0, exit_code=3,
        end_reason=states.EndReason.EXITED,
    )  # fmt: skip
    for report in (runs, runs, ends, ends):
        tells.heard([report], node)
        node.attempts_changed([report])
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == [
        "task started on GPUs 0,3",
        "task ended: Exited, exit code 3, after 60.0 s",
    ]
    assert {(line["job"], line["attempt"], line["node"]) for line in lines} == {
        ("train", "a", "gpu001")
    }


def test_what_an_agent_says_is_as_bad_as_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    tells, _ = _agent("warning")
    tells.reached(1)
    tells.unreached(OSError("refused"), 1)
    assert [level for level, _ in _told(capsys)] == ["WARNING"]
