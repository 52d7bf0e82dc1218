"""Between full schedules only what came or changed, and what has room, has a turn."""

from collections.abc import Callable

import msgspec
import pytest

from reconciler.core import schedule_reuse
from reconciler.model import desired
from reconciler.model.state import outcome
from reconciler.model.state.states import JobState
from reconciler.model.values.resources import Resources
from tests.unit.core.pools import test_provisioning
from tests.unit.core.world import World, job

FULL_S = 30.0


def full_cluster() -> World:
    """Return a node whose four CPUs one job has, with jobs that wait for two and for four."""
    world = World(nodes=1, cpu=4)
    world.pace = schedule_reuse.Pace(quick_lines_min=1, full_each_s=FULL_S, full_s_max=FULL_S)
    world.commit(job("first", cpu=4))
    world.settle()
    world.commit(job("two", cpu=2))
    world.settle()
    world.now += 1.0
    world.commit(job("four", cpu=4))
    world.settle()
    world.advance(FULL_S)  # a full schedule
    assert made(world) == "full"
    return world


def made(world: World) -> str:
    """Return how the last schedule was made that was not left out."""
    last = next(result for result in reversed(world.outcomes) if result.queues is not None)
    return "quick" if last.schedule_inputs and last.schedule_inputs.quick else "full"


def messages(result: outcome.Outcome) -> dict[str, str]:
    return {key: reasons[0].message for key, reasons in result.reasons.items() if reasons}


def test_few_lines_are_always_scheduled_in_full() -> None:
    world = full_cluster()
    world.pace = schedule_reuse.PACE
    world.advance(FULL_S)
    world.commit(job("three", cpu=3))
    world.settle()
    assert made(world) == "full"


def _arrival(world: World) -> None:
    world.commit(job("three", cpu=3))


def _cancelled(world: World) -> None:
    world.commit(remove=("four",))


def _ended(world: World) -> None:
    world.end("first")


def _structure(world: World) -> None:
    world.change_structure(queues={**world.structure.queues, "other": desired.Queue("other")})


def _node(world: World) -> None:
    world.nodes["n0"].pool = msgspec.structs.replace(
        world.pool, node_resources=Resources(8000, 64 * 2**30, 0)
    )


def _time(world: World) -> None:
    world.now += FULL_S
    world.commit(job("three", cpu=3))


@pytest.mark.parametrize(
    ("happen", "kind"),
    [
        (_arrival, "quick"),
        (_cancelled, "quick"),
        (_ended, "quick"),
        (_structure, "full"),
        (_node, "full"),
        (_time, "full"),
    ],
)
def test_only_jobs_make_a_quick_schedule_due(happen: Callable[[World], None], kind: str) -> None:
    world = full_cluster()
    happen(world)
    world.settle()
    assert made(world) == kind


def test_what_comes_starts_where_there_is_room_and_is_told_why_where_there_is_none() -> None:
    world = full_cluster()
    world.commit(job("more", cpu=1))
    world.settle()
    assert world.reason("more") == "InsufficientResources"
    world.end("first")
    assert made(world) == "quick"
    assert world.states()["two"] == "Running"
    assert world.states()["more"] == "Running"


def test_settled_work_keeps_its_reason() -> None:
    world = full_cluster()
    before = world.memory.jobs["four"]
    world.commit(job("small", cpu=1))
    result = world.cycle()
    assert world.memory.jobs["four"] is before
    assert world.reason("four") == "InsufficientResources"
    assert result.expected is None  # as it was told before
    assert len(messages(result)) == 1


def test_nobody_leaves_for_settled_work_before_the_next_full_schedule() -> None:
    """Time alone lets it take something back, such as the end of a protection."""
    protected = desired.ClusterSettings(
        scheduling=desired.Scheduling(min_runtime_s=10, consolidation=False)
    )
    queues = (
        desired.Queue("default"),
        desired.Queue("owed", guaranteed=desired.QuotaAmounts(cpu_milli=4000)),
    )
    world = World(nodes=1, cpu=4, queues=queues, settings=protected)
    world.pace = schedule_reuse.Pace(quick_lines_min=1, full_each_s=FULL_S, full_s_max=FULL_S)
    world.commit(job("borrows", cpu=4))
    world.settle()
    world.commit(job("owed", cpu=2, queue="owed"))
    world.settle()
    assert world.states() == {"borrows": "Running", "owed": "Pending"}
    world.advance(FULL_S + 1)
    world.settle()
    assert world.states() == {"borrows": "Pending", "owed": "Running"}


def test_new_work_evicts_at_once() -> None:
    world = full_cluster()
    world.commit(job("urgent", cpu=4, priority=90))
    world.settle()
    assert made(world) == "quick"
    assert world.states()["urgent"] == "Running"


def test_a_full_schedule_follows_although_nothing_happens() -> None:
    world = full_cluster()
    world.commit(job("small", cpu=1))
    result = world.cycle()
    inputs = result.schedule_inputs
    assert inputs is not None
    assert inputs.quick
    assert result.wake_at is not None
    assert result.wake_at <= inputs.full_until
    world.now = inputs.full_until
    world.cycle()
    assert made(world) == "full"


def test_who_lost_a_reservation_to_new_work_is_not_told_to_have_it() -> None:
    world = World(nodes=1, cpu=4)
    world.pace = schedule_reuse.Pace(quick_lines_min=1, full_each_s=FULL_S, full_s_max=FULL_S)
    world.commit(job("first", cpu=3, time_limit_s=600))
    world.settle()
    world.now += 1.0
    world.commit(job("four", cpu=4, time_limit_s=600))
    world.settle()
    world.advance(FULL_S)
    assert "room is reserved for it" in message(world, "four")
    world.commit(job("urgent", cpu=1, priority=90, time_limit_s=86_400))
    world.settle()
    assert made(world) == "quick"
    assert world.states()["urgent"] == "Running"
    reserved = {one.job for one in world.memory.scheduler_state.kept}
    assert ("room is reserved for it" in message(world, "four")) == ("four" in reserved)


def message(world: World, name: str) -> str:
    reasons = world.memory.reasons[world.memory.jobs[name].reason_key]
    return reasons[0].message


def test_what_a_pool_grows_for_is_told_so_by_cycles_with_and_without_a_cache() -> None:
    cloud = test_provisioning.Cloud(msgspec.structs.replace(test_provisioning.ASKED, maximum=1))
    cloud.pace = schedule_reuse.Pace(quick_lines_min=1, full_each_s=FULL_S, full_s_max=FULL_S)
    cloud.fails = {"create"}
    cloud.go()
    cloud.commit(test_provisioning.cores("first"))
    cloud.go(40)
    quick = 0
    for number in range(12):
        cloud.now += 3.0
        new = test_provisioning.cores(f"more{number}", cpu=1 + number % 4, priority=number % 3)
        cloud.commit(new)
        cloud.hear()
        inputs = cloud.cycle().schedule_inputs
        quick += inputs is not None and inputs.quick
        waiting = [r for r in cloud.memory.jobs.values() if r.state is JobState.PENDING]
        assert all(cloud.memory.reasons.get(record.reason_key) for record in waiting)
    assert quick > 6
