"""Workloads through the real controller, and the figures that follow."""

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest

from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason
from reconciler.model.values.resources import Resources
from reconciler.simulation.baselines import gpu_pool
from reconciler.simulation.traces import trace_replay, trace_results, workloads
from reconciler.simulation.traces.trace_results import JobResult, Occupancy, Run
from reconciler.simulation.traces.workloads import TraceJob, Workload
from tests.unit.core.world import job


def rows(*jobs: tuple[float, float, int]) -> Workload:
    return Workload(
        tuple(
            TraceJob(chr(ord("a") + number), submit, runs, size, "q")
            for number, (submit, runs, size) in enumerate(jobs)
        )
    )


def run(workload: Workload, nodes: int = 2, per_node: int = 4, **options: float) -> Run:
    structure = trace_replay.make_structure(nodes, per_node, workload.unit, {"q": nodes * per_node})
    return trace_replay.replay_rows(workload, structure, per_node, trace_replay.Options(**options))


def test_jobs_start_when_there_is_room() -> None:
    found = run(rows((0, 100, 8), (10, 50, 4), (20, 50, 4), (30, 10, 1)))
    assert [(j.start_s, j.end_s) for j in found.jobs] == [
        (0, 100), (100, 150), (100, 150), (150, 160),
    ]  # fmt: skip
    assert found.cycles <= 1 + 4 + 4
    assert {(s.node, s.units) for s in found.stretches if s.job == "a"} == {
        ("node-1", 4), ("node-2", 4),
    }  # fmt: skip


def test_a_cycle_every_so_often() -> None:
    found = run(rows((0, 100, 8), (10, 50, 4), (20, 50, 4)), cycle_every_s=60.0)
    assert [job.start_s for job in found.jobs] == [0, 120, 120]


def test_what_never_fits_never_starts_and_the_simulation_ends() -> None:
    found = run(rows((0, 10, 9), (1, 10, 2)))
    assert [job.start_s for job in found.jobs] == [None, 1]
    assert trace_results.figures(found).never_started == 1


def test_the_simulation_can_stop_in_between() -> None:
    found = run(rows((0, 100, 4), (50, 100, 4)), until_s=80.0)
    assert [job.end_s for job in found.jobs] == [None, None]
    assert [(s.begin_s, s.end_s) for s in found.stretches] == [(0, 80), (50, 80)]


def test_what_was_not_submitted_until_it_stopped_did_not_fail_to_start() -> None:
    found = run(rows((0, 10, 4), (70, 100, 8), (71, 10, 1), (100, 10, 4)), until_s=80.0)
    assert [job.name for job in found.jobs] == ["a", "b", "c"]
    assert (trace_results.never_started(found), found.later) == (["c"], ["d"])
    figures = trace_results.figures(found)
    assert (figures.jobs, figures.finished) == (4, 1)
    assert (figures.never_started, figures.not_submitted) == (1, 1)
    assert figures.utilisation == (40 + 8) / (8 * 71), "until the last that was submitted"


@pytest.mark.parametrize("policy", ["muster", *gpu_pool.POLICIES])
def test_a_time_limit_is_no_eviction_under_any_policy(policy: str) -> None:
    """Who runs as long as its limit to the second is done; a second more, and it is not."""
    workload = Workload(
        tuple(
            TraceJob(name, 0.0, runs_s, 4, "q", "", 100)
            for name, runs_s in (("a", 99.0), ("b", 100.0), ("c", 101.0))
        )
    )
    found = run(workload) if policy == "muster" else gpu_pool.run(policy, workload, 8)
    assert [(job.start_s, job.end_s) for job in found.jobs] == [(0, 99), (0, 100), (99, 199)]
    assert trace_results.timed_out(found) == ["c"]
    assert trace_results.never_started(found) == []
    figures = trace_results.figures(found)
    assert (figures.finished, figures.timed_out, figures.evictions, figures.lost) == (2, 1, 0, 0)
    assert figures.slowdown_mean == 1.0, "of what is done"
    assert figures.shortfall == 0, "it waits no more"


@pytest.mark.parametrize("policy", ["muster", *gpu_pool.POLICIES])
def test_a_time_limit_ends_work_of_which_nothing_else_tells(policy: str) -> None:
    workload = Workload((TraceJob("a", 0.0, 500.0, 4, "q", "", 100),))
    found = run(workload) if policy == "muster" else gpu_pool.run(policy, workload, 8)
    assert [(job.end_s, job.timed_out) for job in found.jobs] == [(100, True)]


@pytest.mark.parametrize(
    ("checkpoint_every_s", "end_s", "lost_unit_s"),
    [(None, 150 + 101, 4 * 100), (30.0, 150 + 101 - 90, 4 * 10)],
)
def test_what_an_eviction_costs(
    checkpoint_every_s: float | None, end_s: float, lost_unit_s: float
) -> None:
    """A borrower is evicted at 100; it goes on at 150, from its checkpoint or from nothing."""
    structure = trace_replay.make_structure(1, 4, "gpu", {"lender": 4, "borrower": 0})
    workload = Workload(
        (TraceJob("first", 0.0, 101.0, 4, "borrower"), TraceJob("due", 100.0, 50.0, 4, "lender"))
    )
    options = trace_replay.Options(checkpoint_every_s=checkpoint_every_s)
    found = trace_replay.replay_rows(workload, structure, 4, options)
    borrower, lender = found.jobs
    assert (lender.start_s, lender.end_s) == (100, 150)
    assert (borrower.start_s, borrower.end_s, borrower.evictions) == (0, end_s, 1)
    assert found.lost_unit_s == lost_unit_s


