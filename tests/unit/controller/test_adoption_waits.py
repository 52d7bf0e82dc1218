"""How long an adoption waits for nodes that are not heard."""

import itertools
from typing import Any

import msgspec
import pytest

from reconciler.controller import adoption
from reconciler.core import observed_state
from reconciler.core.nodes import health
from reconciler.model import desired
from reconciler.model.state import adoption_state, records
from tests.unit.core.world import World, job

_LONG_S = 30 * 86_400
_GRACES: dict[str, tuple[int, dict[str, Any], int]] = {
    # the grace of the pool, fields of the job, and for how long is waited after the leases
    "of the pool": (45, {}, 45),
    "of the job": (45, {"grace_s": 90}, 90),
    "of the job, cut": (45, {"grace_s": _LONG_S}, 600),
    "of its checkpoint": (45, {"checkpoint": desired.Checkpoint(grace_s=120)}, 120),
    "of its checkpoint, cut": (45, {"checkpoint": desired.Checkpoint(grace_s=_LONG_S)}, 600),
    "of the pool, which has no bound": (7200, {"grace_s": _LONG_S}, 7200),
}


@pytest.mark.parametrize(("pool_s", "fields", "expected_s"), _GRACES.values(), ids=list(_GRACES))
def test_an_adoption_waits_for_graces_as_they_are_in_force(
    pool_s: int, fields: dict[str, Any], expected_s: int
) -> None:
    scheduling = desired.Scheduling(grace_max_s=600)
    world = World(settings=desired.ClusterSettings(lease_s=100, scheduling=scheduling))
    pool = msgspec.structs.replace(world.pool, grace_s=pool_s)
    structure = msgspec.structs.replace(world.structure, pools={pool.name: pool})
    observed = observed_state.ObservedState(records.Observed(), leader_since=world.now)
    kept = adoption_state.AdoptionState(pending=True, why="told")
    adopting = adoption.Adoption(kept, observed, itertools.count(2))
    adopting.in_force(desired.Desired(1, structure, {"a": job("a", **fields)}))
    waits_s = adopting.state.ready_at - world.now
    assert waits_s == 100 + expected_s + health.LEASE_MARGIN_S
