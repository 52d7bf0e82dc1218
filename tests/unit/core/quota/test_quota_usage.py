"""Quotas count nominated elements before other pending work."""

from typing import Any

import msgspec
import pytest

from reconciler.core.quota import quota_usage
from reconciler.model import desired
from reconciler.model.policy import access
from reconciler.model.state import records
from reconciler.model.state.pending_reasons import CAN_NOT_START
from reconciler.model.values import resources, times
from tests.unit.core.world import World, job


def accounts(
    *caps: desired.Quota, people: access.Access | None = None
) -> quota_usage.QuotaAccounts:
    queues = {"default": desired.Queue("default")}
    structure = desired.Structure(queues=queues, quotas={cap.name: cap for cap in caps})
    if people is not None:
        structure = msgspec.structs.replace(structure, access=people)
    return quota_usage.accounts_of_records(structure, records.Observed(), 1000.0)


def cpus(count: int) -> tuple[resources.Resources, ...]:
    return (resources.Resources(cpu_milli=count * 1000),)


def test_elements_that_room_is_kept_for_are_counted_first() -> None:
    cap = desired.Quota("q", queue="default", resources=desired.QuotaAmounts(cpu_milli=5000))
    kept, other = job("kept", cpu=2), job("other", cpu=4)

    unkept = accounts(cap)
    assert unkept.admit(other, 1, cpus(4)) == (1, None)
    assert unkept.admit(kept, 1, cpus(2))[0] == 0

    both = accounts(cap)
    assert both.admit_nominated(kept, 1, cpus(2)) == 1
    count, reason = both.admit(other, 1, cpus(4))
    assert count == 0
    assert reason is not None
    assert "0 CPUs in use, 2 CPUs left to work before it, 4 CPUs asked" in reason.message


@pytest.mark.parametrize(("cap", "told"), [(1, "1 GPU"), (2, "2 GPUs")])
def test_what_a_cap_leaves_is_told_in_grammar(cap: int, told: str) -> None:
    amounts = desired.QuotaAmounts(gpu_milli=cap * 1000)
    found = accounts(desired.Quota("q", queue="default", resources=amounts))
    each = (resources.Resources(gpu_milli=1000),)
    found.admit(job("first"), cap, each)
    _, reason = found.admit(job("second"), 1, each)
    assert reason is not None
    assert (
        f"limits queue default to {told}: 0 GPUs in use, {told} left to work before it, 1 GPU asked"
        in reason.message
    )


def test_those_of_a_group_share_one_cap() -> None:
    cap = desired.Quota("q", group="interns", resources=desired.QuotaAmounts(cpu_milli=5000))
    people = access.Access(
        {
            "ada@example.org": access.Identity("ada@example.org", ("staff", "interns")),
            "bob@example.org": access.Identity("bob@example.org", ("interns",)),
            "eve@example.org": access.Identity("eve@example.org", ("staff",)),
        }
    )
    found = accounts(cap, people=people)
    assert found.admit(job("first", owner="ada@example.org"), 1, cpus(4)) == (1, None)
    count, reason = found.admit(job("second", owner="bob@example.org"), 1, cpus(2))
    assert count == 0
    assert reason is not None
    assert (
        "limits group interns to 5 CPUs: 0 CPUs in use, 4 CPUs left to work before it, 2 CPUs asked"
        in reason.message
    )
    for free in ("eve@example.org", "somebody@example.org"):
        assert found.admit(job(f"of-{free}", owner=free), 1, cpus(8)) == (1, None)


def test_what_is_kept_does_not_pass_a_cap() -> None:
    cap = desired.Quota("q", queue="default", resources=desired.QuotaAmounts(cpu_milli=5000))
    assert accounts(cap).admit_nominated(job("kept"), 4, cpus(2)) == 2
    assert accounts(cap).admit_nominated(job("kept"), 1, cpus(6)) == 0
    one = accounts(desired.Quota("q", queue="default", running=1))
    assert one.admit_nominated(job("first"), 1, cpus(1)) == 1
    assert one.admit_nominated(job("second"), 1, cpus(1)) == 0


