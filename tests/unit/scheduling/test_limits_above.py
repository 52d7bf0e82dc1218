"""A guarantee holds where the limit of a queue above is used up by what a sibling borrows.

What has to leave then need not be where the claim goes: it only has to count under that limit.
"""

import pytest

from reconciler.model import desired
from reconciler.scheduling.inputs.snapshots import WHOLE
from tests.unit.scheduling.situations import Situation, evicted, gpus_in, started


def two_pools(limit: int = 4, *, where: str = "y") -> Situation:
    """A department with a limit over two pools; one sibling has borrowed all of it in pool x."""
    s = Situation().node("x1", gpu=4, pool="x").node("y1", gpu=4, pool="y")
    s.queue("dept", limit=limit, guaranteed=4)
    s.queue("owner", "dept", guaranteed=2).queue("guest", "dept").queue("other")
    for number in range(4):
        s.job(f"g{number}", "guest", gpu=1, on=("x1",), cost_s=float(number))
    return s.job("mine", "owner", gpu=2, pool=where)


@pytest.mark.parametrize("where", ["x", "y"])
def test_a_sibling_gives_back_what_it_borrowed_wherever_it_runs(where: str) -> None:
    s = two_pools(where=where)
    decisions = s.decide()
    assert evicted(decisions) == [("g0", "mine"), ("g1", "mine")]
    s.apply(decisions).left()
    assert started(s.decide()) == ["mine"]
    assert evicted(s.apply(s.decide()).decide()) == []


def test_nobody_leaves_where_the_limit_has_room() -> None:
    s = two_pools(limit=6)
    assert started(s.decide()) == ["mine"]
    assert evicted(s.decide()) == []


def test_who_counts_under_no_limit_that_is_short_stays_where_it_is() -> None:
    s = two_pools()
    s.node("x2", gpu=1, pool="x").job("beside", "other", gpu=1, on=("x2",), cost_s=-10.0)
    assert evicted(s.decide()) == [("g0", "mine"), ("g1", "mine")]


def test_room_and_a_limit_are_made_at_once() -> None:
    """Who leaves room where it goes gives too little back under the limit."""
    s = Situation().node("x1", cpu=16, pool="x").node("y1", gpu=4, cpu=16, pool="y")
    s.queue("dept", limit_cpu=10)
    s.queue("owner", "dept", guaranteed=2, guaranteed_cpu=4).queue("guest", "dept")
    s.job("near", "guest", gpu=4, cpu=1, on=("y1",))
    s.job("far", "guest", cpu=4, on=("x1",), cost_s=5.0).job("more", "guest", cpu=3, on=("x1",))
    s.job("mine", "owner", gpu=2, cpu=4, pool="y")
    assert sorted(evicted(s.decide())) == [("more", "mine"), ("near", "mine")]


def test_two_limits_that_are_short_of_different_things() -> None:
    s = Situation().node("x1", gpu=4, cpu=16, pool="x").node("y1", gpu=4, cpu=16, pool="y")
    s.queue("root", limit_cpu=10).queue("dept", "root", limit=4)
    s.queue("owner", "dept", guaranteed=2, guaranteed_cpu=4).queue("guest", "dept")
    s.job("gpus", "guest", gpu=4, cpu=1, on=("x1",))
    s.job("cpus", "guest", gpu=0, cpu=7, on=("x1",))
    s.job("mine", "owner", gpu=2, cpu=4, pool="y")
    assert sorted(evicted(s.decide())) == [("cpus", "mine"), ("gpus", "mine")]


def test_what_all_may_have_of_a_pool_is_given_back_to_who_is_owed_it() -> None:
    s = Situation().node("a1", gpu=4, pool="a").node("a2", gpu=4, pool="a")
    s.caps = [desired.Quota("few", pool="a", resources=desired.QuotaAmounts(gpu_milli=4 * WHOLE))]
    s.queue("owner", flavors=(gpus_in("a", 2),)).queue("guest")
    s.job("borrows", "guest", gpu=4, on=("a1",))
    s.job("mine", "owner", gpu=2)
    assert evicted(s.decide()) == [("borrows", "mine")]
    s.apply(s.decide()).left()
    assert started(s.decide()) == ["mine"]
