"""What is told of quotas is what the next start is measured by."""

from typing import Any

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.policy import access
from reconciler.model.state import records
from reconciler.model.values import times
from reconciler.operations.views import quota_views
from tests.unit.core.world import World, job

HOUR_S = 3600.0
ADA = "ada@example.org"


def told(world: World) -> dict[str, quota_views.QuotaView]:
    memory = world.memory
    holding = {one.job for one in memory.attempts.values()}
    observed = records.Observed(
        jobs={name: record for name, record in memory.jobs.items() if name in holding},
        active=frozenset(holding),
        attempts=dict(memory.attempts),
        scheduler_state=memory.scheduler_state,
    )
    found = quota_views.quota_views(world.structure, observed, world.now)
    return {one.name: one for one in found}


def capped(*caps: desired.Quota) -> World:
    people = access.Access({ADA: access.Identity(ADA, ("staff",))})
    world = World(nodes=2, cpu=8, gpu=4)
    world.change_structure(quotas={cap.name: cap for cap in caps}, access=people)
    return world


def test_what_is_used_is_counted_for_whom_a_quota_is() -> None:
    gpus: dict[str, Any] = {"resources": desired.QuotaAmounts(gpu_milli=4000)}
    world = capped(
        desired.Quota("ada", user=ADA, running=3, pending=9, **gpus),
        desired.Quota("bob", user="bob", **gpus),
        desired.Quota("staff", group="staff", **gpus),
        desired.Quota("all", queue="default", resources=desired.QuotaAmounts(cpu_milli=16_000)),
        desired.Quota("nodes", pool="pool", **gpus),
        desired.Quota("gone", pool="another", **gpus),
    )
    world.commit(job("a", owner=ADA, gpu=1, cpu=2, time_limit_s=600))
    world.commit(job("b", owner="eve", cpu=3, gpu=2), job("c", owner=ADA, gpu=1, cpu=1))
    world.settle()
    found = told(world)
    used = {name: (one.used.cpu, one.used.gpu) for name, one in found.items()}
    assert list(used) == ["ada", "all", "bob", "gone", "nodes", "staff"]
    assert used["ada"] == used["staff"] == (3.0, 2.0)
    assert used["all"] == used["nodes"] == (6.0, 4.0)
    assert used["bob"] == used["gone"] == (0.0, 0.0)
    ada = found["ada"]
    assert (ada.running, ada.running_max, ada.pending_max) == (2, 3, 9)
    assert (ada.user, ada.group, ada.limit.gpu, ada.limit.cpu) == (ADA, None, 4.0, None)
    (attempt,) = world.attempts("a")
    assert attempt.started_at is not None
    ends = times.format_time(attempt.started_at + 600)
    assert ada.first_ends == quota_views.EndsView(ends, None, ends, ends)
    assert (found["bob"].first_ends, found["nodes"].running) == (quota_views.NOBODY_KNOWS, None)


def test_a_start_that_is_refused_would_pass_what_is_told() -> None:
    world = capped(desired.Quota("ada", user=ADA, resources=desired.QuotaAmounts(gpu_milli=3000)))
    world.commit(*(job(f"j{number}", owner=ADA, gpu=1) for number in range(5)))
    world.settle()
    (one,) = told(world).values()
    assert (one.used.gpu, one.limit.gpu) == (3.0, 3.0)
    assert sorted(world.states().values()).count("Running") == 3