def test_what_left_for_another_does_not_take_its_turn_under_their_common_cap() -> None:
    """A pending elastic job asks a quota for all its tasks, and has fewer when it runs."""
    world = World(nodes=1, cpu=4)
    cap = desired.Quota(
        "q", user="alice@example.org", resources=desired.QuotaAmounts(cpu_milli=5000)
    )
    world.change_structure(
        queues={
            "far": desired.Queue("far"),
            "near": desired.Queue("near", guaranteed=desired.QuotaAmounts(cpu_milli=2000)),
        },
        quotas={"q": cap},
    )
    elastic = job("elastic", cpu=2, count=2, queue="far", owner=cap.user)
    group = msgspec.structs.replace(elastic.groups[0], minimum=1)
    world.commit(job("hog", cpu=2, queue="far", owner="bob@example.org"))
    world.settle()
    world.commit(msgspec.structs.replace(elastic, groups=(group,)))
    world.settle()
    assert world.states()["elastic"] == "Running"
    world.commit(job("owed", cpu=2, queue="near", owner=cap.user, priority=10))
    world.settle()
    assert world.states()["owed"] == "Running"


def test_an_elastic_job_starts_with_what_work_before_it_leaves_of_a_cap() -> None:
    world = World(nodes=1, cpu=4)
    cap = desired.Quota(
        "q", user="alice@example.org", resources=desired.QuotaAmounts(cpu_milli=3000)
    )
    world.change_structure(quotas={"q": cap})
    world.commit(job("hog", cpu=3, owner="bob@example.org"))
    world.settle()
    elastic = job("elastic", cpu=1, count=2, owner=cap.user)
    group = msgspec.structs.replace(elastic.groups[0], minimum=1)
    world.commit(
        job("waits", cpu=2, owner=cap.user), msgspec.structs.replace(elastic, groups=(group,))
    )
    world.settle()
    assert world.states() == {"hog": "Running", "waits": "Pending", "elastic": "Running"}


GPU_HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("cap", "changes", "told", "helps"),
    [
        (
            desired.Quota("q", user="ada", resources=desired.QuotaAmounts(cpu_milli=1000)),
            {"cpu": 2},
            "Quota q limits ada to 1 CPU, and one start asks 2 CPUs: it can't start under it",
            "raise spec.resources of Quota q, or ask for less",
        ),
        (
            desired.Quota("q", user="ada", running=0),
            {},
            "Quota q lets no job of ada run: it can't start under it",
            "raise spec.jobs.running of Quota q",
        ),
        (
            desired.Quota("q", user="ada", pending=0),
            {},
            "Quota q considers no job of ada: it can't start under it",
            "raise spec.jobs.pending of Quota q",
        ),
        (
            desired.Quota("q", user="ada", budget_gpu_s=GPU_HOUR_S, window_s=86_400),
            {"gpu": 2, "time_limit_s": 3600},
            "2 (GPUs times time limit)",
            "set a shorter timeLimit, ask for fewer GPUs, or raise spec.budget.gpuHours of Quota q",
        ),
        (
            desired.Quota("q", user="ada", budget_gpu_s=GPU_HOUR_S, window_s=86_400),
            {"gpu": 1},
            "24 (GPUs times the whole window, as it has no timeLimit)",
            "set a timeLimit, ask for fewer GPUs, or raise spec.budget.gpuHours of Quota q",
        ),
    ],
)
def test_what_no_end_of_other_work_helps_is_not_told_to_wait_for_it(
    cap: desired.Quota, changes: dict[str, int], told: str, helps: str
) -> None:
    asks = job("asks", owner="ada", **changes)
    tasks = tuple(group.resources for group in asks.groups)
    count, reason = accounts(cap).admit(asks, 1, tasks)
    assert count == 0
    assert reason is not None
    if cap.budget_gpu_s:
        begin = "Quota q gives ada 1 GPU-hour in 1d, and one start asks "
        told = f"{begin}{told}: more than all of it, it can't start under it"
    assert (reason.message, reason.unblocks) == (told, helps)


@pytest.mark.parametrize(
    ("pending", "told"),
    [(1, "Quota q considers 1 job of ada at a time"), (2, "Quota q considers 2 jobs of ada")],
)
def test_how_many_jobs_are_considered_is_told_in_grammar(pending: int, told: str) -> None:
    world = World(nodes=1, cpu=1)
    world.change_structure(quotas={"q": desired.Quota("q", user="ada", pending=pending)})
    world.commit(job("hog", owner="bob"))
    world.settle()
    world.commit(*(job(f"j{number}", owner="ada") for number in range(3)))
    world.settle()
    said = [one for found in world.memory.reasons.values() for one in found]
    assert any(one.message.startswith(told) for one in said)


