"""Pools that are declared with fewer GPUs than their running work holds."""

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.values.resources import Resources
from tests.unit.core import world


def shrunk(pool: desired.Pool, gpus: int) -> desired.Pool:
    """Return the pool with fewer declared GPUs."""
    has = pool.node_resources
    fewer = Resources(has.cpu_milli, has.memory_bytes, gpus * 1000)
    return msgspec.structs.replace(pool, node_resources=fewer)


@pytest.mark.parametrize("gpus", [0, 1, 3])
def test_work_on_devices_that_are_declared_no_more_ends_and_others_wait_for_it(gpus: int) -> None:
    """What such work frees when it ends counts only as far as there are devices then."""
    place = world.World(nodes=1, cpu=8, gpu=4)
    place.commit(world.job("holds", gpu=4, time_limit_s=600))
    place.settle()
    (pool,) = place.structure.pools.values()
    place.change_structure(pools={pool.name: shrunk(pool, gpus)})
    place.commit(world.job("waits", gpu=1, time_limit_s=600))
    place.settle()
    assert place.states() == {"holds": "Running", "waits": "Pending"}
    place.end("holds")
    place.settle()
    assert place.state("waits").value == ("Running" if gpus else "Pending")
