"""Estimated starts after jobs that were told such waits have started."""

from typing import Any

import msgspec
import pytest

from reconciler.core.snapshot import start_history
from reconciler.model.state import records, scheduler_state
from reconciler.model.state.states import JobState
from reconciler.scheduling import decisions
from tests.simulation.test_invariants import record
from tests.unit.core.world import World, job

NOW = 10_000.0


class Jobs:
    """Records by name, as a cycle has them."""

    def __init__(self, **of: records.JobRecord) -> None:
        self.of = of

    def record_of(self, name: str) -> records.JobRecord | None:
        return self.of.get(name)


def begun(name: str, at: float) -> records.JobRecord:
    return msgspec.structs.replace(record(job(name), JobState.RUNNING), started_at=at)


#: One job for each letter, without GPUs.
WAITING: Any = Jobs(**{name: record(job(name), JobState.PENDING) for name in "abcdefg"})


def renewed(
    state: scheduler_state.SchedulerState, now: float, jobs: Jobs, **waits_s: float
) -> scheduler_state.SchedulerState:
    estimates = {name: decisions.Estimate(now + wait_s) for name, wait_s in waits_s.items()}
    return start_history.renewed(state, jobs, estimates, now)  # type: ignore[arg-type]


def test_the_first_estimate_counts_until_the_job_starts() -> None:
    waits = record(job("a"), JobState.PENDING)
    told = renewed(scheduler_state.NOTHING, NOW, Jobs(a=waits), a=100.0)
    (first,) = told.told_starts.values()
    assert (first.order, first.at, first.wait_s) == (waits.order, NOW, 100.0)
    again = renewed(told, NOW + 50, Jobs(a=waits), a=500.0)
    assert again is told
    started = begun("a", NOW + 150)
    done = renewed(again, NOW + 160, Jobs(a=started))
    assert (done.told_starts, done.start_ratios) == ({}, {0: (1.5,)})


@pytest.mark.parametrize(
    "jobs",
    [
        Jobs(),
        Jobs(a=record(job("a"), JobState.HELD)),
        Jobs(a=msgspec.structs.replace(record(job("a"), JobState.PENDING), order=7)),
    ],
)
def test_who_leaves_is_held_or_comes_again_tells_nothing(jobs: Jobs) -> None:
    before = renewed(scheduler_state.NOTHING, NOW, Jobs(a=record(job("a"), JobState.PENDING)), a=9)
    after = renewed(before, NOW + 99, jobs)
    assert (after.told_starts, after.start_ratios) == ({}, {})


def test_a_job_that_was_changed_tells_nothing_of_what_was_told_before() -> None:
    """Else whoever puts jobs off that were told a short wait makes others' estimates long."""
    waits = record(job("a"), JobState.PENDING)
    told = renewed(scheduler_state.NOTHING, NOW, Jobs(a=waits), a=100.0)
    later = msgspec.structs.replace(waits, spec=job("a", not_before=NOW + 9e6))
    changed = renewed(told, NOW + 50, Jobs(a=later))
    assert (changed.told_starts, changed.start_ratios) == ({}, {})
    anew = renewed(told, NOW + 50, Jobs(a=later), a=400.0)  # what it is told now counts
    assert [(one.at, one.wait_s) for one in anew.told_starts.values()] == [(NOW + 50, 400.0)]


def test_jobs_that_are_put_off_spoil_no_estimates() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("runs", owner="b@x", time_limit_s=100))
    world.settle()
    names = [f"m{number}" for number in range(2 * start_history.RATIOS_NEEDED)]
    world.commit(*[job(name, time_limit_s=1) for name in names])
    world.settle()
    assert set(world.memory.scheduler_state.told_starts) == set(names)
    far = world.now + 1e7
    world.commit(*[job(name, time_limit_s=1, not_before=far) for name in names])
    world.settle()
    world.end("runs")
    world.advance(start_history.OVERDUE_S + 100)
    world.commit(job("kick", time_limit_s=100))
    world.settle()
    assert 20.0 not in [
        one for of in world.memory.scheduler_state.start_ratios.values() for one in of
    ]


def test_a_job_that_never_starts_counts_as_very_late() -> None:
    waits = Jobs(a=record(job("a"), JobState.PENDING))
    told = renewed(scheduler_state.NOTHING, NOW, waits, a=600.0)
    assert renewed(told, NOW + 11_999, waits).start_ratios == {}
    assert renewed(told, NOW + 12_000, waits).start_ratios == {1: (20.0,)}


def test_what_is_remembered_is_bounded() -> None:
    names = [f"j{number}" for number in range(2 * start_history.WATCHED_MAX)]
    jobs = Jobs(**{name: record(job(name), JobState.PENDING) for name in names})
    told = renewed(scheduler_state.NOTHING, NOW, jobs, **dict.fromkeys(names, 60.0))
    assert len(told.told_starts) == start_history.WATCHED_MAX
    started = Jobs(**{name: begun(name, NOW + 60) for name in names})
    done = renewed(told, NOW + 60, started)
    assert len(done.start_ratios[0]) == start_history.WATCHED_MAX
    for _ in range(start_history.RATIOS_MAX):
        done = renewed(renewed(done, NOW, jobs, a0=60.0), NOW + 60, started)


RATIOS = (1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 6.0)


