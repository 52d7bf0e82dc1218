"""When work starts by what is known of run times; nobody is told who could never start."""

import dataclasses
import math
from collections.abc import Callable

import pytest

from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.decisions import Estimate
from tests.unit.scheduling.situations import Situation


def busy() -> Situation:
    """Four GPUs, taken for ten minutes more."""
    s = Situation().node("n", gpu=4)
    s.queue("main", guaranteed=4).queue("small", limit=2).queue("off", suspended=True)
    return s.job("r", "main", gpu=4, on=("n",), time_limit_s=600)


@pytest.mark.parametrize(
    ("queue", "gpu", "preemptible"),
    [
        ("small", 3, True),  # over the limit of its queue
        ("main", 5, True),  # more than any node has
        ("off", 1, True),  # its queue is suspended
        ("small", 1, False),  # may not borrow, and nothing is guaranteed
    ],
)
def test_what_can_never_start_has_no_estimate(queue: str, gpu: int, *, preemptible: bool) -> None:
    s = busy().job("w", queue, gpu=gpu, preemptible=preemptible, time_limit_s=60)
    s.job("x", "main", gpu=1, time_limit_s=60)
    found = s.decide().estimates
    assert "w" not in found
    assert found["x"].at == 600.0


def drained(*, reserves: bool) -> Situation:
    """One node of four GPUs that takes no work, one of two that does, both taken for a while."""
    s = Situation().node("n", gpu=4, pool="a", accepts=False).node("m", gpu=2, pool="b")
    s.policy = dataclasses.replace(s.policy, backfill="conservative" if reserves else "none")
    s.queue("main").job("r", "main", gpu=4, on=("n",), time_limit_s=600)
    return s.job("t", "main", gpu=2, on=("m",), time_limit_s=900)


@pytest.mark.parametrize("reserves", [True, False])
@pytest.mark.parametrize(("pool", "gpu", "tasks"), [("a", 1, 1), (None, 4, 1), (None, 2, 2)])
def test_what_only_nodes_that_take_no_work_could_hold_has_no_estimate(
    pool: str | None, gpu: int, tasks: int, *, reserves: bool
) -> None:
    s = drained(reserves=reserves)
    s.job("w", "main", gpu=gpu, tasks=tasks, pool=pool, time_limit_s=60)
    s.job("x", "main", gpu=1, time_limit_s=60)
    found = s.decide().estimates
    assert "w" not in found
    assert found["x"].at == 900.0, "what ends on a node that takes no work makes no room"


def test_what_can_start_has_one() -> None:
    s = busy().job("w", "small", gpu=2, time_limit_s=60)
    assert s.decide().estimates["w"].at == 600.0


def test_the_queue_that_has_less_of_its_share_is_reckoned_with_first() -> None:
    """Though what waits in the other came earlier: it will not start in that order."""
    s = Situation().node("n", gpu=4).queue("a", guaranteed=2).queue("b", guaranteed=2)
    s.policy = dataclasses.replace(s.policy, backfill="none", reclaim=False)
    for number in range(4):
        limit_s = 100.0 * (number + 1)
        s.job(f"r{number}", "b", gpu=1, on=("n",), time_limit_s=limit_s)
    for number in range(2):
        s.job(f"early{number}", "b", gpu=1, time_limit_s=1000.0)
    for number in range(2):
        s.job(f"late{number}", "a", gpu=1, time_limit_s=1000.0)
    found = {job: one.at for job, one in s.decide().estimates.items()}
    assert found == {"late0": 100.0, "late1": 200.0, "early0": 300.0, "early1": 400.0}


def usual(**runs_s: float) -> Callable[[str, float], float]:
    """What is known of run times; of other jobs nothing."""
    return lambda job, ran_s: max(runs_s.get(job, math.inf), ran_s)


def told(s: Situation, **runs_s: float) -> dict[str, Estimate]:
    """Estimates where jobs run as long as is said."""
    given = dataclasses.replace(s.snapshot(), usual_s=usual(**runs_s))
    return scheduling_cycle.schedule(given).estimates


def test_run_times_tell_when_what_is_behind_starts() -> None:
    s = busy()
    s.policy = dataclasses.replace(s.policy, backfill="none")
    for number in range(3):
        s.job(f"w{number}", "main", gpu=4, time_limit_s=1000)
    found = told(s)
    assert [found[f"w{n}"].at for n in range(3)] == [600.0, 1600.0, 2600.0]
    found = told(s, r=200.0, w0=30.0)
    assert [found[f"w{n}"].at for n in range(3)] == [200.0, 230.0, 1230.0]