@pytest.mark.parametrize(
    "cap",
    [
        desired.Quota("never", user="ada", resources=desired.QuotaAmounts(cpu_milli=1000)),
        desired.Quota("never", user="ada", running=0),
        desired.Quota("never", user="ada", budget_gpu_s=GPU_HOUR_S, window_s=86_400),
    ],
)
def test_what_never_lets_it_start_is_told_before_what_passes(cap: desired.Quota) -> None:
    asks = job("asks", owner="ada", cpu=2, gpu=2)
    tasks = tuple(group.resources for group in asks.groups)
    passing = desired.Quota(
        "a", user="ada", running=1, resources=desired.QuotaAmounts(cpu_milli=3000)
    )
    found = accounts(passing, cap)
    found.all[0].jobs.add("runs")
    found.all[0].used[0] = 2000
    count, reason = found.admit(asks, 1, tasks)
    assert count == 0
    assert reason is not None
    assert reason.message.startswith("Quota never ")
    assert CAN_NOT_START in reason.message


def test_what_never_starts_takes_nobodys_place_among_those_considered() -> None:
    cap = desired.Quota(
        "q", user="ada", pending=1, resources=desired.QuotaAmounts(cpu_milli=2000, gpu_milli=1000)
    )
    found = accounts(cap)
    assert found.admit(job("never", owner="ada"), 1, cpus(3))[0] == 0
    assert found.admit(job("first", owner="ada"), 1, cpus(1)) == (1, None)
    assert found.admit(job("second", owner="ada"), 1, cpus(1))[0] == 0


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ({"time_limit_s": 600}, " (the time limit of runs is up at 1970-01-12T13:56:40.000Z)"),
        ({}, ""),
        ({"time_limit_s": 600, "array_count": 3, "parallelism": 1}, ""),
    ],
)
def test_until_when_it_waits_for_who_runs_under_a_cap_is_told(
    runs: dict[str, int], told: str
) -> None:
    world = World(nodes=1, cpu=4)
    world.change_structure(quotas={"q": desired.Quota("q", user="ada", running=1)})
    world.commit(job("runs", owner="ada", **runs))
    world.settle()
    world.commit(job("waits", owner="ada"))
    world.settle()
    (reason,) = world.memory.reasons[world.memory.jobs["waits"].reason_key]
    assert reason.code == "OverLimit"
    assert (
        reason.unblocks
        == f"wait for the end of one of them{told}, or raise spec.jobs.running of Quota q"
    )
    assert reason.waits_for == ("TimeLimit" if told else None)


def test_what_starts_in_the_same_cycle_is_not_told_as_in_use() -> None:
    world = World(nodes=2, cpu=4, gpu=4)
    amounts = desired.QuotaAmounts(cpu_milli=3000)
    world.change_structure(
        quotas={
            "cpus": desired.Quota("cpus", user="ada", resources=amounts),
            "hour": desired.Quota("hour", user="bob", budget_gpu_s=GPU_HOUR_S, window_s=86_400),
        }
    )
    world.commit(*(job(name, owner="ada") for name in ("runs", "starts", "starts-too")))
    world.commit(job("waits", owner="ada"))
    world.commit(*(job(f"of-bob-{n}", gpu=1, time_limit_s=3600, owner="bob") for n in range(2)))
    world.cycle()

    def message(name: str) -> str:
        return world.memory.reasons[world.memory.jobs[name].reason_key][0].message

    assert message("waits").endswith(
        "3 CPUs: 0 CPUs in use, 3 CPUs left to work before it, 1 CPU asked"
    )
    assert "gives bob 1 GPU-hour in 1d: 0 spent, 0 reserved by running work, 1 left to work" in (
        message("of-bob-1")
    )
    world.settle()
    assert message("waits").endswith("3 CPUs: 3 CPUs in use, 1 CPU asked")
    assert "0 spent, 1 reserved by running work, 1 asked" in message("of-bob-1")


