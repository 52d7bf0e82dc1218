"""What is learned: the mix decays and sums to one, run times give quantiles, use has a
half-life.
"""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.snapshot import learned_mix
from reconciler.model import desired
from reconciler.model.state import outcome
from reconciler.model.state.scheduler_state import SchedulerState
from reconciler.model.values import times
from tests.unit.core.world import World, job


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 50)), max_size=200))
def test_arrivals_are_bounded_and_the_newest_weigh_most(kinds: list[tuple[int, int]]) -> None:
    known: learned_mix.Arrivals = ()
    for gpus, cpu in kinds:
        known = learned_mix.with_arrivals(known, [job("j", gpu=gpus, cpu=cpu)])
        assert len(known) <= learned_mix.KINDS_MAX
        assert all(count > 0 for _, count in known)
    assert [count for _, count in known] == sorted((c for _, c in known), reverse=True)


def test_old_kinds_fade() -> None:
    one = learned_mix.with_arrivals((), [job("a", gpu=1)])
    many = learned_mix.with_arrivals(
        one, [job("b", gpu=2, array_count=learned_mix.ARRIVALS_HALVED)]
    )
    counts = {kind.gpu_milli: count for kind, count in many}
    assert counts == {1000: 0.5, 2000: float(learned_mix.ARRIVALS_HALVED)}


@pytest.mark.parametrize(
    ("times", "limit_s", "quantile", "expected"),
    [
        ((10.0, 20.0), 100, 0.5, 100.0),  # too few to go by
        ((10.0, 20.0, 30.0), 100, 0.5, 20.0),
        ((10.0, 20.0, 30.0), 100, 1.0, 30.0),
        ((10.0, 20.0, 300.0), 100, 1.0, 100.0),  # never above the limit
        ((10.0, 20.0, 30.0), None, 0.1, 10.0),
        ((10.0, 20.0, 30.0), None, None, math.inf),  # nobody asked to learn
    ],
)
def test_expected_run_times(
    times: tuple[float, ...], limit_s: int | None, quantile: float | None, expected: float
) -> None:
    scheduling = desired.Scheduling(learned_quantile=quantile)
    spec = job("train-12", owner="ada", time_limit_s=limit_s)
    known = SchedulerState(run_times={"ada\ntrain": times})
    assert learned_mix.expected_s(scheduling, known)(spec) == expected


def test_use_counts_half_after_a_half_life() -> None:
    before = SchedulerState(used={"q": 100.0}, offered=400.0, used_at=1000.0, held={})
    used, offered = learned_mix.faded_use(before, 0.0, 1000.0 + 3600, 3600)
    assert used == {"q": pytest.approx(50.0)}
    assert offered == pytest.approx(200.0)


def test_what_is_held_all_the_time_is_its_whole_share() -> None:
    state = SchedulerState(used_at=1.0, held={"q": 2.0})
    for hour in range(1, 200):
        at = 1.0 + hour * 3600
        used, offered = learned_mix.faded_use(state, 8.0, at, 7200)
        state = SchedulerState(used=used, offered=offered, used_at=at, held={"q": 2.0})
    assert state.used["q"] / state.offered == pytest.approx(0.25)


def test_use_before_the_window_does_not_count() -> None:
    """Two GPUs of eight for an hour, then nothing: gone after the window, to within a slice."""
    before = SchedulerState(used_at=36_000.0, held={"q": 2.0})
    used, offered, slices = learned_mix.use_in_window(before, 8.0, 39_600.0, 1e12, 7200)
    assert used == {"q": pytest.approx(7200.0)}
    assert offered == pytest.approx(28_800.0)
    for at, left in ((43_200.0, 7200.0), (45_000.0, 3600.0), (46_800.0 + 150, 0.0)):
        later = SchedulerState(used_at=39_600.0, slices=slices)
        used, offered, _ = learned_mix.use_in_window(later, 8.0, at, 1e12, 7200)
        assert used.get("q", 0.0) == pytest.approx(left, abs=300)
        assert offered == pytest.approx(8 * min(at - 36_000, 7200), abs=8 * 150)


def test_slices_of_a_window_are_few_and_fade() -> None:
    state = SchedulerState(used_at=1.0, held={"q": 2.0})
    for hour in range(1, 400):
        at = 1.0 + hour * 3600
        used, offered, slices = learned_mix.use_in_window(state, 8.0, at, 7200, 172_800)
        state = SchedulerState(
            used=used, offered=offered, used_at=at, held={"q": 2.0}, slices=slices
        )
    assert used["q"] / offered == pytest.approx(0.25)
    assert used["q"] == pytest.approx(2.0 * 7200 / math.log(2), rel=0.05)
    assert all(len(one) <= learned_mix.SLICES + 2 for one in slices.values())