@pytest.mark.parametrize(
    ("ratios", "wait_s", "at", "between"),
    [
        (RATIOS, 100.0, 200.0, (100.0, 600.0)),
        (RATIOS, 0.0, 30.0, (15.0, 90.0)),  # the time to start is most of it
        (RATIOS, 400.0, 400.0, ()),  # of such waits nothing is known
        (RATIOS[:7], 100.0, 100.0, ()),  # too few
        (RATIOS, -5.0, -5.0, ()),  # it could have started: what it waits for is told by its reason
    ],
)
def test_an_estimate_is_corrected_by_the_middle_and_shown_with_its_spread(
    ratios: tuple[float, ...], wait_s: float, at: float, between: tuple[float, ...]
) -> None:
    state = scheduler_state.SchedulerState(start_ratios={0: ratios})
    estimates = {"a": decisions.Estimate(NOW + wait_s)}
    found = start_history.expected_starts(state, WAITING, estimates, NOW)["a"]
    assert found.at - NOW == at
    assert tuple(moment - NOW for moment in found.between) == between


@pytest.mark.parametrize(
    ("gpus", "known", "factor"),
    [
        (8, {}, 1),
        (8, {8: 4.0, 1: 2.0}, 4),
        (16, {8: 4.0, 1: 2.0}, 4),  # no size beyond is kept apart
        (1, {8: 4.0, 1: 2.0}, 2),
        (4, {8: 4.0}, 4),  # of another size, but of such a wait
        (0, {8: 4.0}, 4),
    ],
)
def test_jobs_are_told_what_jobs_of_their_size_have_waited(
    gpus: int, known: dict[int, float], factor: float
) -> None:
    """Whole nodes come free later than as many GPUs on several."""
    state = scheduler_state.NOTHING
    for size, ratio in known.items():
        names = [f"s{number}" for number in range(start_history.RATIOS_NEEDED)]
        told = {name: record(job(name, gpu=size), JobState.PENDING) for name in names}
        state = renewed(state, NOW - 900, Jobs(**told), **dict.fromkeys(names, 100.0))
        begun_at = NOW - 900 + 100 * ratio
        ran = {
            name: msgspec.structs.replace(one, state=JobState.RUNNING, started_at=begun_at)
            for name, one in told.items()
        }
        state = renewed(state, NOW, Jobs(**ran))
    waits: Any = Jobs(a=record(job("a", gpu=gpus), JobState.PENDING))
    estimates = {"a": decisions.Estimate(NOW + 100)}
    found = start_history.expected_starts(state, waits, estimates, NOW)["a"]
    assert found.at - NOW == 100 * factor


def test_a_bound_that_holds_is_never_passed() -> None:
    state = scheduler_state.SchedulerState(start_ratios={0: RATIOS})
    estimates = {"a": decisions.Estimate(NOW + 100, certain=True, latest=NOW + 150)}
    found = start_history.expected_starts(state, WAITING, estimates, NOW)["a"]
    assert (found.at, found.latest) == (NOW + 150, NOW + 150)
    assert found.between == (NOW + 100, NOW + 150)


def test_a_cluster_learns_from_its_own_queue() -> None:
    """Each job runs twice as long as those of its name did, so that waits are twice as long."""
    world = World(nodes=1, cpu=1)
    names = [f"j{number}" for number in range(14)]
    world.commit(*[job(name, time_limit_s=100) for name in names])
    world.settle()
    for name in names:
        world.advance(50)
        world.end(name)
    known = world.memory.scheduler_state.start_ratios
    assert sum(map(len, known.values())) >= 10
    assert max(max(ratios) for ratios in known.values()) <= 1.0  # limits are twice the run time


def test_estimates_are_made_again_when_the_first_has_passed() -> None:
    world = World(nodes=1, cpu=1)
    for number in range(12):  # such jobs take 30 s as a rule
        world.commit(job(f"h{number}", time_limit_s=600.0))
        world.settle()
        world.advance(30)
        world.end(f"h{number}")
    world.commit(*[job(name, time_limit_s=600.0) for name in ("a", "b", "c")])
    world.settle()
    told = world.outcomes[-1].wake_at
    assert told == world.now + 30
    world.now += 30
    result = world.cycle()
    assert result.expected is not None
    assert all(one.at > world.now for one in result.expected.values()), result.expected
    assert result.wake_at is not None
    assert result.wake_at >= world.now + start_history.AGAIN_S


@pytest.mark.parametrize(
    ("first_in_s", "work", "again_in_s"),
    [(1, 0, 15), (1, 700, 15), (1, 10_000, 200), (1, 10**6, 300), (40, 36, 40), (400, 10_000, 400)],
)
def test_a_large_cluster_at_rest_makes_estimates_again_less_often(
    first_in_s: int, work: int, again_in_s: int
) -> None:
    expected = start_history.expected_starts(
        scheduler_state.NOTHING,
        WAITING,
        {"a": decisions.Estimate(NOW + first_in_s, certain=True)},
        NOW,
    )
    assert start_history.lapses_at(expected, NOW, work) == NOW + again_in_s
    assert start_history.lapses_at({}, NOW, work) is None


def test_of_short_waits_the_longer_one_is_told_so() -> None:
    state = scheduler_state.SchedulerState(start_ratios={0: (0.5,) * start_history.RATIOS_NEEDED})
    estimates = {name: decisions.Estimate(NOW + 5 * place) for place, name in enumerate("abcdefg")}
    expected = start_history.expected_starts(state, WAITING, estimates, NOW)
    told = [expected[name].at for name in "abcdefg"]
    assert told == sorted(set(told))