def test_a_job_is_cut_into_equal_tasks_that_fit_a_node() -> None:
    for size, tasks in ((1, 1), (8, 1), (16, 2), (12, 2), (9, 3), (11, 11)):
        made = trace_replay.make_job(TraceJob("a", 0, 1, size, "q"), per_node=8, unit="gpu")
        (group,) = made.groups
        assert group.count == tasks
        assert group.count * group.resources.gpu_milli == size * 1000


def test_a_desired_state_with_an_array() -> None:
    structure = trace_replay.make_structure(1, 2, "cpu", {"default": 2})
    array = job("sweep", cpu=1, array_count=4, parallelism=1, time_limit_s=100)
    wanted = desired.Desired(structure=structure, jobs={"sweep": array})
    drawn = trace_replay.drawn_runs(wanted, seed=1, default_s=60.0)
    assert [drawn("sweep", n) for n in range(4)] == [
        trace_replay.drawn_runs(wanted, seed=1, default_s=9.0)("sweep", n) for n in range(4)
    ]
    found = trace_replay.replay_state(wanted, drawn)
    assert [j.name for j in found.jobs] == [f"sweep[{n}]" for n in range(4)]
    ends = [j.end_s for j in found.jobs]
    starts = [j.start_s for j in found.jobs]
    assert starts == [0.0, *ends[:3]], "one after the other"


def elastic(name: str, minimum: int, most: int, **more: Any) -> desired.Job:
    made = job(name, cpu=1, count=most, **more)
    (group,) = made.groups
    return msgspec.structs.replace(made, groups=(msgspec.structs.replace(group, minimum=minimum),))


def test_an_elastic_job_has_started_with_as_many_tasks_as_are_enough() -> None:
    """It runs on two CPUs of the four that it could use, and is done all the same."""
    structure = trace_replay.make_structure(1, 2, "cpu", {"default": 2})
    found = trace_replay.replay(
        structure, [(0.0, elastic("grows", 1, 4))], lambda *_: 50.0, unit="cpu"
    )
    (grows,) = found.jobs
    assert (grows.start_s, grows.end_s, grows.evictions) == (0.0, 50.0, 0)
    assert {(s.begin_s, s.end_s) for s in found.stretches} == {(0.0, 50.0)}


def test_tasks_that_join_an_elastic_job_end_with_the_others() -> None:
    """They would else outlive the time limit of the job, which ends it undone."""
    structure = trace_replay.make_structure(1, 2, "cpu", {"default": 2})
    lengths = {"first": 40.0, "grows": 90.0}
    arrivals = [
        (0.0, job("first", cpu=1)), (1.0, elastic("grows", 1, 2, time_limit_s=100)),
    ]  # fmt: skip
    found = trace_replay.replay(structure, arrivals, lambda name, _: lengths[name], unit="cpu")
    grows = found.jobs[1]
    assert (grows.start_s, grows.end_s, grows.evictions) == (1.0, 91.0, 0)
    assert sorted((s.begin_s, s.end_s) for s in found.stretches if s.job == "grows") == [
        (1.0, 91.0), (40.0, 91.0),
    ]  # fmt: skip


def test_an_elastic_job_that_gives_up_a_task_was_not_evicted() -> None:
    structure = trace_replay.make_structure(1, 2, "cpu", {"owner": 1, "default": 1})
    lengths = {"due": 10.0, "grows": 50.0}
    arrivals = [(0.0, elastic("grows", 1, 2)), (20.0, job("due", cpu=1, queue="owner"))]
    found = trace_replay.replay(structure, arrivals, lambda name, _: lengths[name], unit="cpu")
    grows, due = found.jobs
    assert (due.start_s, due.end_s) == (20.0, 30.0)
    assert (grows.start_s, grows.end_s, grows.evictions) == (0.0, 50.0, 0)
    assert found.lost_unit_s == 0.0


def test_work_of_an_elastic_job_goes_on_whichever_of_its_tasks_do() -> None:
    """Its checkpoint is of the work of all, not of the task that ran longest."""
    ledger = trace_replay._Ledger("cpu", 20.0)
    ledger.add(elastic("grows", 1, 2), 0.0, lambda *_: 200.0)
    old, young = (
        records.AttemptRecord(
            id=f"grows-{index}",
            job="grows",
            run=1,
            job_key="default/grows",
            element=0,
            group="main",
            index=index,
            try_number=1,
            node="node-1",
            boot_id="",
            resources=Resources(1000, 0, 0),
            state=AttemptState.RUNNING,
            assigned_at=trace_replay.BEGIN,
        )
        for index in range(2)
    )
    ledger.started(old, trace_replay.BEGIN)
    ledger.started(young, trace_replay.BEGIN + 50)
    ledger.ended(old, trace_replay.BEGIN + 60, EndReason.PREEMPTED, 60.0)
    ledger.ended(young, trace_replay.BEGIN + 90, EndReason.PREEMPTED, 40.0)
    assert ledger.fate(old).runs_s == 200.0 - 80.0
    assert ledger.lost_unit_s == 20.0, "ten seconds of both, at 80"


