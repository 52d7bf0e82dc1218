"""Jobs that can never start take nobody's place under a quota, and have their own once they can."""

from typing import Any

import msgspec
import pytest

from reconciler.core import cycle_context
from reconciler.core.quota import unschedulable
from reconciler.model import desired
from tests.unit.core.world import VirtualNode, World, job

DAY_S = 86_400
HOUR_S = 3600
QUOTAS = {
    "running": desired.Quota("q", queue="default", running=1),
    "pending": desired.Quota("q", queue="default", pending=1),
    "resources": desired.Quota(
        "q", queue="default", resources=desired.QuotaAmounts(gpu_milli=3000)
    ),
    "budget": desired.Quota("q", queue="default", budget_gpu_s=3 * HOUR_S, window_s=DAY_S),
}


def world(quota: desired.Quota, **settings: Any) -> World:
    """Return one node of 2 GPUs."""
    made = World(nodes=1, cpu=8, gpu=2, **settings)
    made.change_structure(quotas={quota.name: quota})
    return made


def gang(name: str, **changes: Any) -> desired.Job:
    """Return a job of three GPUs, of which the node has two."""
    return job(name, cpu=1, gpu=1, count=3, time_limit_s=HOUR_S, **changes)


def small(name: str, **changes: Any) -> desired.Job:
    return job(name, gpu=1, time_limit_s=HOUR_S, **changes)


def join(of: World, name: str) -> None:
    """Add another such node."""
    pool = of.structure.pools["pool"]
    pool = msgspec.structs.replace(pool, nodes=(*pool.nodes, name))
    of.change_structure(pools={"pool": pool})
    of.nodes[name] = VirtualNode(name, pool)


def told(of: World, name: str) -> list[str]:
    reasons = of.memory.reasons[of.memory.jobs[name].reason_key]
    return [one.code.value for one in reasons]


@pytest.mark.parametrize("quota", QUOTAS.values(), ids=QUOTAS)
def test_what_no_node_holds_has_nobody_wait_for_its_place(quota: desired.Quota) -> None:
    of = world(quota)
    of.commit(gang("never"))
    of.settle()
    of.commit(small("behind"))
    of.settle()
    assert of.states() == {"behind": "Running", "never": "Pending"}
    assert told(of, "never") == ["NeverFits"]


def test_many_alike_that_no_node_holds_are_passed_together() -> None:
    of = world(QUOTAS["running"])
    of.commit(*(gang(f"a{number}") for number in range(9)), small("behind"))
    of.settle(rounds=3)
    assert of.state("behind").value == "Running"
    assert all(told(of, f"a{number}") == ["NeverFits"] for number in range(9))


def test_what_can_start_again_waits_for_its_turn_and_goes_before_those_behind_it() -> None:
    of = world(QUOTAS["running"])
    of.commit(gang("first"))
    of.settle()
    of.commit(small("runs"), small("behind"))
    of.settle()
    join(of, "n1")
    for _ in range(4):
        of.advance(1)
        assert of.states() == {"behind": "Pending", "first": "Pending", "runs": "Running"}
    assert told(of, "first") == told(of, "behind") == ["OverLimit"]
    of.end("runs")
    of.advance(1)
    assert of.states() == {"behind": "Pending", "first": "Running", "runs": "Succeeded"}


def test_it_starts_as_soon_as_nodes_can_hold_it_where_nobody_took_its_place() -> None:
    of = world(QUOTAS["running"])
    of.commit(gang("first"), job("other", gpu=2, queue="free"))
    of.change_structure(queues={"default": desired.Queue("default"), "free": desired.Queue("free")})
    of.settle()
    join(of, "n1")
    join(of, "n2")
    of.settle()
    assert of.states() == {"first": "Running", "other": "Running"}


def test_what_a_queue_is_never_let_have_takes_nobodys_place() -> None:
    of = world(QUOTAS["running"])
    limited = desired.Queue("default", limit=desired.QuotaAmounts(gpu_milli=1000))
    of.change_structure(queues={"default": limited})
    of.commit(job("never", gpu=2))
    of.settle()
    of.commit(small("behind"))
    of.settle()
    assert of.states() == {"behind": "Running", "never": "Pending"}
    assert told(of, "never") == ["OverLimit"]


def test_who_may_start_again_goes_first_in_the_very_cycle_that_lets_it() -> None:
    """Its reason was computed from documents that have changed."""
    of = world(QUOTAS["running"])
    nothing = desired.Queue("default", limit=desired.QuotaAmounts(gpu_milli=0))
    of.change_structure(queues={"default": nothing})
    of.commit(small("first", priority=90))
    of.settle()
    assert told(of, "first") == ["OverLimit"]
    of.change_structure(queues={"default": desired.Queue("default")})
    of.commit(small("behind", cpu=2))
    of.advance(1)
    assert of.state("first").value != "Pending"
    assert of.state("behind").value == "Pending"


def test_nobody_passes_it_in_a_strict_queue() -> None:
    of = world(QUOTAS["running"])
    of.change_structure(queues={"default": desired.Queue("default", strict=True)})
    of.commit(gang("never"))
    of.settle()
    of.commit(small("behind"))
    of.settle()
    assert of.states() == {"behind": "Pending", "never": "Pending"}


def test_nothing_changes_while_nothing_happens() -> None:
    of = world(QUOTAS["running"])
    of.commit(gang("never"), small("runs"), small("waits"))
    of.settle()
    of.advance(2)
    before = (dict(of.memory.reasons), of.states())
    for _ in range(3):
        of.advance(61)
        assert (dict(of.memory.reasons), of.states()) == before
        assert of.outcomes[-1].schedule_inputs is not None


def test_a_cap_that_one_job_passes_in_all_says_nothing_of_those_alike() -> None:
    quota = desired.Quota("q", user="ada", budget_gpu_s=HOUR_S, window_s=DAY_S)
    of = world(quota)
    of.change_structure(
        quotas={"q": quota, "r": desired.Quota("r", queue="default", running=1)},
    )
    of.commit(job("never", gpu=1, owner="ada", time_limit_s=2 * HOUR_S))
    of.settle()
    of.commit(job("hog", gpu=2, time_limit_s=HOUR_S, priority=60))
    of.settle()
    of.commit(small("alike", owner="bob", priority=60))
    of.settle()
    of.commit(job("other", owner="bob"))
    of.settle()
    of.end("hog")
    of.settle()
    assert of.state("alike").value == "Running"
    assert of.state("other").value == "Pending"


def test_a_pool_that_makes_nodes_for_what_waits_lets_it_keep_its_place() -> None:
    of = world(QUOTAS["running"])
    of.commit(gang("never"))
    of.settle()
    made = msgspec.structs.replace(of.pool, provisioning=desired.Provisioning(minimum=1, maximum=2))
    capped = [("never", unschedulable.kind_of(of.jobs["never"], 0))]

    def found() -> frozenset[unschedulable.Kind]:
        wanted = desired.Desired(structure=of.structure, jobs=of.jobs)
        context = cycle_context.CycleContext(wanted, of.memory.observed((), {}), of.now)
        return unschedulable.unschedulable_kinds(
            of.structure, context.jobs, context.reasons, capped
        )

    assert found() == {("default", 0, True)}
    of.change_structure(pools={"pool": made})
    assert found() == frozenset()