def test_what_no_waiting_could_start_is_not_told_to_have_waited() -> None:
    world = World(nodes=1)
    cap = desired.Quota("q", user="ada", resources=desired.QuotaAmounts(cpu_milli=1000))
    world.change_structure(quotas={"q": cap})
    world.commit(job("wide", cpu=2, owner="ada"), job("waits", owner="ada", cpu=1))
    world.commit(job("runs", owner="ada", priority=90))
    world.settle()
    wider = msgspec.structs.replace(cap, resources=desired.QuotaAmounts(cpu_milli=4000))
    world.change_structure(quotas={"q": wider})
    world.settle()
    told = {
        event.job: event.message.partition("; ")[2]
        for result in world.outcomes
        for event in result.events
        if event.kind == "JobPlaced"
    }
    assert told["wide"].startswith("until now it could not start at all: OverLimit: Quota q limits")
    assert told["waits"].startswith("until now it waited: OverLimit: Quota q limits")


@pytest.mark.parametrize(
    ("asked", "told"),
    [(1, "short"), (2, "short"), (3, "long"), (5, "long"), (6, "")],
)
def test_who_waits_for_an_amount_is_told_until_when_at_the_most(asked: int, told: str) -> None:
    """Three CPUs of eight are endless; two come back after a minute, three after an hour."""
    world = World(nodes=2, cpu=8)
    quota = desired.Quota("q", user="ada", resources=desired.QuotaAmounts(cpu_milli=8000))
    world.change_structure(quotas={"q": quota})
    world.commit(
        job("endless", cpu=3, owner="ada"),
        job("long", cpu=3, owner="ada", time_limit_s=3600),
        job("short", cpu=2, owner="ada", time_limit_s=60),
    )
    world.settle()
    world.commit(job("waits", cpu=asked, owner="ada"))
    world.settle()
    reason = world.memory.reasons[world.memory.jobs["waits"].reason_key][0]
    assert f"to 8 CPUs: 8 CPUs in use, {asked} CPU" in reason.message
    if not told:
        assert (
            reason.unblocks == "wait for the end of other work, or raise spec.resources of Quota q"
        )
        return
    (attempt,) = world.attempts(told)
    assert attempt.started_at is not None
    limit_s = attempt.started_at + (60 if told == "short" else 3600)
    assert reason.unblocks == (
        f"wait for the end of other work (the time limit of {told} is up at "
        f"{times.format_time(limit_s)}, and enough of it is back by then), "
        "or raise spec.resources of Quota q"
    )
    for name in ("short", "long")[: 1 + (told == "long")]:
        assert world.state("waits").value == "Pending"
        world.end(name)
    assert world.state("waits").value == "Running"