def test_the_same_seed_gives_the_same_run() -> None:
    workload = workloads.with_limits(workloads.generate(3, 60, 16, 1.2), 3)
    structure = trace_replay.make_structure(4, 4, "gpu", workloads.guarantees(workload, 16))
    one, two = (trace_replay.replay_rows(workload, structure, 4) for _ in range(2))
    assert one == two
    at_once = [
        sum(s.units for s in one.stretches if s.begin_s <= at < s.end_s)
        for at in {s.begin_s for s in one.stretches}
    ]
    assert max(at_once) <= 16
    assert trace_results.figures(one).finished == 60


# -- figures


def made(jobs: list[JobResult], stretches: list[Occupancy], **more: Any) -> Run:
    return Run("p", 10, jobs, stretches, **more)


def test_figures_by_hand() -> None:
    jobs = [
        JobResult("a", "x", 10, 0.0, 100.0, 0.0, 100.0),
        JobResult("b", "y", 5, 0.0, 5.0, 100.0, 105.0),
        JobResult("c", "y", 11, 50.0, 5.0),
    ]
    stretches = [Occupancy("a", "x", "", 10, 0, 100), Occupancy("b", "y", "", 5, 100, 105)]
    found = trace_results.figures(made(jobs, stretches, lost_unit_s=51.25))
    assert (found.jobs, found.finished, found.never_started) == (3, 2, 1)
    assert (found.delay_mean_s, found.delay_p50_s) == (50.0, 50.0)
    assert found.slowdown_mean == (1.0 + 10.5) / 2, "five seconds count as ten"
    assert found.utilisation == 1.0, "from the first submission to the last, at 50"
    assert found.makespan_s == 105.0
    assert found.fairness == pytest.approx(11.5**2 / (2 * (1 + 10.5**2)))
    assert found.lost == 51.25 / 1025


def test_nothing_has_no_figures() -> None:
    found = trace_results.figures(made([], []))
    assert (found.delay_p99_s, found.utilisation, found.fairness, found.shortfall) == (0, 0, 1, 0)


def test_a_queue_below_its_guarantee() -> None:
    """For ten seconds y waits with 4 of 6; its job of 8 is larger and has no claim."""
    jobs = [
        JobResult("a", "x", 10, 0.0, 10.0, 0.0, 10.0),
        JobResult("b", "y", 4, 0.0, 10.0, 10.0, 20.0),
        JobResult("c", "y", 8, 0.0, 10.0, 20.0, 30.0),
    ]
    stretches = [
        Occupancy("a", "x", "", 10, 0, 10),
        Occupancy("b", "y", "", 4, 10, 20),
        Occupancy("c", "y", "", 8, 20, 30),
    ]
    found = made(jobs, stretches, guaranteed={"x": 4, "y": 6})
    assert trace_results.shortfall(found) == 40 / (40 + (40 + 40 + 60))


def test_steps_hold_until_the_next() -> None:
    steps = trace_results.steps([(5.0, 2.0), (1.0, 1.0), (5.0, -1.0), (9.0, -2.0)])
    assert steps.at(np.array([0.0, 1.0, 4.9, 5.0, 8.0, 9.0, 99.0])).tolist() == [
        0,
        1,
        1,
        2,
        2,
        0,
        0,
    ]
    assert trace_results.steps([]).at(np.array([1.0])).tolist() == [0]


def test_the_first_estimate_of_a_start_is_held_against_what_happened() -> None:
    """Limits of 100 s and runs of 40 s: what waits starts 60 s before it was expected to."""
    waiting = tuple(TraceJob(name, 0.0, 40.0, 1, "q", limit_s=100) for name in ("first", "second"))
    found = run(Workload(waiting), nodes=1, per_node=1)
    assert [job.start_s for job in found.jobs] == [0, 40]
    (told,) = found.estimates
    assert told.started_s - told.expected_s == -60.0


def test_what_waits_is_noted_again_each_hour() -> None:
    rows = (
        TraceJob("first", 0.0, 9000.0, 1, "q", limit_s=9000),
        TraceJob("second", 0.0, 40.0, 1, "q", limit_s=100),
    )
    found = run(Workload(rows), nodes=1, per_node=1)
    assert [one.job for one in found.estimates] == ["second"]
    assert {one.job for one in found.retold} == {"second"}
    times = [one.told_s for one in found.retold]
    assert len(times) > 1
    assert all(later - sooner >= 3600 for sooner, later in itertools.pairwise(times))
    assert [one.started_s for one in found.retold] == [9000.0] * len(times)
