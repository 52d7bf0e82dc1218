"""Curves from lines, and how they look."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.operations.reports import job_plots

RISING = [(float(x), float(x)) for x in range(40)]


def test_rows_become_curves_and_the_rest_remarks() -> None:
    lines = [
        b"muster: try 1 on n1",
        b'{"time": 10, "step": 1, "loss": 3}',
        b'{"time": 12, "step": 2, "loss": NaN, "lr": 0.1}',
        b'{"time": 13, "st',
        b"[1]",
        b"muster: try 2 on n2",
        b'{"time": 20, "step": 2, "loss": 2}',
    ]
    past = job_plots.read(lines)
    assert [curve.name for curve in past.curves] == ["loss", "lr"]
    loss = past.curves[0]
    assert loss.along("step") == [(1.0, 3.0), (2.0, 2.0)]
    assert loss.along("time") == [(0.0, 3.0), (10.0, 2.0)]
    assert past.remarks == ("try 1 on n1", "try 2 on n2")


def test_points_of_a_curve_are_bounded() -> None:
    count = 3 * job_plots.POINTS_MAX
    lines = (json.dumps({"time": n, "loss": n}).encode() for n in range(count))
    points = job_plots.read(lines).curves[0].points
    assert len(points) <= job_plots.POINTS_MAX
    assert points[0][2] == 0
    assert points[-1][2] >= count - 2


@given(
    st.lists(
        st.tuples(
            st.floats(allow_nan=False, allow_infinity=False),
            st.floats(allow_nan=False, allow_infinity=False),
        ),
        min_size=1,
        max_size=50,
    ),
    st.integers(20, 120),
    st.integers(3, 20),
)
def test_a_picture_keeps_to_its_size(
    points: list[tuple[float, float]], width: int, height: int
) -> None:
    lines = job_plots.draw(points, width=width, height=height)
    assert len(lines) == height + 2
    assert max(map(len, lines)) <= max(width, 40)


def test_a_line_that_rises_looks_so() -> None:
    lines = job_plots.draw(RISING, width=30, height=6)
    filled = [line.partition("┤")[2] for line in lines[:6]]
    starts = [len(line) - len(line.lstrip()) for line in filled]
    assert starts == sorted(starts, reverse=True)
    assert lines[0].split("┤")[0].split() == ["39"]
    assert lines[5].split("┤")[0].split() == ["0"]
    assert lines[-1].split() == ["0", "39"]


def test_one_point_and_flat_lines_are_drawn() -> None:
    for points in ([(1.0, 5.0)], [(1.0, 5.0), (2.0, 5.0)]):
        lines = job_plots.draw(points, width=40, height=5)
        assert any(ord(c) > job_plots._BLANK for line in lines[:5] for c in line)
    assert not math.isnan(job_plots._part(1, 1, 1))


@pytest.mark.parametrize("step", ["NaN", "Infinity", "1e308", "-1e308", "1" + "0" * 400])
def test_no_step_breaks_the_picture(step: str) -> None:
    lines = [f'{{"time": {n}, "step": {s}, "loss": {v}}}'.encode()
             for n, s, v in ((1, 1, 1), (2, step, 1e308), (3, "-1e308", -1e308))]  # fmt: skip
    for axis in ("step", "time"):
        points = job_plots.read(lines).curves[0].along(axis)
        assert len(job_plots.draw(points, width=60, height=8)) == 10


def test_later_tries_are_marked_with_how_the_one_before_ended() -> None:
    lines = [
        b"muster: main-0, try 1 on n1, 2026-11-01T12:00:00Z, 3m 2s, Preempted",
        b'{"time": 10, "step": 1, "loss": 3}',
        b'{"time": 12, "step": 4, "loss": 2}',
        b"muster: main-0, try 2 on n2, 2026-11-01T12:05:00Z",
        b'{"time": 20, "step": 3, "loss": 1}',
        b'{"time": 21, "step": 5, "loss": 0}',
    ]
    (curve,) = job_plots.read(lines).curves
    assert [one.text() for one in curve.tries] == ["try 2 from step 3, after Preempted"]
    assert (curve.try_starts("step"), curve.try_starts("time")) == ([3.0], [10.0])
    assert curve.document() == {
        "name": "loss",
        "points": [
            {"step": 1.0, "time": 10.0, "value": 3.0},
            {"step": 4.0, "time": 12.0, "value": 2.0},
            {"step": 3.0, "time": 20.0, "value": 1.0},
            {"step": 5.0, "time": 21.0, "value": 0.0},
        ],
        "tries": [{"try": 2, "step": 3.0, "time": 20.0, "after": "Preempted"}],
    }
    drawn = job_plots.draw(curve.along("step"), width=30, height=6, marks=curve.try_starts("step"))
    columns = {line.index("┊") for line in drawn if "┊" in line}
    assert len(columns) == 1
