"""What could never start is no demand: it takes no share from others."""

import pytest

from reconciler.scheduling import lines, unfit
from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import Situation


def shared() -> Situation:
    """Four nodes of two GPUs; one queue runs on all of them, another one asks for half of them."""
    s = Situation()
    for index in range(4):
        s.node(f"n{index}", gpu=2)
    s.queue("owner", guaranteed=0).queue("a", limit=2).queue("b").queue("c")
    s.queue_list[0].guaranteed = (0, 0, 0)
    for index in range(8):
        s.job(f"b{index}", "b", gpu=1, on=(f"n{index // 2}",))
    for index in range(4):
        s.job(f"c{index}", "c", gpu=1)
    return s


@pytest.mark.parametrize(
    ("queue", "job"),
    [
        pytest.param("a", {"gpu": 3, "tasks": 1}, id="a task larger than any node"),
        pytest.param("owner", {"gpu": 2, "tasks": 5}, id="a gang larger than all nodes"),
        pytest.param("owner", {"gpu": 1, "cpu": 65}, id="more CPUs than any node has"),
        pytest.param("a", {"gpu": 1, "tasks": 3}, id="more than the limit of its queue"),
        pytest.param("owner", {"gpu": 1, "pool": "none"}, id="nodes that are not there"),
    ],
)
def test_what_never_starts_takes_no_share_from_others(queue: str, job: dict[str, int]) -> None:
    s = shared().job("never", queue, **job)  # type: ignore[arg-type]
    decisions = s.decide()
    assert [who for _, who in situations.evicted(decisions)] == [f"c{i}" for i in range(4)]
    assert decisions.shares[3].fair_share[2] == 4000


def test_firm_work_beyond_its_guarantee_takes_none_either() -> None:
    s = shared()
    s.queue_list[0].guaranteed = (0, 0, 2000)
    s.job("never", "owner", gpu=1, tasks=3, preemptible=False)
    assert s.decide().shares[3].fair_share[2] == 4000


def test_what_may_start_still_counts() -> None:
    s = shared().job("may", "owner", gpu=2, tasks=2)
    assert s.decide().shares[3].fair_share[2] < 4000


def test_what_waits_for_a_window_or_for_some_pool_counts() -> None:
    s = shared().job("later", "a", gpu=2)
    s.window("w", 10, 50, [True] * 4)
    snapshot = s.snapshot()
    columns = lines.columns_of(snapshot.lines)
    assert not unfit.lines(snapshot, columns).any()
