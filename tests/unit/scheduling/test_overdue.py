"""Who is overdue: a wait is measured by how long the work takes."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.scheduling import lines, order
from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import Situation

HOUR, DAY = 3600.0, 86_400.0


def cluster(waited_s: float, *, overdue: float = 4.0) -> Situation:
    """One GPU; a day of work that came a second before ten minutes of it."""
    s = Situation().node("n", gpu=1).queue("main")
    s.now = 10 * DAY
    s.policy = dataclasses.replace(s.policy, overdue=overdue)
    s.job("long", gpu=1, time_limit_s=DAY, submitted_at=s.now - waited_s - 1)
    s.job("short", gpu=1, time_limit_s=600, submitted_at=s.now - waited_s)
    return s


@pytest.mark.parametrize(
    ("waited_s", "overdue", "first"),
    [
        (0.0, 4.0, "long"),
        (2399.0, 4.0, "long"),
        (2400.0, 4.0, "short"),
        (2400.0, 0.0, "long"),
        # Both are overdue; by its own measure the short one waited longer.
        (5 * DAY, 4.0, "short"),
    ],
)
def test_short_work_that_waited_long_goes_first(
    waited_s: float, overdue: float, first: str
) -> None:
    assert situations.started(cluster(waited_s, overdue=overdue).decide()) == [first]


def test_long_work_is_overdue_in_its_turn() -> None:
    s = cluster(6 * DAY)
    s.job("fresh", gpu=1, time_limit_s=600, submitted_at=s.now - 2500)
    s.jobs.pop("short")
    assert situations.started(s.decide()) == ["long"]  # 6 times its day; fresh: 4.2 times


def test_priority_goes_before_what_is_overdue() -> None:
    s = cluster(HOUR)
    s.jobs["long"].priority = 60
    assert situations.started(s.decide()) == ["long"]


def test_work_without_a_limit_is_never_overdue() -> None:
    s = cluster(HOUR)
    s.jobs["short"].time_limit_s = math.inf
    assert situations.started(s.decide()) == ["long"]


def test_deadlines_still_order_the_claims_of_one_owner() -> None:
    s = cluster(HOUR)
    s.jobs["long"].slack_s = 60.0
    assert situations.started(s.decide()) == ["long"]


claims = st.lists(
    st.tuples(
        st.sampled_from([60.0, 600.0, 0.5, DAY, math.inf]),
        st.one_of(st.just(0.0), st.floats(1.0, 20 * DAY)),
        st.sampled_from([0, 50]),
    ),
    min_size=1,
    max_size=8,
)


@given(claims)
def test_columns_tell_the_same_as_claims(drawn: list[tuple[float, float, int]]) -> None:
    s = Situation().node("n", gpu=1).queue("main")
    s.now = 20 * DAY
    s.policy = dataclasses.replace(s.policy, overdue=4.0)
    for number, (limit_s, submitted_at, priority) in enumerate(drawn):
        s.job(
            f"j{number}",
            gpu=1,
            time_limit_s=limit_s,
            submitted_at=submitted_at,
            priority=priority,
        )
    found = s.snapshot()
    wanted = [order.pressing_of(found, line, line.claims[0]) for line in found.lines]
    told = order.pressing(found, lines.columns_of(found.lines))
    np.testing.assert_array_equal(told, np.array(wanted))


def lent(waited_s: float, *, limit_s: float, guaranteed: int = 0) -> Situation:
    """Two queues share two GPUs; one of them has had both for an hour."""
    s = Situation().node("n", gpu=2)
    s.queue("mine", guaranteed=guaranteed).queue("yours")
    s.now = 10 * DAY
    s.policy = dataclasses.replace(s.policy, overdue=4.0)
    for number in range(2):
        s.job(f"r{number}", "yours", gpu=1, on=("n",), cost_s=-s.now + HOUR)
    s.job("w", "mine", gpu=1, time_limit_s=limit_s, submitted_at=s.now - waited_s)
    return s


@pytest.mark.parametrize(
    ("waited_s", "limit_s", "guaranteed", "evicts"),
    [
        (2399.0, 600.0, 0, False),
        (2400.0, 600.0, 0, True),
        (0.0, math.inf, 0, True),  # as for all who don't say how long they run
        (0.0, 600.0, 1, True),  # a guarantee is due at once
    ],
)
def test_surplus_is_taken_back_by_force_only_once_a_claim_is_overdue(
    waited_s: float, limit_s: float, guaranteed: int, *, evicts: bool
) -> None:
    s = lent(waited_s, limit_s=limit_s, guaranteed=guaranteed)
    found = s.decide()
    assert bool(found.evictions) == evicts
    if not evicts:
        assert found.wake_at == s.now - waited_s + 4 * limit_s
        s.now = found.wake_at
        assert s.decide().evictions
