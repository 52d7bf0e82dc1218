"""Reasons that fault stories found to be false."""

from typing import Any

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.values.resources import Resources
from tests.unit.core.world import VirtualNode, World, job


def test_a_window_to_come_does_not_make_work_impossible() -> None:
    world = World(nodes=1)
    window = desired.Reservation(
        name="service",
        nodes=("n0",),
        starts_at=world.now + 300,
        ends_at=world.now + 400,
        maintenance=True,
    )
    world.change_structure(reservations={"service": window})
    world.commit(job("endless"), job("huge", cpu=99))
    world.settle()
    assert world.reason("endless") != "NeverFits"
    (reason, *_) = world.memory.reasons[world.memory.jobs["endless"].reason_key]
    assert [step.why for step in reason.funnel] == ["reserved before it could end (service)"]
    assert world.reason("huge") == "NeverFits"
    world.advance(401)
    assert world.state("endless").value == "Running"


def test_elements_that_a_quota_holds_back_say_so() -> None:
    world = World(nodes=2)
    quota = desired.Quota("some", user="ann", resources=desired.QuotaAmounts(cpu_milli=2000))
    world.change_structure(quotas={"some": quota})
    world.commit(
        job("wide", owner="ann", array_count=4), job("narrow", array_count=4, parallelism=1)
    )
    result = world.cycle()
    assert len(result.actions) == 3
    assert world.reason("wide") == "OverLimit"
    assert world.reason("narrow") == "ArrayLimit"
    first = world.memory.reasons[world.memory.jobs["narrow"].reason_key]
    world.settle()
    assert world.reason("wide") == "OverLimit"
    then = world.memory.reasons[world.memory.jobs["narrow"].reason_key]
    assert [one.message for one in first] == ["1 element runs at once (parallelism)"]
    assert then == first, "the same words in the cycle that starts some and in the next ones"


LESS = "ask for less"
ADDED = "add nodes that can hold it"
USABLE = "add nodes that it may use"
LABEL = "add label disk=fast to a node, or change spec.nodeSelector"
TAINT = "name taint kept=x in spec.tolerations"


@pytest.mark.parametrize(
    ("asked", "unblocks"),
    [
        pytest.param({"cpu": 99}, (ADDED, LESS), id="too large for all"),
        pytest.param({"node_selector": {"disk": "fast"}}, (LABEL, USABLE), id="a label"),
        pytest.param(
            {"node_selector": {"disk": "fast"}, "cpu": 99}, (USABLE,), id="too large, and a label"
        ),
        pytest.param({"cpu": 8}, (TAINT, ADDED, LESS), id="the large node is tainted"),
        pytest.param(
            {"pools": ("tainted",)}, ("name another pool too", TAINT, USABLE), id="its pool is"
        ),
        pytest.param(
            {"pools": ("tainted",), "node_selector": {"disk": "fast"}}, (USABLE,), id="two of them"
        ),
    ],
)
def test_what_never_fits_says_what_alone_would_mend_it(
    asked: dict[str, Any], unblocks: tuple[str, ...]
) -> None:
    """``pool`` has nodes of 4 CPUs; ``tainted`` one of 16."""
    world = World(nodes=2)
    tainted = msgspec.structs.replace(
        world.pool,
        name="tainted",
        nodes=("t0",),
        node_resources=Resources(16_000, world.pool.node_resources.memory_bytes, 0),
        taints=(desired.Taint("kept", "x"),),
    )
    world.change_structure(pools={**world.structure.pools, "tainted": tainted})
    world.nodes["t0"] = VirtualNode("t0", tainted)
    world.commit(job("j", **asked))
    world.settle()
    (reason,) = world.memory.reasons[world.memory.jobs["j"].reason_key]
    assert reason.code == "NeverFits"
    assert reason.unblocks == ", or ".join(unblocks)
    if TAINT in unblocks:
        told = {step.why: step.count for step in reason.funnel}
        assert told["with taint kept=x, not tolerated"] == 1


def beside(name: str, *affinities: desired.JobAffinity, **more: Any) -> desired.Job:
    """Return a job that has to be near other jobs, or apart from them."""
    return job(name, affinities=affinities, time_limit_s=300, **more)


NEAR_SERVER = desired.JobAffinity((("job", "server"),))
APART_FROM_LONG = desired.JobAffinity((("job", "long"),), apart=True)


@pytest.mark.parametrize(
    ("affinities", "told"),
    [
        ((NEAR_SERVER,), "the work that it must be near starts"),
        ((APART_FROM_LONG,), "the work that it stays apart from ends"),
        (
            (APART_FROM_LONG, NEAR_SERVER),
            "the work that it stays apart from ends, or until the work that it must be near starts",
        ),
    ],
)
def test_who_is_kept_from_nodes_by_other_work_is_told_of_what_it_asks_alone(
    affinities: tuple[desired.JobAffinity, ...], told: str
) -> None:
    world = World(nodes=1, cpu=4)
    world.commit(job("long", time_limit_s=600))
    world.settle()
    world.commit(beside("j", *affinities))
    world.settle()
    (reason, *_) = world.memory.reasons[world.memory.jobs["j"].reason_key]
    assert reason.unblocks == f"wait until {told}"


def test_who_stays_apart_from_what_ran_before_it_came_has_room_reserved_when_that_ends() -> None:
    """Running work is matched again with labels that nobody used before."""
    world = World(nodes=1, cpu=4)
    world.commit(job("long", time_limit_s=600))
    world.settle()
    world.advance(60)
    world.commit(job("other", time_limit_s=600))
    world.settle()
    world.commit(beside("j", APART_FROM_LONG))
    world.settle()
    (reason, *_) = world.memory.reasons[world.memory.jobs["j"].reason_key]
    assert "room is reserved for it from" in reason.message


def expected(world: World) -> set[str]:
    """Return the jobs that have an expected start."""
    said = [one.expected for one in world.outcomes if one.expected is not None]
    return set(said[-1])


def test_who_has_to_be_near_to_what_nobody_runs_is_expected_at_no_moment() -> None:
    world = World(nodes=1, cpu=4)
    world.commit(job("long", cpu=2, time_limit_s=600))
    world.settle()
    world.commit(beside("j", NEAR_SERVER, cpu=2))
    world.settle()
    assert "j" not in expected(world)


def test_who_has_to_be_near_to_what_runs_is_expected_when_there_is_room() -> None:
    world = World(nodes=1, cpu=4)
    world.commit(job("server", cpu=3, time_limit_s=600))
    world.settle()
    world.commit(beside("j", NEAR_SERVER, cpu=2))
    world.settle()
    assert "j" in expected(world)


def test_what_a_suspended_cluster_starts_again_is_told_by_its_command() -> None:
    world = World(nodes=1)
    world.change_structure(settings=msgspec.structs.replace(world.structure.settings, suspend=True))
    world.commit(job("j"))
    world.settle()
    (reason,) = world.memory.reasons[world.memory.jobs["j"].reason_key]
    assert reason.unblocks == "run `muster resume cluster`, or set spec.suspend: false in Cluster"
