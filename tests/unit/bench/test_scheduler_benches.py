"""Small versions of the benchmarks of the scheduler alone, so that they go on measuring."""

import dataclasses
from pathlib import Path
from types import ModuleType

import pytest

from bench import (
    consolidate,
    fill,
    live,
    mixes,
    queues,
    reclaim,
    scale,
    situations,
    topology,
    unschedulable,
)


@pytest.mark.parametrize(
    ("bench", "arguments", "names"),
    [
        (fill, ["--nodes=4"], {"fill_s", "fill_cpu_s"}),
        (reclaim, ["--nodes=20"], {f"reclaim_{c}{s}" for c in "abc" for s in ("_s", "_cpu_s")}),
        (consolidate, ["--nodes=24"], {"consolidate_s", "consolidate_cpu_s", "moves"}),
        (
            live,
            ["--nodes=10", "--jobs=100"],
            {"first_s", "placements", "arrival_s", "end_s", "report_s", "memory"},
        ),
        (unschedulable, ["--nodes=12"], {"unschedulable_s", "unschedulable_cpu_s"}),
        (
            topology,
            ["--zones=1"],
            {
                f"topology_{case}{s}"
                for case in ("preferred_rack", "no_topology", "required_zone")
                for s in ("_s", "_cpu_s")
            },
        ),
    ],
)
def test_a_small_run_decides_what_it_should(
    bench: ModuleType, arguments: list[str], names: set[str]
) -> None:
    rows = bench.run(arguments)
    assert {row["name"] for row in rows} == names
    assert all(row["value"] > 0 for row in rows)


def test_the_moves_of_a_small_consolidation_are_the_fewest() -> None:
    row = next(row for row in consolidate.run(["--nodes=24"]) if row["name"] == "moves")
    assert row["met"] is True


def test_wrong_decisions_are_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="started: 3, expected 4"):
        situations.expect(3, 4, "started")


def _load(jobs: int) -> queues.Load:
    classes = (
        queues.JobClass("small", 1, 50, 10 * jobs, 200, 100),
        queues.JobClass("large", 20, 200, jobs, 1000, 1200),
    )
    return queues.Load("small", 1, 2, classes, 1.0)


@pytest.mark.parametrize("preempt", [True, False])
def test_all_jobs_of_many_queues_end(preempt: bool) -> None:
    load = _load(3)
    found = queues.simulate(load, preempt=preempt)
    assert found.ended == 2 * 33
    assert found.makespan_ms / 1000 >= queues.bound_s(load)
    assert {name: len(waits) for name, waits in found.admission_ms.items()} == {
        "small": 60,
        "large": 6,
    }


def test_who_others_were_evicted_for_starts_before_these_come_back() -> None:
    """Else the queues of this cohort took the same CPUs from each other for ever."""
    first = (15, 3, 2)
    classes = tuple(
        dataclasses.replace(one, count=count)
        for one, count in zip(queues.W1.classes, first, strict=True)
    )
    load = queues.Load("begin", 1, queues.W1.queues, classes, 1.0)
    assert queues.simulate(load).ended == queues.W1.queues * sum(first)


def test_without_preemption_nobody_is_evicted_within_guarantees() -> None:
    assert queues.simulate(_load(2), preempt=False).evictions == 0


def test_work_that_was_evicted_is_told_apart_from_what_nobody_used() -> None:
    """0.2 of the small one's second is lost between the ends of two large ones, nothing idles."""
    classes = (
        queues.JobClass("small", 20, 50, 1, 1000, 0),
        queues.JobClass("large", 20, 200, 2, 1000, 1200),
    )
    load = queues.Load("gap", 1, 1, classes, 1.0)
    found = queues.simulate(load)
    assert (found.makespan_ms, found.evictions, found.lost_ms) == (3200, 1, 20 * 200)
    assert queues.spent(load, found) == (1 / 16, 0)


def test_a_small_cluster_fills_and_stays_full() -> None:
    found = scale.measure(40, 400, 2)
    assert found["placements"] > 60
    assert len(found["steady"]) == 2


@pytest.mark.parametrize("trait", [*mixes.TRAITS, "all"])
def test_every_mix_is_scheduled(trait: str) -> None:
    found = scale.measure(40, 400, 1, traits=mixes.parse(trait))
    assert found["placements"] > 60
    assert found["single"].keys() == {"arrival", "end", "report"}


def test_a_trait_changes_no_other_draw() -> None:
    plain = scale.Bed(10, 200, 1)
    varied = scale.Bed(10, 200, 1, {"gangs", "limits"})
    assert [job.queue for job in plain.jobs.values()] == [j.queue for j in varied.jobs.values()]
    assert {job.time_limit_s for job in plain.jobs.values()} == {None}
    assert {job.groups[0].count for job in varied.jobs.values()} == {1, 2, 4, 8}


def test_an_unknown_mix_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="there is no mix 'gang': name some of plain, limits"):
        mixes.parse("limits,gang")


def test_scale_writes_its_curve(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    rows = scale.run(["--nodes=80", "--jobs=800", "--cycles=1", f"--csv={path}"])
    assert {"first_placements_per_s", "steady_s"} <= {row["name"] for row in rows}
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in lines] == ["nodes", "20", "40", "80"]