@pytest.mark.parametrize(
    ("limit_s", "charged", "shorter"),
    [
        (10_800, "3 asked (GPUs times time limit)", "set a shorter timeLimit, wait"),
        (
            None,
            "24 asked (GPUs times the whole window, as it has no timeLimit)",
            "set a timeLimit, ",
        ),
    ],
)
def test_a_budget_says_what_would_be_within_it(
    limit_s: int | None, charged: str, shorter: str
) -> None:
    world = World(nodes=1, cpu=4, gpu=2)
    quota = desired.Quota("b", queue="default", budget_gpu_s=86_400.0, window_s=86_400)
    world.change_structure(quotas={"b": quota})
    world.commit(job("before", gpu=1, time_limit_s=79_200))
    world.settle()
    world.commit(job("a", gpu=1, time_limit_s=limit_s))
    world.settle()
    reason = world.memory.reasons[world.memory.jobs["a"].reason_key][0]
    assert charged in reason.message
    assert reason.unblocks.startswith(shorter)


def test_a_budget_is_settled_and_what_a_node_lost_is_given_back() -> None:
    quota = desired.Quota("b", queue="default", budget_gpu_s=7200.0, window_s=86_400)
    world = World(nodes=1, cpu=4, gpu=2)
    world.change_structure(quotas={"b": quota})
    world.commit(job("a", gpu=1, time_limit_s=7200), job("b", gpu=1, time_limit_s=3600))
    world.settle()
    assert world.states() == {"a": "Running", "b": "Pending"}
    reason = world.memory.reasons[world.memory.jobs["b"].reason_key][0]
    assert reason.code.value == "OverBudget"
    assert "2 GPU-hours in 1d: 0 spent, 2 reserved by running work, 1 asked" in reason.message
    world.advance(1800)
    world.end("a")
    world.settle()
    assert world.states() == {"a": "Succeeded", "b": "Running"}
    assert sum(world.memory.scheduler_state.spent["b"].values()) == pytest.approx(1800)


def test_what_ends_now_counts_for_the_starts_of_the_same_cycle() -> None:
    quota = desired.Quota("b", queue="default", budget_gpu_s=7200.0, window_s=86_400)
    world = World(nodes=1, cpu=4, gpu=2)
    world.change_structure(quotas={"b": quota})
    world.commit(*(job(name, gpu=1, time_limit_s=3600) for name in "ab"))
    world.settle()
    world.commit(job("long", gpu=1, time_limit_s=7200))
    world.settle()
    world.advance(1800)
    world.end("a")
    world.end("b")
    world.settle()
    assert world.states() == {"a": "Succeeded", "b": "Succeeded", "long": "Pending"}
    reason = world.memory.reasons[world.memory.jobs["long"].reason_key][0]
    assert "2 GPU-hours in 1d: 1 spent, 0 reserved by running work, 2 asked" in reason.message


