"""The largest amounts that documents may hold, through whole cycles: none of them raises."""

from typing import Any

import msgspec
import pytest

from reconciler.desired.apply import validate
from reconciler.model import desired
from reconciler.model.rules import recurrence
from reconciler.model.values import quantities
from reconciler.operations.views import stored_views
from tests.unit.core.world import VirtualNode, World
from tests.unit.desired.repositories import documents, job, queue

POOL = (
    "apiVersion: muster/v1\nkind: NodePool\nmetadata: {name: pool}\n"
    "spec: {hosts: 'n[0-1]', allowRoot: true, nodes: {cpu: NODE_CPU, memory: NODE_MEMORY, "
    "gpus: {count: 8}}}\n"
)
QUEUES = (
    queue("parent", limit="{memory: 4096Pi, cpu: 4000000000000000}"),
    queue("child", parent="parent", guaranteed="{memory: 2048Pi, gpu: 1000000}"),
)


def world_of(*texts: str, cpu: str = "8", memory: str = "64Gi") -> World:
    pool = POOL.replace("NODE_CPU", cpu).replace("NODE_MEMORY", memory)
    value = validate.check({"x.yaml": documents(pool, *QUEUES, *texts).encode()})
    assert not [p for p in value.status.problems if p.severity == "error"]
    world = World()
    world.structure, world.pool = value.structure, value.structure.pools["pool"]
    world.nodes = {name: VirtualNode(name, world.pool) for name in world.pool.nodes}
    world.commit(*value.jobs.values())
    return world


#: In all 2^61, less what is written in whole units.
FORMS = {
    "one task": {"cpu": 2**61 // 1000, "memory": 2**61, "gpu": 1_000_000},
    "gang": {"count": 8192, "cpu": 2**48 // 1000, "memory": 2**48, "gpu": 1_000_000},
    "array": {"array": 100_000, "cpu": 2**44 // 1000, "memory": 2**44, "gpu": 1_000_000},
    "elastic": {"max": 8192, "min": 1, "cpu": 2**48 // 1000, "memory": 2**48, "gpu": 0},
}


def of(name: str, form: str, **more: object) -> str:
    said = FORMS[form]
    spec: dict[str, Any] = {key: said[key] for key in ("count", "max", "min") if key in said} | more
    if "array" in said:
        spec["array"] = f"{{count: {said['array']}}}"
    resources = ", ".join(f"{key}: {said[key]}" for key in ("cpu", "memory", "gpu"))
    return job(name, resources=f"{{{resources}}}", **spec)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("queue_name", ["default", "child"])
def test_many_jobs_at_the_most_leave_others_alone(form: str, queue_name: str) -> None:
    many = [of(f"huge-{number}", form, queue=queue_name) for number in range(9)]
    world = world_of(job("small"), *many)
    world.settle()
    assert world.state("small").value == "Running"
    assert {world.state(f"huge-{number}").value for number in range(9)} == {"Pending"}
    for result in world.outcomes:
        stored_views.cycle_views(result)


def test_nodes_at_the_most_are_filled_by_jobs_at_the_most() -> None:
    each = quantities.LARGEST_TOTAL // 2
    asked = f"{{cpu: {each // 1000}, memory: {each}}}"
    world = world_of(
        *[job(f"huge-{number}", resources=asked, queue="child") for number in range(3)],
        cpu=str(each // 1000),
        memory=str(each),
    )
    world.settle()
    running = [name for name in world.jobs if world.state(name).value == "Running"]
    assert len(running) == 2
    world.change_structure(
        pools={"pool": msgspec.structs.replace(world.pool, nodes=(), domains={})}
    )
    world.settle()
    assert {world.state(name).value for name in running} == {"Running"}


def test_the_longest_times_stop_nothing() -> None:
    longest = 2**62
    spans: dict[str, Any] = {
        "timeLimit": longest,
        "terminationGrace": longest,
        "lease": longest,
        "retries": f"{{limit: 1000, backoff: {longest}, maxBackoff: {longest}}}",
        "checkpoint": f"{{grace: {longest}, settle: {longest}, every: {longest}}}",
    }
    quota = (
        "apiVersion: muster/v1\nkind: Quota\nmetadata: {name: q}\nspec: {subject: {queue: parent}, "
        f"budget: {{gpuHours: 1000000000, window: {longest}}}}}\n"
    )
    names = [f"long-{number}" for number in range(4)]
    asks: dict[str, Any] = {"queue": "default", "resources": "{gpu: 8}"}
    world = world_of(quota, *[job(name, **asks, **spans) for name in names], job("idle", **spans))
    for _ in range(3):
        world.advance(3600)
    assert "Running" in {world.state(name).value for name in names}
    for result in world.outcomes:
        stored_views.cycle_views(result)
    world.end(next(name for name in names if world.state(name).value == "Running"), exit_code=1)
    world.commit(remove=tuple(names))
    world.settle()


@pytest.mark.parametrize("duration_s", [400 * 86_400, 10**12, 2**62])
def test_a_schedule_may_last_for_ever(duration_s: int) -> None:
    daily = ((0,), (6,), None, None, None)
    now = 1_800_000_000.0
    one = desired.Reservation("r", ("n0",), 0.0, 0.0, daily, duration_s)
    for found in (recurrence.of_reservation(one, now), recurrence.spans(daily, duration_s, now)):
        assert found[0][0] <= now < found[0][1]
    reservation = (
        "apiVersion: muster/v1\nkind: Reservation\nmetadata: {name: r}\nspec: {hosts: n1, "
        f"users: [a@x.org], schedule: '0 6 * * *', duration: {duration_s}}}\n"
    )
    world = world_of(reservation, job("small"))
    world.settle()
    assert world.state("small").value == "Running"
