"""Who is overdue: a wait is measured by how long the work takes."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model import desired
from reconciler.scheduling.inputs import pending_groups, snapshots
from reconciler.scheduling.queues import job_order
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
        # Neither has waited for so long that age alone decides.
        (job_order.WAIT_MAX_S - 2, 4.0, "short"),
        (job_order.WAIT_MAX_S, 4.0, "long"),
    ],
)
def test_short_work_that_waited_long_goes_first(
    waited_s: float, overdue: float, first: str
) -> None:
    assert situations.started(cluster(waited_s, overdue=overdue).decide()) == [first]


def test_long_work_is_overdue_in_its_turn() -> None:
    s = cluster(2.5 * DAY, overdue=2.0)
    s.job("fresh", gpu=1, time_limit_s=600, submitted_at=s.now - 1250)
    s.jobs.pop("short")
    assert situations.started(s.decide()) == ["long"]  # 2.5 times its day; fresh: 2.1 times


@pytest.mark.parametrize("limit_s", [7 * DAY, 300 * DAY, math.inf])
@pytest.mark.parametrize("overdue", [0.0, 2.0, 1e6])
def test_steady_short_work_holds_nothing_back_for_longer_than_the_bound(
    limit_s: float, overdue: float
) -> None:
    s = Situation().node("n", gpu=1).queue("main")
    s.policy = dataclasses.replace(s.policy, overdue=overdue)
    s.now = DAY
    s.job("long", gpu=1, time_limit_s=limit_s, submitted_at=s.now)
    # All of the short work came later, and has waited for many times its length.
    for number, ago_s in enumerate((3 * HOUR, 2 * DAY, job_order.WAIT_MAX_S - 1)):
        submitted_at = s.now + job_order.WAIT_MAX_S - ago_s
        s.job(f"s{number}", gpu=1, time_limit_s=600, submitted_at=submitted_at)
    s.now += job_order.WAIT_MAX_S
    assert situations.started(s.decide()) == ["long"]


@pytest.mark.parametrize(
    ("waited_s", "priority", "after_s", "leaves"),
    [
        (job_order.WAIT_MAX_S, 90, 1.0, False),
        (job_order.WAIT_MAX_S, 90, -1.0, True),  # it came first
        (job_order.WAIT_MAX_S, 95, 1.0, True),
        (job_order.WAIT_MAX_S - 1, 90, 1.0, True),
    ],
)
def test_nobody_behind_who_waited_beyond_the_bound_evicts_what_filled_in_until_it_starts(
    waited_s: float, priority: int, after_s: float, *, leaves: bool
) -> None:
    s = Situation().node("n", gpu=4).queue("main")
    s.now = 10 * DAY
    s.job("run", gpu=2, on=("n",), time_limit_s=s.now + 100, preemptible=False)
    s.job("low", gpu=1, on=("n",), time_limit_s=s.now + 50, priority=10)
    submitted_at = s.now - waited_s
    s.job("large", gpu=4, time_limit_s=300, priority=90, submitted_at=submitted_at)
    s.apply(s.decide())
    assert [kept.job for kept in s.kept] == ["large"]
    submitted_at += after_s
    s.job("small", gpu=2, time_limit_s=200, priority=priority, submitted_at=submitted_at)
    decisions = s.decide()
    assert situations.evicted(decisions) == [("low", "small")] * leaves
    if not leaves:
        s.apply(decisions)
        assert [(kept.job, kept.starts_at - s.now) for kept in s.kept] == [("large", 100.0)]


def test_of_what_waited_beyond_the_bound_the_oldest_goes_first() -> None:
    s = Situation().node("n", gpu=1).queue("main")
    s.policy = dataclasses.replace(s.policy, overdue=2.0)
    s.now = 400 * DAY
    s.job("short", gpu=1, time_limit_s=600, submitted_at=s.now - 10 * DAY)
    s.job("week", gpu=1, time_limit_s=7 * DAY, submitted_at=s.now - 30 * DAY)
    s.job("endless", gpu=1, submitted_at=s.now - 300 * DAY)
    for expected in ("endless", "week", "short"):
        assert situations.started(s.decide()) == [expected]
        s.jobs.pop(expected)


def test_priority_goes_before_what_is_overdue() -> None:
    s = cluster(HOUR)
    s.jobs["long"].priority = 60
    assert situations.started(s.decide()) == ["long"]


def test_work_without_a_limit_counts_as_endless() -> None:
    s = cluster(job_order.WAIT_MAX_S - 2)
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


def test_tests_measure_waits_as_the_documents_do() -> None:
    assert Situation().policy.overdue == desired.Scheduling().overdue_after
    assert snapshots.SchedulingPolicy().overdue == desired.Scheduling().overdue_after


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
    wanted = [job_order.pressing_of(found, line, line.claims[0]) for line in found.lines]
    told = job_order.pressing(found, pending_groups.columns_of(found.lines))
    np.testing.assert_array_equal(told, np.array(wanted))


def lent(
    waited_s: float, *, limit_s: float, guaranteed: int = 0, borrows_s: float = 30 * DAY
) -> Situation:
    """Two queues share two GPUs; one of them has had both for an hour."""
    s = Situation().node("n", gpu=2)
    s.queue("mine", guaranteed=guaranteed).queue("yours")
    s.now = 10 * DAY
    s.policy = dataclasses.replace(s.policy, overdue=4.0)
    for number in range(2):
        cost_s = -s.now + HOUR
        s.job(f"r{number}", "yours", gpu=1, on=("n",), cost_s=cost_s, time_limit_s=borrows_s)
    s.job("w", "mine", gpu=1, time_limit_s=limit_s, submitted_at=s.now - waited_s)
    return s


@pytest.mark.parametrize(
    ("waited_s", "limit_s", "guaranteed", "evicts"),
    [
        (2399.0, 600.0, 0, False),
        (2400.0, 600.0, 0, True),
        (0.0, math.inf, 0, False),  # who states no limit waits longest, not shortest
        (job_order.WAIT_MAX_S - 1, math.inf, 0, False),
        (job_order.WAIT_MAX_S, math.inf, 0, True),
        (job_order.WAIT_MAX_S - 1, 7 * DAY, 0, False),
        (job_order.WAIT_MAX_S, 7 * DAY, 0, True),
        (0.0, 600.0, 1, True),  # a guarantee is due at once
        (0.0, math.inf, 1, True),
    ],
)
def test_surplus_is_taken_back_by_force_only_once_a_claim_is_overdue(
    waited_s: float, limit_s: float, guaranteed: int, *, evicts: bool
) -> None:
    s = lent(waited_s, limit_s=limit_s, guaranteed=guaranteed)
    found = s.decide()
    assert bool(found.evictions) == evicts
    if not evicts:
        assert found.wake_at == s.now - waited_s + min(4 * limit_s, job_order.WAIT_MAX_S)
        s.now = found.wake_at
        assert s.decide().evictions


@pytest.mark.parametrize("limit_s", [600.0, math.inf])
def test_what_might_borrow_forever_is_not_waited_for(limit_s: float) -> None:
    assert lent(0.0, limit_s=limit_s, borrows_s=math.inf).decide().evictions


def borrowed(*, own: int, parent: int, by: str) -> Situation:
    """A tree whose leaf ``a`` asks for the 4 GPUs that another queue has in use."""
    s = Situation().node("n", gpu=4)
    s.queue("p", guaranteed=parent).queue("a", parent="p", guaranteed=own)
    s.queue("b", parent="p").queue("q")
    s.now = 10 * DAY
    s.policy = dataclasses.replace(s.policy, overdue=2.0)
    for number in range(4):
        s.job(f"r{number}", by, gpu=1, on=("n",), cost_s=-s.now, time_limit_s=30 * DAY)
    s.job("w", "a", gpu=4, time_limit_s=7 * DAY, submitted_at=s.now - 60)
    return s


@pytest.mark.parametrize(
    ("own", "parent", "by", "evicts"),
    [
        (4, 4, "b", True),  # the parent is at its guarantee already, by what the sibling borrows
        (4, 4, "q", True),
        (2, 4, "b", False),  # beyond its own guarantee, against its sibling
        (0, 4, "q", True),  # against the rest of the tree the parent's guarantee counts
    ],
)
def test_a_guarantee_is_due_at_once_below_where_the_branches_part(
    own: int, parent: int, by: str, *, evicts: bool
) -> None:
    assert bool(borrowed(own=own, parent=parent, by=by).decide().evictions) == evicts


def behind(low: dict[str, Any] | None, **queue: Any) -> Situation:
    """A full cluster, and who waits in a queue with a share: of high priority, since just now."""
    s = Situation().node("n", gpu=4).node("m", gpu=4).queue("a", **queue).queue("b")
    for number, node in enumerate("nnmm"):
        s.job(f"r{number}", "b", gpu=2, on=(node,), time_limit_s=90_000)
    s.now = 50_000.0
    s.job("high", "a", gpu=2, time_limit_s=30_000, priority=90, submitted_at=49_990.0)
    if low is not None:
        s.job("low", "a", time_limit_s=60, priority=10, submitted_at=1.0, **low)
    return s


@pytest.mark.parametrize(
    ("low", "queue", "forces"),
    [
        (None, {}, False),
        ({"gpu": 2}, {}, True),
        ({"gpu": 1}, {}, False),
        ({"gpu": 8}, {}, False),  # on no node
        ({"gpu": 2, "tasks": 4}, {}, False),  # beyond its queue's share
        ({"gpu": 2, "pool": "nowhere"}, {}, False),
        ({"gpu": 2, "preemptible": False}, {}, False),
        ({"gpu": 2}, {"min_runtime_s": 86_400.0}, False),
        ({"gpu": 3}, {"limit": 2}, False),
    ],
)
def test_higher_priority_has_the_force_of_who_is_overdue_and_could_use_it(
    low: dict[str, Any] | None, queue: dict[str, Any], forces: bool
) -> None:
    evictions = behind(low, **queue).decide().evictions
    assert ("high" in {one.for_job for one in evictions}) is forces


def test_where_priority_evicts_nobody_it_has_no_force_of_others() -> None:
    s = behind({"gpu": 2})
    s.policy = dataclasses.replace(s.policy, preempt=False)
    assert {one.for_job for one in s.decide().evictions} == {"low"}