def test_a_reservation_is_expected_when_its_nodes_are_free_as_a_rule() -> None:
    """The moment of the reservation stays what its limits make of it."""
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).queue("a")
    s.policy = dataclasses.replace(s.policy, backfill="conservative")
    s.job("r1", "a", gpu=4, on=("n1",), time_limit_s=600)
    s.job("r2", "a", gpu=4, on=("n2",), time_limit_s=500)
    s.job("gang", "a", gpu=4, tasks=2, time_limit_s=100)
    s.job("after", "a", gpu=4, tasks=2, time_limit_s=100)
    assert told(s, r1=50.0)["gang"] == Estimate(500.0, certain=True, latest=600.0, entitled=True)
    found = told(s, r1=50.0, r2=70.0, gang=10.0)
    assert found["gang"] == Estimate(70.0, certain=True, latest=600.0, entitled=True)
    assert found["after"] == Estimate(80.0, certain=True, latest=700.0, entitled=True)


def test_nobody_is_expected_after_the_moment_of_the_reservation() -> None:
    s = busy().job("w", "main", gpu=4, time_limit_s=60)
    assert told(s, r=10_000.0)["w"].at == 600.0


def test_what_starts_in_this_cycle_gives_back_too() -> None:
    s = Situation().node("n", gpu=4).queue("main", guaranteed=4)
    s.policy = dataclasses.replace(s.policy, backfill="none")
    s.job("first", "main", gpu=4, time_limit_s=600)
    s.job("second", "main", gpu=4, time_limit_s=600)
    assert told(s)["second"].at == 600.0
    assert told(s, first=50.0)["second"].at == 50.0


def two_pools() -> Situation:
    """Pool a is taken for ten minutes, pool b for one."""
    s = Situation().node("a1", gpu=4, pool="a").node("b1", gpu=4, pool="b").queue("main")
    s.policy = dataclasses.replace(s.policy, backfill="none")
    s.job("ra", "main", gpu=4, on=("a1",), time_limit_s=600)
    return s.job("rb", "main", gpu=4, on=("b1",), time_limit_s=60)


def test_what_comes_free_elsewhere_helps_nobody_who_may_not_go_there() -> None:
    s = two_pools()
    for pool in ("a", "b"):
        for number in range(2):
            s.job(f"{pool}{number}", "main", gpu=4, pool=pool, time_limit_s=100)
    found = {job: one.at for job, one in told(s).items()}
    assert found == {"a0": 600.0, "a1": 700.0, "b0": 60.0, "b1": 160.0}


def test_who_may_go_anywhere_takes_what_is_there_first() -> None:
    s = two_pools()
    s.job("b0", "main", gpu=4, pool="b", time_limit_s=1000)
    s.job("any0", "main", gpu=4, time_limit_s=1000)
    s.job("any1", "main", gpu=4, time_limit_s=1000)
    s.job("b1", "main", gpu=4, pool="b", time_limit_s=1000)
    found = {job: one.at for job, one in told(s).items()}
    assert found == {"b0": 60.0, "any0": 600.0, "any1": 1060.0, "b1": 2060.0}


def test_what_nothing_bounds_in_one_pool_leaves_the_other_told() -> None:
    s = Situation().node("a1", gpu=4, pool="a").node("b1", gpu=4, pool="b").queue("main")
    s.policy = dataclasses.replace(s.policy, backfill="none")
    s.job("ra", "main", gpu=4, on=("a1",))
    s.job("rb", "main", gpu=4, on=("b1",), time_limit_s=60)
    s.job("a0", "main", gpu=4, pool="a", time_limit_s=100)
    s.job("b0", "main", gpu=4, pool="b", time_limit_s=100)
    assert {job: one.at for job, one in told(s).items()} == {"b0": 60.0}


def two_nodes() -> Situation:
    """Three of four GPUs are taken on each of two nodes, on the second for ten minutes."""
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).queue("main", guaranteed=8)
    s.policy = dataclasses.replace(s.policy, backfill="none", consolidate=False)
    s.job("endless", "main", gpu=3, on=("n1",))
    return s.job("r", "main", gpu=3, on=("n2",), time_limit_s=600)


def test_what_does_not_start_now_is_not_expected_now() -> None:
    """Two GPUs are idle, one on each node: enough, and not together."""
    s = two_nodes().job("w", "main", gpu=2, time_limit_s=60)
    found = s.decide()
    assert found.reasons[found.reason_of_line[0]][0].code == "Fragmented"
    assert found.estimates["w"].at == 600.0


def test_where_nothing_ever_ends_nobody_knows_when_gaps_close() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).queue("main", guaranteed=8)
    s.policy = dataclasses.replace(s.policy, consolidate=False)
    for number in (1, 2):
        s.job(f"endless{number}", "main", gpu=3, on=(f"n{number}",))
    s.job("w", "main", gpu=2, time_limit_s=60)
    assert s.decide().estimates == {}


def half_idle(limit: int | None = None) -> Situation:
    """Eight GPUs of which four are idle, four are in use by a queue for ten minutes more."""
    s = Situation().node("n1", gpu=4).node("n2", gpu=4)
    s.queue("above", guaranteed=8).queue("main", "above", guaranteed=4, limit=limit)
    return s.job("r", "main", gpu=4, on=("n1",), time_limit_s=600, preemptible=False)


