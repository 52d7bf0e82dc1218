"""Full clusters come to rest: queues do not take the same GPUs from each other for ever."""

import random

import pytest

from reconciler.scheduling.inputs import pending_groups
from reconciler.scheduling.preemption import victims
from reconciler.scheduling.quota import quota_ledger
from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import Situation

#: Far below what an exchange without an end would take, a few times what was seen (at most 9).
CYCLES_MAX = 30


def crowd(seed: int) -> Situation:
    """Ten queues that own a whole cluster in equal parts, and twice as much work as fits."""
    chance = random.Random(seed)
    s = Situation()
    for number in range(20):
        s.node(f"n{number:02d}", gpu=8, cpu=64)
    for number in range(10):
        s.queue(f"q{number}", guaranteed=16)
    for number in range(150):
        size = chance.choices((1, 2, 4, 8, 16), (50, 12, 12, 15, 8))[0]
        s.job(
            f"j{number:03d}",
            f"q{chance.choices(range(10), range(1, 11))[0]}",
            gpu=min(size, 8),
            tasks=max(1, size // 8),
            priority=chance.choice((0, 0, 50, 50, 100)),
        )
    return s


@pytest.mark.parametrize("seed", range(6))
def test_a_crowd_comes_to_rest_and_then_nothing_moves(seed: int) -> None:
    s = crowd(seed)
    for _ in range(CYCLES_MAX):
        decisions = s.decide()
        if not decisions.placements and not decisions.evictions:
            break
        s.apply(decisions).left()
    else:
        raise AssertionError(f"no rest within {CYCLES_MAX} cycles")
    for _ in range(3):
        again = s.decide()
        assert not again.placements
        assert not again.evictions


@pytest.mark.parametrize("waits", [True, False])
def test_who_would_want_it_back_loses_what_leaves_it_its_share(*, waits: bool) -> None:
    """Three GPUs over its share of four: the cheapest of its work has four, and some has one.

    With the four it would fall below its share: what waits there would take that back from others.
    Where nothing waits, the least work is lost.
    """
    s = Situation().node("a", gpu=8).node("b", gpu=1)
    s.queue("over", guaranteed=4).queue("mine", guaranteed=4)
    for name in ("small-1", "small-2", "small-3"):
        s.job(name, "over", gpu=1, on=("a",), cost_s=60)
    s.job("own", "mine", gpu=1, on=("b",))
    s.job("large", "over", gpu=4, on=("a",))  # nothing is lost by its eviction
    s.job("filler", "over", gpu=1, on=("a",), cost_s=60)
    s.job("w", "mine", gpu=1)
    if waits:
        s.job("next", "over", gpu=1)
    found = situations.evicted(s.decide())
    assert [preemptor for _, preemptor in found] == ["w"]
    assert (found[0][0] == "large") is not waits


def test_what_is_undercut_counts_only_what_falls_below_the_share_and_is_waited_for() -> None:
    s = Situation().node("a", gpu=8).queue("over", guaranteed=4).queue("mine", guaranteed=4)
    s.job("r", "over", gpu=6, on=("a",)).job("w", "mine", gpu=4).job("x", "over", gpu=3)
    found = s.snapshot()
    ledger = quota_ledger.QuotaLedger(found, pending_groups.columns_of(found.lines))
    assert [victims.undercut(ledger, 0, (0, 0, gpu * 1000)) for gpu in (1, 2, 3, 6)] == [
        0,
        0,
        1000,
        3000,
    ]
    assert victims.undercut(ledger, 0, (5000, 0, 0)) == 0  # CPUs are not rationed


def too_many_gpus() -> Situation:
    """Two queues have all GPUs for good, which a third is owed, and the CPUs of a node are left."""
    s = Situation().node("g0", gpu=2).node("g1", gpu=2).node("c0", cpu=3, pool="cpu")
    s.queue("owner", guaranteed=4, guaranteed_cpu=1).queue("left").queue("right").queue("modest")
    s.job("firm-left", "left", gpu=2, on=("g0",), preemptible=False)
    s.job("firm-right", "right", gpu=2, on=("g1",), preemptible=False)
    s.job("owed", "owner", gpu=2, tasks=2)
    return s.job("a", "left", cpu=2, pools=("cpu",), on=("c0",))


def test_queues_with_too_many_gpus_do_not_take_cpus_from_each_other() -> None:
    s = too_many_gpus().job("b", "right", cpu=2, pools=("cpu",))
    assert not s.decide().evictions


def test_who_has_too_much_of_nothing_takes_cpus_of_who_has_too_many_gpus() -> None:
    s = too_many_gpus().job("b", "modest", cpu=2, pools=("cpu",))
    found = s.decide()
    assert situations.evicted(found) == [("a", "b")]
    s.apply(found).left()
    found = s.decide()
    assert situations.started(found) == ["b"]
    assert not s.apply(found).decide().evictions


def alone(least: int = 1) -> Situation:
    """Work that has a node to itself, with more GPUs than its queue's share, as it began so.

    Its queue is owed the least of it. Another queue is owed CPUs of the node by its share alone.
    """
    s = Situation().node("g0", gpu=4, cpu=8)
    s.queue("owner", guaranteed=2, guaranteed_cpu=3).queue("other")
    s.job("waits", "other", gpu=4, cpu=1, tasks=2)  # asks for GPUs, and never fits
    s.job("wide", "owner", gpu=2, tasks=2, least=least, fixed=True, exclusive=True, on=("g0",) * 2)
    return s.job("cpus", "other", cpu=4, priority=90)


def test_what_comes_back_at_once_by_its_guarantee_does_not_leave_for_a_share() -> None:
    s = alone()
    assert situations.evicted(s.decide()) == []


def test_it_leaves_where_it_finds_room_beside_who_takes_its_place() -> None:
    s = alone().node("g1", gpu=2, cpu=2)
    s.jobs["wide"].exclusive = False
    s.jobs["cpus"].groups = (("main", 1, situations.amounts(0, 7, 1)),)
    for _ in range(6):
        s.apply(s.decide()).left()
    decisions = s.decide()
    assert not decisions.placements
    assert not decisions.evictions
    assert {held.job for held in s.held} == {"wide", "cpus"}


def test_it_leaves_where_no_guarantee_covers_the_least_of_it() -> None:
    s = alone(least=2)
    assert situations.evicted(s.decide()) == [("wide", "cpus")]


def test_it_leaves_for_who_is_owed_it() -> None:
    s = alone()
    s.queue_list[1].guaranteed = situations.amounts(0, 4)
    assert situations.evicted(s.decide()) == [("wide", "cpus")]


def test_room_is_given_in_the_order_in_which_it_was_promised() -> None:
    """The gang of a queue below its share planned first, beside it a job of one that has none.

    By order of arrival the latter would go first, into the three GPUs of ``n1``, the gang would
    lack a node, and who left for it would start again at once.
    """
    s = Situation().queue("none", weight=0.0).queue("all")
    for name in ("n0", "n1", "n2"):
        s.node(name, gpu=4)
    s.job("stays", "none", gpu=1, on=("n1",))
    for name in ("ends", "ends-too"):
        s.job(name, "none", gpu=1, on=("n0",), leaving=True)
    s.job("victim", "none", gpu=2, on=("n0",))
    s.job("small", "none", gpu=0.5, tasks=3)
    s.job("gang", "all", gpu=3, tasks=3)
    decisions = s.decide()
    assert situations.evicted(decisions) == [("victim", "gang")]
    assert list(decisions.promised) == ["gang", "small"]
    after = s.apply(decisions).left().decide()
    assert situations.started(after)[:2] == ["gang", "small"]
    assert situations.evicted(after) == []