def test_a_budget_tells_what_was_spent_what_is_set_aside_and_when_some_returns() -> None:
    day_s = 86_400
    world = capped(desired.Quota("hours", user=ADA, budget_gpu_s=10 * HOUR_S, window_s=day_s))
    world.commit(job("over", owner=ADA, gpu=2, time_limit_s=7200))
    world.settle()
    world.advance(HOUR_S)
    world.end("over")
    ended_at = world.now
    world.commit(job("runs", owner=ADA, gpu=1, time_limit_s=7200))
    world.settle()
    budget = told(world)["hours"].budget
    assert budget is not None
    assert (budget.gpu_hours, budget.spent_gpu_hours) == (10.0, 2.0)
    assert (budget.reserved_gpu_hours, budget.window_s, budget.on_exhausted) == (2.0, day_s, "wait")
    hour_ends_at = (ended_at // HOUR_S + 1) * HOUR_S
    assert budget.returns == times.format_time(hour_ends_at + day_s)
    world.now = hour_ends_at + day_s
    later = told(world)["hours"].budget
    assert later is not None
    # what runs, and should have ended long ago, is spent in this hour
    back = times.format_time(world.now + HOUR_S + day_s)
    assert (later.spent_gpu_hours, later.returns) == (0.0, back)


@pytest.mark.parametrize("limit_s", [7200, None])
def test_a_budget_of_which_nothing_is_spent_yet_tells_when_what_runs_is_back(
    limit_s: int | None,
) -> None:
    day_s = 86_400
    world = capped(desired.Quota("hours", user=ADA, budget_gpu_s=10 * HOUR_S, window_s=day_s))
    world.commit(job("runs", owner=ADA, gpu=1, time_limit_s=limit_s))
    world.settle()
    budget = told(world)["hours"].budget
    assert budget is not None
    assert budget.spent_gpu_hours == 0.0
    started = [one.started_at for one in world.attempts("runs")]
    ends_at = max(filter(None, started), default=0.0) + 7200
    back = times.format_time((ends_at // HOUR_S + 1) * HOUR_S + day_s)
    assert budget.returns == (back if limit_s else None)


def test_what_may_run_on_into_the_next_hour_by_its_grace_is_back_after_that_one() -> None:
    world = capped(desired.Quota("hours", user=ADA, budget_gpu_s=10 * HOUR_S, window_s=86_400))
    hour_ends_at = (world.now // HOUR_S + 2) * HOUR_S
    limit_s = int(hour_ends_at - world.now) - 20  # and then it has 30 s more to leave
    world.commit(job("runs", owner=ADA, gpu=1, time_limit_s=limit_s))
    world.settle()
    budget = told(world)["hours"].budget
    assert budget is not None
    assert budget.returns == times.format_time(hour_ends_at + HOUR_S + 86_400)


def test_what_runs_of_an_array_gives_some_back_though_more_of_it_waits() -> None:
    amounts = desired.QuotaAmounts(gpu_milli=2000)
    world = capped(desired.Quota("ada", user=ADA, running=3, resources=amounts))
    world.commit(job("sweep", owner=ADA, gpu=1, array_count=4, time_limit_s=600))
    world.settle()
    first = min(one.started_at for one in world.attempts("sweep") if one.started_at)
    world.advance(60)
    world.end("sweep", element=0)
    world.settle()
    (one,) = told(world).values()
    assert (one.running, one.used.gpu) == (1, 2.0)
    assert one.first_ends.gpu == times.format_time(first + 600)
    assert one.first_ends.running is None  # the job goes on with what waits of it


def test_the_end_of_what_has_no_gpu_gives_none_back() -> None:
    world = capped(desired.Quota("ada", user=ADA, resources=desired.QuotaAmounts(gpu_milli=3000)))
    world.commit(job("plain", owner=ADA, time_limit_s=60))
    world.commit(job("gpus", owner=ADA, gpu=2, time_limit_s=7200))
    world.settle()
    (one,) = told(world).values()
    (short,), (long,) = world.attempts("plain"), world.attempts("gpus")
    assert short.started_at is not None
    assert long.started_at is not None
    assert one.first_ends.running == times.format_time(short.started_at + 60)
    assert one.first_ends.gpu == times.format_time(long.started_at + 7200)


def test_without_quotas_nothing_is_told() -> None:
    world = World(nodes=1)
    world.commit(job("a"))
    world.settle()
    assert told(world) == {}
    assert msgspec.json.encode(list(told(world).values())) == b"[]"