def test_what_was_spent_comes_back_at_the_moment_that_is_woken_for() -> None:
    """Hours count whole, until their last second has left the window."""
    quota = desired.Quota("b", queue="default", budget_gpu_s=7200.0, window_s=86_400)
    world = World(nodes=1, cpu=4, gpu=1)
    world.change_structure(quotas={"b": quota})
    world.commit(job("a", gpu=1, time_limit_s=3600))
    world.settle()
    world.advance(600)
    world.end("a")
    hour_ends = (world.now // 3600 + 1) * 3600
    world.settle()
    world.commit(job("long", gpu=1, time_limit_s=7200))
    world.settle()
    assert world.states()["long"] == "Pending"
    world.advance(hour_ends + 86_400 - 1 - world.now)
    world.settle()
    assert world.states()["long"] == "Pending"
    world.advance(1)
    world.settle()
    assert world.states()["long"] == "Running"


def test_of_several_hours_each_is_woken_for_as_it_comes_back() -> None:
    """One that has just left the window is accounted until its cycle has ended."""
    quota = desired.Quota("b", queue="default", budget_gpu_s=7200.0, window_s=36_000)
    world = World(nodes=1, cpu=4, gpu=1)
    world.change_structure(quotas={"b": quota})
    backs = []
    for name, pause_s in (("a", 0), ("c", 5 * 3600)):
        world.advance(pause_s)
        world.commit(job(name, gpu=1, time_limit_s=3600))
        world.settle()
        world.advance(600)
        world.end(name)
        world.settle()
        backs.append((world.now // 3600 + 1) * 3600 + 36_000)
    world.commit(job("long", gpu=1, time_limit_s=7200))
    world.settle()
    world.advance(backs[0] - world.now)
    standing = world.cycle().schedule_inputs
    assert world.states()["long"] == "Pending"
    assert standing is not None
    assert standing.wake_at == backs[1]


def test_a_task_that_ends_before_its_siblings_has_spent_what_it_used() -> None:
    quota = desired.Quota("b", queue="default", budget_gpu_s=7200.0, window_s=86_400)
    world = World(nodes=1, cpu=8, gpu=4)
    world.change_structure(quotas={"b": quota})
    world.commit(job("gang", gpu=1, count=2, time_limit_s=3600))
    world.settle()
    world.commit(job("late", gpu=1, time_limit_s=3600))
    world.advance(1800)
    world.end("gang", index=0)
    world.settle()
    assert world.states() == {"gang": "Running", "late": "Pending"}
    reason = world.memory.reasons[world.memory.jobs["late"].reason_key][0]
    assert "0.5 spent, 1 reserved by running work, 1 asked" in reason.message
    world.end("gang", index=1)
    world.settle()
    assert world.states() == {"gang": "Succeeded", "late": "Running"}  # 1 spent of 2


def test_a_deadline_that_is_out_of_reach_is_told_at_once() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(
        job("first", time_limit_s=600, priority=90),
        job("late", deadline=world.now + 900, time_limit_s=600),
    )
    world.settle()
    assert world.memory.jobs["late"].message.startswith("its deadline can't be met by its time")
    assert world.events("DeadlineOutOfReach") == ["late"]
    world.end("first")
    world.settle()
    assert world.memory.jobs["late"].message == ""


@pytest.mark.parametrize("kept_back", ["room", "quota", "dependency", "hold"])
@pytest.mark.parametrize("without", [False, True])
def test_a_deadline_is_out_of_reach_at_once_whatever_it_waits_for(
    kept_back: str, *, without: bool
) -> None:
    world = World(nodes=1, cpu=1)
    if kept_back == "quota":
        quota = desired.Quota("none", queue="default", running=0)
        world.change_structure(quotas={"none": quota})
    others = (desired.Dependency("first"),) if kept_back == "dependency" else ()
    late = job("late", deadline=world.now + 3600, time_limit_s=7200, depends_on=others)
    late = msgspec.structs.replace(late, suspend=kept_back == "hold")
    world.commit(job("first", priority=90), late)
    world.settle()
    at = times.format_time(world.now - 3600)
    told = "its deadline can't be met by its time limit: it would have had to start by"
    assert world.memory.jobs["late"].message == f"{told} {at} at the latest"
    world.advance(60)
    world.settle()
    assert world.events("DeadlineOutOfReach") == ["late"]
    no_more = None if without else world.now + 9000
    later = msgspec.structs.replace(late, deadline=no_more)
    world.commit(job("first", priority=90), later)
    world.settle()
    assert world.memory.jobs["late"].message == ""


def test_a_deadline_is_told_to_be_out_of_reach_also_where_others_may_put_the_start_off() -> None:
    settings = desired.ClusterSettings(scheduling=desired.Scheduling(backfill="conservative"))
    world = World(nodes=1, cpu=2, settings=settings)
    world.commit(
        job("first", cpu=1, time_limit_s=600, priority=90),
        job("low", cpu=1, time_limit_s=900, priority=10),
    )
    world.settle()
    world.commit(
        job("high", cpu=2, time_limit_s=60, priority=80),
        job("late", cpu=2, deadline=world.now + 900, time_limit_s=600),
    )
    world.settle()
    expected = expected_of(world, "late")
    assert (expected.certain, expected.latest) == (False, None)
    assert world.events("DeadlineOutOfReach") == ["late"]


def expected_of(world: World, name: str) -> outcome.ExpectedStart:
    """Return the last expected start."""
    told = [one.expected for one in world.outcomes if one.expected is not None]
    return told[-1][name]


def test_who_starts_for_certain_is_told_by_when() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("first", time_limit_s=600), job("next", time_limit_s=600))
    world.settle()
    expected = expected_of(world, "next")
    assert (expected.certain, expected.latest) == (True, world.now + 600)


def test_a_job_that_runs_is_not_told_that_its_deadline_is_out_of_reach() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(
        job("first", time_limit_s=900, priority=90),
        job("late", deadline=world.now + 1000, time_limit_s=600),
    )
    world.settle()
    world.advance(500)
    assert world.memory.jobs["late"].message.startswith("its deadline can't be met by its time")
    world.end("first")
    world.settle()
    assert world.states() == {"first": "Succeeded", "late": "Running"}
    assert world.memory.jobs["late"].message == ""
    world.cycle()
    assert world.memory.jobs["late"].message == ""
    world.advance(60)
    world.end("late")
    world.settle()
    assert world.states()["late"] == "Succeeded"
    assert world.memory.jobs["late"].message == ""


def test_a_job_that_starts_at_once_is_never_told_of_its_deadline() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("short", deadline=world.now + 180, time_limit_s=300))
    world.settle()
    assert world.states() == {"short": "Running"}
    assert (world.memory.jobs["short"].message, world.events("DeadlineOutOfReach")) == ("", [])


def test_of_an_array_that_runs_in_part_that_is_told_of_what_waits() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("sweep", array_count=2, deadline=world.now + 900, time_limit_s=600))
    world.settle()
    at = times.format_time(world.now + 300)
    told = "its deadline can't be met by its time limit: what waits of it would have to start by"
    assert world.memory.jobs["sweep"].message == f"{told} {at} at the latest"


def test_a_deadline_of_a_job_without_time_limit_is_not_told_to_go_by_it() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(
        job("first", time_limit_s=600, priority=90),
        job("late", deadline=world.now + 300),
    )
    world.settle()
    assert world.memory.jobs["late"].message.startswith("its deadline can't be met any more: it")
