"""Work that has just begun is not preempted before its minimum run time."""

import msgspec
import pytest

from reconciler.model import desired
from tests.unit.core.world import World, job

OWED = desired.Queue(
    name="owner", guaranteed=desired.QuotaAmounts(cpu_milli=4000), min_runtime_s=10_000
)
LOSER = desired.Queue(name="loser")


def full(*, cluster_s: int, queue_s: int | None) -> World:
    """Return a node that a queue without a guarantee holds whole, with minimum run times."""
    settings = desired.ClusterSettings(scheduling=desired.Scheduling(min_runtime_s=cluster_s))
    loser = msgspec.structs.replace(LOSER, min_runtime_s=queue_s)
    world = World(nodes=1, cpu=4, queues=(OWED, loser), settings=settings)
    world.commit(job("low", queue="loser", cpu=4, priority=10))
    world.settle()
    assert world.states() == {"low": "Running"}
    return world


@pytest.mark.parametrize(
    ("cluster_s", "queue_s", "minimum_s"),
    [(0, None, 0), (300, None, 300), (300, 20, 20), (0, 20, 20), (300, 0, 0)],
)
@pytest.mark.parametrize("high", ["owner", "loser"])
def test_nobody_leaves_before_its_minimum_and_time_wakes_the_cycle_then(
    cluster_s: int, queue_s: int | None, minimum_s: int, high: str
) -> None:
    """For a guarantee and for priority alike. The queue's own setting counts before the
    cluster's.
    """
    world = full(cluster_s=cluster_s, queue_s=queue_s)
    began = world.now
    world.commit(job("low", queue="loser", cpu=4, priority=10), job("high", queue=high, cpu=4))
    world.settle()
    while world.now < began + minimum_s:
        assert world.states() == {"high": "Pending", "low": "Running"}
        wakes_at = world.outcomes[-1].wake_at
        assert wakes_at is not None
        assert world.now < wakes_at <= began + minimum_s
        world.advance(wakes_at - world.now)
    assert world.states() == {"high": "Running", "low": "Pending"}
    assert world.now == began + minimum_s
