"""What will be free, against a slow reading of the same second by second."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.scheduling.estimates import timelines

#: Free now, and (second, amount) that comes back, of a row.
ROW = st.tuples(
    st.integers(0, 4), st.lists(st.tuples(st.integers(1, 12), st.integers(1, 4)), max_size=4)
)
#: Which row is asked, for how much and how long, and from when on.
ASK = st.tuples(st.integers(0, 1), st.integers(1, 5), st.integers(1, 6), st.integers(0, 10))
#: After this second nothing changes any more.
LAST = 80


def made(*rows: tuple[int, list[tuple[int, int]]]) -> timelines.Timeline:
    found = timelines.Timeline(0.0, [float(at) for _, gains in rows for at, _ in gains])
    for free, gains in rows:
        found.add(free, [(float(at), amount) for at, amount in gains])
    return found


@given(ROW, ROW, st.lists(ASK, max_size=6))
def test_as_second_by_second(
    first: tuple[int, list[tuple[int, int]]],
    second: tuple[int, list[tuple[int, int]]],
    asks: list[tuple[int, int, int, int]],
) -> None:
    """Each ask is of one row and, with one of it, of the other one beside."""
    fast = made(first, second)
    slow = [
        [free + sum(amount for at, amount in gains if at <= second_) for second_ in range(LAST)]
        for free, gains in (first, second)
    ]
    for row, asked, runs_s, after in asks:
        parts = [((row,), asked), ((1 - row,), 1)]
        wanted = [
            at
            for at in range(after, LAST - runs_s)
            if all(min(slow[rows[0]][at : at + runs_s]) >= amount for rows, amount in parts)
        ]
        at = fast.first(parts, float(runs_s), float(after))
        assert at == (wanted[0] if wanted else math.inf)
        if wanted:
            fast.take(parts, at, at + runs_s)
            for rows, amount in parts:
                for moment in range(wanted[0], wanted[0] + runs_s):
                    slow[rows[0]][moment] -= amount


def test_rows_stand_for_each_other() -> None:
    line = made((2, []), (1, [(10, 3)]))
    assert line.first([((0, 1), 3)], 5.0, 0.0) == 0.0
    assert line.most(((0, 1), 1), 0.0, 5.0, 9) == 3
    line.take([((0, 1), 3)], 0.0, 5.0)
    assert line.first([((0, 1), 1)], 5.0, 0.0) == 5.0
    assert line.first([((0, 1), 6)], math.inf, 0.0) == 10.0


def test_what_takes_for_ever_gives_nothing_back() -> None:
    line = made((2, [(10, 2)]))
    line.take([((0,), 2)], 0.0, math.inf)
    assert line.first([((0,), 2)], 1.0, 0.0) == 10.0
    assert line.first([((0,), 3)], 1.0, 0.0) == math.inf


@pytest.mark.parametrize("count", [timelines.ROUNDED_FROM, 3 * timelines.MOMENTS_MAX])
def test_many_moments_are_put_together_and_nothing_comes_back_too_early(count: int) -> None:
    gains = [(at, 1) for at in range(1, count + 1)]
    line = made((0, gains))
    assert len(line.moments) <= timelines.MOMENTS_MAX + 1
    assert line.changes == [1.0]
    previous = 0.0
    for asked in range(1, count + 1, 97):
        at = line.first([((0,), asked)], math.inf, 0.0)
        assert max(asked, previous) <= at <= count
        previous = at
    assert line.first([((0,), count)], math.inf, 0.0) == count
    line.take([((0,), 1)], 1.0, 1.5)
    assert len(line.moments) <= timelines.MOMENTS_MAX + 1
    assert line.first([((0,), 1)], 1.0, 1.0) == 2.0