def test_who_waits_under_a_limit_starts_when_work_under_it_ends() -> None:
    s = half_idle(limit=4).queue("beside", "above")
    for number in range(2):
        s.job(f"w{number}", "main", gpu=4, time_limit_s=100)
    s.job("free", "beside", gpu=4, time_limit_s=100)
    s.job("next", "beside", gpu=4, time_limit_s=100)
    found = {job: one.at for job, one in s.decide().estimates.items()}
    assert found == {"w0": 600.0, "w1": 700.0, "next": 100.0}


def test_a_limit_that_nothing_ever_frees_keeps_nobody_else_from_a_time() -> None:
    s = half_idle(limit=4).queue("beside", "above")
    s.jobs["r"].time_limit_s = math.inf
    s.job("w", "main", gpu=4, time_limit_s=100)
    s.job("free", "beside", gpu=4, time_limit_s=100)
    s.job("next", "beside", gpu=4, time_limit_s=100)
    assert {job: one.at for job, one in s.decide().estimates.items()} == {"next": 100.0}


def test_what_may_not_borrow_starts_when_such_work_ends() -> None:
    s = half_idle().job("w", "main", gpu=4, preemptible=False, time_limit_s=100)
    assert s.decide().estimates["w"].at == 600.0


def test_the_next_of_an_array_starts_when_one_of_it_ends() -> None:
    s = Situation().node("n", gpu=4).queue("main", guaranteed=4)
    s.job("a", "main", gpu=1, array=3, parallelism=1, time_limit_s=100)
    s.job("endless", "main", gpu=1, array=2, parallelism=1)
    assert {job: one.at for job, one in s.decide().estimates.items()} == {"a": 100.0}


def test_behind_the_first_of_a_strict_queue_nobody_is_expected_sooner() -> None:
    s = Situation().node("n", gpu=4).queue("main", guaranteed=4, strict=True)
    s.job("r", "main", gpu=1, on=("n",), time_limit_s=600)
    s.job("first", "main", gpu=4, time_limit_s=100)
    s.job("second", "main", gpu=1, time_limit_s=100)
    found = {job: one.at for job, one in s.decide().estimates.items()}
    assert found == {"first": 600.0, "second": 700.0}


def test_who_was_evicted_for_starts_when_they_have_left_at_the_latest() -> None:
    s = Situation().node("n", gpu=4).queue("a", guaranteed=4).queue("b")
    s.job("borrows", "b", gpu=4, on=("n",), grace_s=30.0)
    s.job("w", "a", gpu=4, time_limit_s=100)
    found = s.decide()
    assert found.promised == {"w": 1}
    assert found.estimates["w"].at == 30.0


def test_a_limit_gives_back_though_nothing_ends_on_the_nodes_that_wait() -> None:
    s = Situation().node("a", gpu=4, pool="a").node("b", gpu=4, pool="b")
    s.queue("main", limit=4).job("r", "main", gpu=4, on=("a",), time_limit_s=600)
    s.job("w", "main", gpu=4, pool="b", time_limit_s=100)
    assert s.decide().estimates["w"].at == 600.0


def test_who_came_later_is_expected_before_who_waits_for_more() -> None:
    """What is left until the larger one has all of it is enough for the smaller one."""
    s = Situation().node("n", gpu=4).queue("main", guaranteed=4)
    s.policy = dataclasses.replace(s.policy, backfill="none")
    s.job("r0", "main", gpu=2, on=("n",), time_limit_s=100)
    s.job("r1", "main", gpu=2, on=("n",), time_limit_s=600)
    s.job("large", "main", gpu=4, time_limit_s=100)
    s.job("small", "main", gpu=2, time_limit_s=300)
    s.job("long", "main", gpu=2, time_limit_s=1000)
    found = {job: one.at for job, one in s.decide().estimates.items()}
    assert found == {"large": 600.0, "small": 100.0, "long": 700.0}


def test_elements_that_have_no_room_at_once_take_theirs_later() -> None:
    s = busy()
    s.policy = dataclasses.replace(s.policy, backfill="none")
    s.job("array", "main", gpu=2, array=4, time_limit_s=100)
    s.job("after", "main", gpu=4, time_limit_s=100)
    found = {job: one.at for job, one in s.decide().estimates.items()}
    assert found == {"array": 600.0, "after": 800.0}


@pytest.mark.parametrize(("held", "waits"), [(False, True), (True, False), (True, True)])
def test_a_node_to_itself_is_not_told_by_amounts(*, held: bool, waits: bool) -> None:
    """Each of two nodes has room for more, but one that has it to itself leaves it to nobody."""
    s = Situation().node("n", cpu=4).node("m", cpu=4).queue("main")
    s.job("r", "main", on=("n",), time_limit_s=600, exclusive=held)
    s.job("t", "main", on=("m",), time_limit_s=1200, exclusive=held)
    s.job("w", "main", time_limit_s=60, exclusive=waits)
    assert s.decide().estimates["w"].at == 600.0
