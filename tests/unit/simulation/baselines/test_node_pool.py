"""The peers on nodes: the same as over one number where nodes don't matter, and fragmented where
they do."""

import pytest

from reconciler.simulation.baselines import gpu_pool, node_pool
from reconciler.simulation.traces import trace_results
from reconciler.simulation.traces.workloads import TraceJob, Workload


def workload(*rows: tuple[float, float, int, int]) -> Workload:
    """Jobs by (submission, run time, size, limit)."""
    return Workload(
        tuple(
            TraceJob(f"j{number}", submit_s, runs_s, size, "main", limit_s=limit_s)
            for number, (submit_s, runs_s, size, limit_s) in enumerate(rows)
        )
    )


def starts(run: trace_results.Run) -> list[float | None]:
    return [job.start_s for job in run.jobs]


SINGLES = workload(
    *((float(n), 40.0 + 7 * (n % 5), 1, 60 + 11 * (n % 7)) for n in range(60)), (9.0, 5.0, 99, 10)
)


@pytest.mark.parametrize("name", node_pool.POLICIES)
def test_one_gpu_each_is_as_over_a_number_of_gpus(name: str) -> None:
    assert starts(node_pool.run(name, SINGLES, 2, 4)) == starts(gpu_pool.run(name, SINGLES, 8))


@pytest.mark.parametrize("name", node_pool.POLICIES)
def test_gaps_of_two_nodes_hold_no_whole_one(name: str) -> None:
    rows = workload((0, 100, 3, 100), (0, 100, 3, 100), (1, 10, 2, 10))
    assert starts(gpu_pool.run(name, rows, 8)) == [0, 0, 1]
    assert starts(node_pool.run(name, rows, 2, 4)) == [0, 0, 100]


def test_who_overtakes_leaves_the_head_its_nodes() -> None:
    """The head waits for the node that is free at 50; what runs beyond goes to the other."""
    rows = workload((0, 50, 4, 50), (0, 200, 2, 200), (1, 10, 4, 10), (2, 90, 2, 90), (3, 9, 1, 9))
    assert starts(node_pool.run("easy", rows, 2, 4)) == [0, 0, 50, 2, 60]
