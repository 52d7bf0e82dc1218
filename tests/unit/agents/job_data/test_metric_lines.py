"""What lines of metrics say, whatever a task writes."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.job_data import metric_lines
from reconciler.model.observed import task_reports

NOW = 1_700_000_000.0


def words(*lines: str) -> metric_lines.ParsedMetrics:
    made = metric_lines.ParsedMetrics("a.1")
    for line in lines:
        made.take(line.encode(), NOW)
    return made


@pytest.mark.parametrize(
    ("line", "series"),
    [
        ('{"loss": 0.5}', {"loss": (0.5, None, NOW)}),
        ('{"loss": 2, "step": 7, "time": 1600000000}', {"loss": (2.0, 7.0, 1.6e9)}),
        ('{"train/loss": 1e-3, "time": 99999999999}', {"train/loss": (0.001, None, NOW)}),
        ('{"loss": Infinity}', {"loss": (math.inf, None, NOW)}),
        ("loss 0.25", {"loss": (0.25, None, NOW)}),
        ("# HELP loss of it", {}),
        ("  ", {}),
        ('up{job="a b",x="}"} 1 1600000000000', {'up{job="a b",x="}"}': (1.0, None, 1.6e9)}),
        ("rate +Inf", {"rate": (math.inf, None, NOW)}),
    ],
)
def test_a_line_says(line: str, series: dict[str, tuple[float, float | None, float]]) -> None:
    told = words(line).told()
    assert {m.name: (m.value, m.step, m.at) for m in told.metrics} == series
    assert told.bad_lines == 0


@pytest.mark.parametrize(
    ("line", "series", "problem"),
    [
        ("hello", 0, "line 1: neither JSON nor Prometheus' text: 'hello'"),
        ('{"loss": 0.5', 0, "line 1: no JSON"),
        ('{"loss": "high", "lr": 1}', 1, "line 1: 'loss': found 'high', expected a number"),
        ('{"loss": true}', 0, "line 1: 'loss': found 'True', expected a number"),
        ('{"\\u0000": 1}', 0, "can't be the name of a series"),
        ("loss much", 0, "line 1: loss: found 'much', expected a number"),
        ("x" * 200 + " 1", 0, "is longer than 100"),
        ('{"a": 1}' + " " * metric_lines.LINE_BYTES_MAX, 0, "longer than 16384 bytes"),
        ('{"checkpoint": "../etc/passwd"}', 0, "expected a path below MUSTER_CHECKPOINT_DIR"),
        ('{"checkpoint": "."}', 0, "expected a path below MUSTER_CHECKPOINT_DIR"),
        ('{"checkpoint": "./."}', 0, "expected a path below MUSTER_CHECKPOINT_DIR"),
        ('{"checkpoint": 5}', 0, "expected a path below MUSTER_CHECKPOINT_DIR"),
    ],
)
def test_what_is_not_understood_is_counted_and_named(line: str, series: int, problem: str) -> None:
    told = words(line).told()
    assert len(told.metrics) == series
    assert told.bad_lines == 1
    assert problem in told.problem


def test_series_are_bounded_and_the_known_go_on() -> None:
    most = task_reports.SERIES_MAX
    made = words(*(f"m{number} 1" for number in range(most + 5)), "m0 2")
    told = made.told()
    assert len(told.metrics) == most
    assert told.bad_lines == 5
    assert made.newest["m0"].value == 2.0


def test_a_line_with_several_faults_is_one_bad_line() -> None:
    assert words('{"a": "x", "b": "y"}').bad_lines == 1


def test_a_task_names_its_checkpoint() -> None:
    saved = words('{"checkpoint": "run/step-5", "step": 5, "time": 1600000000}').checkpoint
    assert saved == task_reports.Saved("run/step-5", 1.6e9, 5.0)


@given(st.binary(max_size=300))
def test_nothing_is_ever_raised(line: bytes) -> None:
    made = metric_lines.ParsedMetrics("a.1")
    made.take(line, NOW)
    made.take(b"{" + line, NOW)
    told = made.told()
    assert told.bad_lines <= told.lines <= 2
    assert len(told.problem) <= task_reports.PROBLEM_CHARACTERS_MAX


@pytest.mark.parametrize(
    "line",
    [
        '{"\\ud800": "x"}',
        '{"\\ud800": 1}',
        '{"a": "\\ud800"}',
        '{"checkpoint": "\\ud800"}',
        'a{b="\x1b[2J"} 1',
        "\x1b[2J much",
        '{"\\ud800',
    ],
)
def test_whatever_is_told_can_be_sent_and_shown(line: str) -> None:
    told = words(line).told()
    assert told.bad_lines == 1
    assert told.problem.isprintable()
    assert msgspec.msgpack.encode(told)


@pytest.mark.parametrize("step", ["NaN", "Infinity", "-Infinity"])
def test_a_step_is_a_number(step: str) -> None:
    made = words(f'{{"step": {step}, "loss": 1, "checkpoint": "c"}}')
    assert made.newest["loss"].step is None
    assert made.checkpoint is not None
    assert made.checkpoint.step is None


@pytest.mark.parametrize("name", ["time", "step"])
def test_no_series_has_the_name_of_a_column(name: str) -> None:
    told = words(f"{name} 5").told()
    assert (told.metrics, told.bad_lines) == ((), 1)


def test_of_series_of_one_name_the_first_stays() -> None:
    one, two = task_reports.Metric("a", 1.0, NOW), task_reports.Metric("a", 2.0, NOW)
    bad = task_reports.Metric("b\n", 2.0, NOW)
    told = task_reports.TaskMetrics("x", (one, two, bad), problem="\x1b[2J")
    kept = task_reports.bounded(told)
    assert kept.metrics == (one,)
    assert kept.problem == "\\x1b[2J"