def test_who_waits_for_a_budget_is_told_when_enough_of_it_is_back() -> None:
    day_s = 86_400
    quota = desired.Quota("b", queue="default", budget_gpu_s=4 * 3600.0, window_s=day_s)
    world = World(nodes=1, cpu=8, gpu=4)
    world.change_structure(quotas={"b": quota})
    world.commit(job("small", gpu=1, time_limit_s=3600))
    world.settle()
    world.commit(job("large", gpu=1, time_limit_s=2 * 3600))
    world.settle()
    world.commit(job("next", gpu=1, time_limit_s=2 * 3600))
    world.commit(job("most", gpu=1, time_limit_s=4 * 3600))
    world.commit(job("more", gpu=1, time_limit_s=5 * 3600))
    world.settle()
    for name, after in (("next", "small"), ("most", "large"), ("more", None)):
        reason = world.memory.reasons[world.memory.jobs[name].reason_key][0]
        told = ""
        if after is not None:
            (attempt,) = world.attempts(after)
            ends_at = (attempt.started_at or 0.0) + (3600 if after == "small" else 7200)
            back = times.format_time((ends_at // 3600 + 1) * 3600 + day_s)
            told = f" (by time limits enough of it is back by {back}, see `muster quotas`)"
        assert (f"wait{told}, or raise spec.budget" in reason.unblocks) is (after is not None)


def test_nobody_knows_when_enough_of_a_budget_is_back_that_endless_work_holds() -> None:
    quota = desired.Quota("b", queue="default", budget_gpu_s=24 * 3600.0, window_s=86_400)
    world = World(nodes=1, cpu=8, gpu=4)
    world.change_structure(quotas={"b": quota})
    world.commit(job("endless", gpu=1))
    world.settle()
    world.commit(job("next", gpu=1, time_limit_s=60))
    world.settle()
    reason = world.memory.reasons[world.memory.jobs["next"].reason_key][0]
    assert (
        "set a shorter timeLimit, wait, or raise spec.budget.gpuHours of Quota b" in reason.unblocks
    )


def test_room_kept_under_a_quota_that_now_lets_no_job_run_is_not_used() -> None:
    found = accounts(desired.Quota("q", queue="default", running=0))
    assert found.admit_nominated(job("kept"), 1, cpus(1)) == 0


DAY_S = 86_400.0


HOUR_S = 3600


@pytest.mark.parametrize(
    ("quota", "small_s"),
    [
        pytest.param(
            {"resources": desired.QuotaAmounts(gpu_milli=4000)}, 12 * HOUR_S, id="amounts"
        ),
        pytest.param(
            {"budget_gpu_s": 8.0 * HOUR_S, "window_s": 12 * HOUR_S}, 2 * HOUR_S, id="budget"
        ),
    ],
)
def test_small_work_passes_who_waits_under_a_cap_for_three_days_only(
    quota: dict[str, Any], small_s: int
) -> None:
    """A job of one GPU every three hours never leaves enough at once for one of four."""
    world = World(nodes=1, cpu=64, gpu=8)
    world.change_structure(quotas={"q": desired.Quota("q", user="ada", **quota)})
    began: dict[str, float] = {}
    submitted = 0.0
    for number in range(40):
        if number == 5:
            world.commit(job("big", gpu=4, time_limit_s=HOUR_S, owner="ada"))
            submitted = world.now
        world.commit(job(f"s{number}", gpu=1, time_limit_s=small_s, owner="ada"))
        world.settle()
        for name, state in world.states().items():
            if state == "Running":
                began.setdefault(name, world.now)
                if world.now - began[name] >= (HOUR_S if name == "big" else small_s):
                    world.end(name)
        world.advance(3.0 * HOUR_S)
    passed = [name for name, at in began.items() if submitted < at < began["big"]]
    assert len(passed) > 10, "until then small work goes on"
    assert 3 * DAY_S <= began["big"] - submitted <= 3 * DAY_S + 18 * HOUR_S


def test_who_waited_three_days_has_kept_what_comes_free_under_a_cap() -> None:
    world = World(nodes=1, cpu=16, gpu=8)
    both = desired.Quota("both", queue="default", resources=desired.QuotaAmounts(gpu_milli=7000))
    cap = desired.Quota("q", user="ada", resources=desired.QuotaAmounts(gpu_milli=4000))
    world.change_structure(quotas={"both": both, "q": cap})
    world.commit(job("runs", gpu=3, owner="ada", time_limit_s=3600))
    world.settle()
    (attempt,) = world.attempts("runs")
    assert attempt.started_at is not None
    until = times.format_time(attempt.started_at + 3600)
    observed = world.memory.observed(
        *world.memory.take_input(), world.memory.take_asked(), world.memory.take_provisioned()
    )
    found = quota_usage.accounts_of_records(world.structure, observed, world.now)
    one = (resources.Resources(gpu_milli=1000),)
    big = job("big", gpu=2, owner="ada", time_limit_s=60)
    late = world.now - 3 * DAY_S
    assert found.admit(big, 1, (*one, *one), since=late + 1)[0] == 0
    assert found.admit(job("passes", gpu=1, owner="ada"), 1, one)[0] == 1
    assert found.admit(big, 1, (*one, *one), since=late)[0] == 0
    for name, owner, changes, count in (
        ("behind", "ada", {}, 0),
        ("longer", "ada", {"time_limit_s": 3601}, 0),
        ("another's", "bob", {}, 0),
        ("shorter", "bob", {"time_limit_s": 3600 - int(world.now - attempt.started_at)}, 1),
    ):
        admitted, reason = found.admit(job(name, gpu=1, owner=owner, **changes), 1, one)
        assert admitted == count, name
        if reason is not None:
            assert reason.message.endswith("for big, which has waited for 3 days")
            assert reason.unblocks == f"wait for the start of big, by {until} at the latest"
    assert found.admit(job("cpus", owner="ada"), 1, cpus(1)) == (1, None)


def test_who_waits_behind_another_one_has_nothing_kept_elsewhere() -> None:
    """Its start is unknown, so what is kept under its other quota would be idle."""
    world = World(nodes=1, cpu=16, gpu=8)
    caps = {
        "q": desired.Quota("q", queue="default", resources=desired.QuotaAmounts(gpu_milli=4000)),
        "ada": desired.Quota("ada", user="ada", resources=desired.QuotaAmounts(cpu_milli=9000)),
    }
    world.change_structure(quotas=caps)
    world.commit(job("runs", gpu=3, owner="bob", time_limit_s=3600))
    world.settle()
    observed = world.memory.observed(
        *world.memory.take_input(), world.memory.take_asked(), world.memory.take_provisioned()
    )
    found = quota_usage.accounts_of_records(world.structure, observed, world.now)
    late, gpu = world.now - 4 * DAY_S, resources.Resources(gpu_milli=1000)
    assert found.admit(job("first", gpu=4, owner="bob"), 1, (gpu,) * 4, since=late)[0] == 0
    assert found.admit(job("second", gpu=3, owner="ada"), 1, (gpu,) * 3, since=late)[0] == 0
    assert found.admit(job("cpus", owner="ada"), 1, cpus(1)) == (1, None)


def test_nothing_is_kept_under_a_cap_that_endless_work_fills() -> None:
    world = World(nodes=1, cpu=16, gpu=8)
    cap = desired.Quota("q", user="ada", resources=desired.QuotaAmounts(gpu_milli=4000))
    world.change_structure(quotas={"q": cap})
    world.commit(job("serves", gpu=3, owner="ada"))
    world.settle()
    world.commit(job("big", gpu=2, owner="ada", time_limit_s=60))
    world.advance(4 * DAY_S)
    world.commit(job("small", gpu=1, owner="ada", time_limit_s=60))
    world.settle()
    assert world.state("small").value == "Running"


@pytest.mark.parametrize(
    ("running", "told", "unblocks"),
    [
        (
            (),
            "1 job of ada run at once: 0 run, and wide goes first",
            "wait for the start and the end of wide",
        ),
        (
            ("runs",),
            "2 jobs of ada run at once: 1 runs, and wide goes first",
            "wait for the end of one",
        ),
    ],
)
def test_who_goes_first_under_a_number_of_jobs_is_not_told_to_run(
    running: tuple[str, ...], told: str, unblocks: str
) -> None:
    world = World(nodes=1, cpu=8)
    cap = desired.Quota("q", user="ada", running=1 + len(running))
    world.change_structure(quotas={"q": cap})
    world.commit(job("other", cpu=6, owner="bob"), *(job(name, owner="ada") for name in running))
    world.settle()
    world.commit(job("wide", cpu=4, owner="ada"), job("small", owner="ada"))
    world.settle()
    reason = world.memory.reasons[world.memory.jobs["small"].reason_key][0]
    assert reason.message == f"Quota q lets {told}"
    assert reason.unblocks.startswith(unblocks)
    world.end("other")
    assert world.state("wide").value == "Running"
    reason = world.memory.reasons[world.memory.jobs["small"].reason_key][0]
    assert reason.message == f"Quota q lets {told.partition(':')[0]}"


def test_who_waits_behind_waiting_work_is_told_to_hold_it() -> None:
    """Its turn under the cap is kept, also against work for nodes that are free."""
    world = World(nodes=1, cpu=4)
    quota = desired.Quota("q", user="ada", resources=desired.QuotaAmounts(cpu_milli=4000))
    world.change_structure(quotas={"q": quota})
    world.commit(job("busy", cpu=1, owner="bob"))
    world.settle()
    world.commit(*world.jobs.values(), job("large", cpu=4, owner="ada"))
    world.settle()
    world.commit(job("small", cpu=1, owner="ada"))
    world.settle()
    states = {"busy": "Running", "large": "Pending", "small": "Pending"}
    assert world.states() == states
    reason = world.memory.reasons[world.memory.jobs["small"].reason_key][0]
    assert reason.unblocks == (
        "wait for the end of other work, hold the waiting work before it, or raise "
        "spec.resources of Quota q"
    )
    world.commit(msgspec.structs.replace(world.jobs["large"], suspend=True))
    world.settle()
    assert world.states() == states | {"large": "Held", "small": "Running"}
