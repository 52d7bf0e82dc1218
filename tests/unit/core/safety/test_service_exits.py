"""Nodes that a change takes out of service although their pool keeps them."""

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reconciler.core.safety import impact, sync_limits
from reconciler.model import desired
from reconciler.model.observed import devices, health_checks, job_commands, storage
from reconciler.model.state import records, states
from reconciler.model.values import times
from reconciler.model.values.resources import Resources
from tests.unit.core import world
from tests.unit.core.safety.test_impact import pool, running, state, structured, told

NOW = times.parse_time("2026-11-25T10:00:00Z")
GI = 2**30
FAILED = health_checks.CheckResult("nccl", "failed", "slow")


def seen(*names: str, **changes: Any) -> records.Observed:
    """Return nodes that report 8 GPUs of a model, and other facts."""
    gpus = tuple(
        records.Gpu(index=index, uuid=f"GPU-{index}", model="NVIDIA H200", memory_bytes=141 * GI)
        for index in range(8)
    )
    inventory = records.Inventory(
        capacity=Resources(64_000, 256 * GI, 8000),
        gpus=gpus,
        gpu_driver=devices.GpuDriver("ok", version="550.54"),
    )
    inventory = msgspec.structs.replace(inventory, **changes)
    return records.Observed(
        nodes={
            name: records.NodeRecord(
                name, states.NodeState.READY, "a", inventory=inventory, last_report_at=NOW
            )
            for name in names
        }
    )


FOUR = seen("a0", "a1", "a2", "a3")
A4 = pool("a", 4)
CHECKED = pool("a", 4, checks=health_checks.CheckPlan())


def measured(
    before: desired.Desired, after: desired.Desired, observed: records.Observed = FOUR
) -> impact.Impact:
    return impact.measure_impact(before, after, observed, NOW)


def of(before: desired.Pool, after: desired.Pool, observed: records.Observed) -> impact.Impact:
    return measured(state(before), state(after), observed)


def larger(memory_gi: int, gpus: int = 8) -> dict[str, Any]:
    return {"node_resources": Resources(64_000, memory_gi * GI, gpus * 1000)}


@pytest.mark.parametrize(
    ("before", "after", "observed", "leaving", "why"),
    [
        (A4, pool("a", 4, **larger(512)), FOUR, 32, "of memory, 512Gi declared"),
        (A4, pool("a", 4, gpus=9), FOUR, 32, "8 GPUs, 9 declared"),
        (A4, pool("a", 4, gpu_model="H100"), FOUR, 32, "GPU 0 is a NVIDIA H200"),
        (A4, pool("a", 4, gpu_model="h200"), FOUR, 0, ""),
        (A4, pool("a", 4, gpu_driver="560"), FOUR, 32, "NVIDIA driver 550.54, 560 declared"),
        (
            A4,
            pool("a", 4, gpu_memory_bytes=180 * GI),
            FOUR,
            32,
            "of memory in GPU 0, 180Gi declared",
        ),
        # one node has less than is asked now
        (A4, pool("a", 4, gpu_model="H100"), seen("a2"), 8, "GPU 0 is a NVIDIA H200"),
        # nobody knows of nodes that never reported
        (A4, pool("a", 4, gpu_model="H100"), records.Observed(), 0, ""),
        # virtual nodes become what their pool declares
        (
            pool("a", 4, provisioner="virtual"),
            pool("a", 4, gpus=9, provisioner="virtual"),
            seen("a0", "a1", virtual=True),
            0,
            "",
        ),
        # what is broken on both sides leaves by no change, and is no less to lose
        (pool("a", 4, gpus=9), pool("a", 4, gpus=9, grace_s=9), FOUR, 0, ""),
        # a failed check that did not count, counts
        (A4, CHECKED, seen("a0", checks=(FAILED,)), 8, "check nccl failed: slow"),
        # a taint keeps away who does not tolerate it; a soft one nobody, nor one that was there
        (A4, pool("a", 4, taints=(desired.Taint("x", "y"),)), FOUR, 32, "new taint x=y"),
        (A4, pool("a", 4, taints=(desired.Taint("x", hard=False),)), FOUR, 0, ""),
        (
            pool("a", 4, taints=(desired.Taint("x"),)),
            pool("a", 4, taints=(desired.Taint("x"),), grace_s=9),
            FOUR,
            0,
            "",
        ),
    ],
)
def test_nodes_that_a_change_makes_unfit(
    before: desired.Pool, after: desired.Pool, observed: records.Observed, leaving: int, why: str
) -> None:
    found = of(before, after, observed)
    assert found.total.gpus_leaving == leaving
    assert all(why in one.why for one in found.exits)
    assert len(found.exits) == leaving // 8
    assert found.total.gpus_before + found.total.gpus_entering - leaving == found.total.gpus_after


def test_what_repairs_a_pool_brings_its_nodes_into_service() -> None:
    found = of(pool("a", 4, gpu_model="H100"), A4, FOUR)
    assert (found.total.gpus_before, found.total.gpus_entering, found.exits) == (0, 32, ())


def test_a_node_that_moves_to_a_pool_that_it_does_not_fit_leaves() -> None:
    before = state(A4, pool("b", 1, gpu_model="H100"))
    after = state(pool("a", 3), pool("b", 1, nodes=("b0", "a3"), gpu_model="H100"))
    found = measured(before, after)
    assert [(one.node, one.pool) for one in found.exits] == [("a3", "b")]
    assert found.total.gpus_lost == 8


def test_nodes_that_are_added_and_do_not_fit_enter_no_service() -> None:
    found = of(pool("a", 2), pool("a", 4, gpu_model="H100"), seen("a3"))
    assert (found.total.gpus_entering, found.exits) == (8, ())


# --- reservations -----------------------------------------------------------------------------


def reservation(name: str = "r", **changes: Any) -> desired.Reservation:
    said: dict[str, Any] = {
        "nodes": A4.nodes,
        "starts_at": NOW + 3600,
        "ends_at": NOW + 7200,
    } | changes
    return desired.Reservation(name, **said)


def reserved(*found: desired.Reservation) -> desired.Desired:
    before = state(A4)
    table = {one.name: one for one in found}
    return msgspec.structs.replace(
        before, structure=msgspec.structs.replace(before.structure, reservations=table)
    )


def amounts(gpus: int) -> desired.QuotaAmounts:
    return desired.QuotaAmounts(gpu_milli=gpus * 1000)


ALL_4 = list(A4.nodes)
HOURLY = ((0,), None, None, None, None)
NIGHTLY = ((0,), (2,), None, None, None)


@pytest.mark.parametrize(
    ("before", "after", "nodes"),
    [
        ((), (reservation(maintenance=True),), ALL_4),
        ((), (reservation(users=("ada",)),), ALL_4),
        ((), (reservation(nodes=("a1", "gone")),), ["a1"]),
        ((), (reservation(amounts=amounts(16)),), ["a0", "a1"]),
        ((), (reservation(amounts=amounts(12)),), ["a0", "a1"]),
        ((reservation(amounts=amounts(8)),), (reservation(amounts=amounts(16)),), ["a1"]),
        ((), (reservation(starts_at=NOW - 20, ends_at=NOW - 10),), []),
        # long ahead is no less: nobody is asked again when it begins
        ((), (reservation(starts_at=NOW + 3e7, ends_at=NOW + 6e7),), ALL_4),
        ((), (reservation(schedule=NIGHTLY, duration_s=60),), ALL_4),
        ((reservation(),), (), []),
        ((reservation(),), (reservation(),), []),
        ((reservation(),), (reservation(ends_at=NOW + 7000),), []),
        ((reservation(),), (reservation(ends_at=NOW + 7300),), ALL_4),
        ((reservation(),), (reservation(nodes=("a0", "a1")),), []),
        ((reservation(nodes=("a0", "a1")),), (reservation(),), ["a2", "a3"]),
        ((reservation(users=("ada",)),), (reservation(users=("ada", "bob")),), []),
        ((reservation(users=("ada", "bob")),), (reservation(users=("ada",)),), ALL_4),
        ((reservation(),), (reservation(maintenance=True),), ALL_4),
        ((reservation(maintenance=True),), (reservation(),), []),
        (
            (reservation(schedule=NIGHTLY, duration_s=60),),
            (reservation(schedule=NIGHTLY, duration_s=90),),
            ALL_4,
        ),
    ],
)
def test_reservations_take_out_what_they_keep_and_did_not_keep(
    before: tuple[desired.Reservation, ...],
    after: tuple[desired.Reservation, ...],
    nodes: list[str],
) -> None:
    found = measured(reserved(*before), reserved(*after))
    assert found.total.gpus_lost == 8 * len(nodes)
    assert [one.node for one in found.exits] == nodes


OPEN: dict[str, Any] = {"starts_at": NOW - 60, "ends_at": NOW + 60}


@pytest.mark.parametrize(
    ("before", "after", "gpus"),
    [
        (reservation(nodes=("a0",), maintenance=True), None, (32, 32)),
        (reservation(nodes=("a0",), maintenance=True, **OPEN), None, (24, 32)),
        (
            reservation(nodes=("a0",), maintenance=True, **OPEN),
            reservation(nodes=("a0", "a1"), maintenance=True, **OPEN),
            (24, 16),
        ),
        # who has reserved nodes uses them
        (reservation(nodes=("a0",), users=("ada",), **OPEN), None, (32, 32)),
        (
            reservation(nodes=("a0",), maintenance=True, schedule=HOURLY, duration_s=3600),
            None,
            (24, 32),
        ),
    ],
)
def test_nodes_in_maintenance_are_out_of_service_while_it_lasts(
    before: desired.Reservation, after: desired.Reservation | None, gpus: tuple[int, int]
) -> None:
    found = measured(reserved(before), reserved(*[after] if after else ())).total
    assert (found.gpus_before, found.gpus_after) == gpus
    assert found.gpus_managed == 32
    unchanged = measured(reserved(before), reserved(before)).total
    assert (unchanged.gpus_before, unchanged.gpus_after) == (gpus[0], gpus[0])


# --- limits and running work ------------------------------------------------------------------


def test_what_makes_a_pool_unfit_is_held_with_the_reason_and_looked_at_again() -> None:
    gate = sync_limits.SafetyGate(lambda: FOUR, lambda: NOW)
    found = gate.judge(state(A4), state(pool("a", 4, gpu_model="H100")), frozenset())
    (one,) = found.findings
    assert "32 of 32 GPUs (100%) leave service (a[0-3]: GPU 0 is a NVIDIA H200" in one.message
    assert found.until == NOW + sync_limits.LOOK_AT_NODES_S
    approved = frozenset({found.digest})
    assert gate.judge(state(A4), state(pool("a", 4, gpu_model="H100")), approved).findings == ()


def test_one_node_of_several_may_become_unfit_as_any_may_be_drained() -> None:
    gate = sync_limits.SafetyGate(lambda: seen("a2"), lambda: NOW)
    asked = pool("a", 3, gpu_model="H100")
    assert gate.judge(state(pool("a", 3)), state(asked), frozenset()).findings == ()


def test_a_drain_asks_no_records_and_waits_for_none() -> None:
    gate = sync_limits.SafetyGate(lambda: None, lambda: NOW)
    drained = pool("a", 4, drains={"a1": desired.NodeDrain("fan")})
    assert gate.judge(state(A4), state(drained), frozenset()).findings == ()
    found = gate.judge(state(A4), state(pool("a", 4, gpu_model="H100")), frozenset())
    assert {one.rule for one in found.findings} == {"work-unknown"}


@pytest.mark.parametrize(
    ("tolerates", "how"), [((), ["drained"]), ((desired.Toleration("x", None),), [])]
)
def test_jobs_on_nodes_that_leave_are_named_unless_they_may_go_on_there(
    tolerates: tuple[desired.Toleration, ...], how: list[str]
) -> None:
    job = msgspec.structs.replace(world.job("j", gpu=4), tolerations=tolerates)
    place = running(job)
    changed = msgspec.structs.replace(place.pool, taints=(desired.Taint("x"),))
    found = told(place, *structured(place, pools={"pool": changed}))
    assert [one.how for one in found.jobs] == how
    assert not any(one.ends for one in found.jobs)
    assert len(found.exits) == 2


#: A volume of which nodes report nothing.
BUCKET = storage.ObjectStore("https://s3.example.org", "b")


def _volume(*pools: str) -> dict[str, desired.Volume]:
    return {"data": desired.Volume("data", pools=pools, objects=BUCKET)}


@pytest.mark.parametrize(
    ("uses", "after", "leaves"),
    [
        # taken from the pool, or from all
        (("data",), _volume("other"), True),
        (("data",), {}, True),
        # nobody uses it, or it stays
        ((), _volume("other"), False),
        (("else",), {"else": desired.Volume("else", objects=BUCKET)}, False),
        (("data",), _volume("pool"), False),
        (("data",), _volume(), False),
    ],
)
def test_a_volume_that_running_jobs_use_takes_its_nodes_along(
    uses: tuple[str, ...], after: dict[str, desired.Volume], *, leaves: bool
) -> None:
    place = world.World(nodes=2, cpu=8, gpu=8)
    declared = {**_volume("pool"), "else": desired.Volume("else", objects=BUCKET)}
    place.structure = msgspec.structs.replace(place.structure, volumes=declared)
    place.commit(msgspec.structs.replace(world.job("j", gpu=4), volumes=uses))
    place.settle()
    assert place.state("j") is states.JobState.RUNNING
    found = told(place, *structured(place, volumes=after))
    assert len(found.exits) == (2 if leaves else 0)
    assert [one.how for one in found.jobs] == (["drained"] if leaves else [])
    assert not any(one.ends for one in found.jobs)
    assert {one.why for one in found.exits} == (
        {"loses Volume/data, which running jobs use"} if leaves else set()
    )


def test_the_pool_that_loses_nodes_is_told_why_they_do_not_fit_where_they_go() -> None:
    nodes = ("a0", "a1", "a2", "a3")
    gate = sync_limits.SafetyGate(lambda: FOUR, lambda: NOW)
    before = state(A4, pool("b", 4, gpu_model="H100"))
    moved = pool("b", 4, gpu_model="H100")
    moved = msgspec.structs.replace(moved, nodes=(*moved.nodes, *nodes[1:]))
    found = gate.judge(before, state(pool("a", 1), moved), frozenset())
    (of_a,) = [one.message for one in found.findings if "of pool a" in one.message]
    assert "24 of 32 GPUs of pool a (75%) leave service (a[1-3]: GPU 0 is a NVIDIA H200" in of_a


# --- checks of which no result is known -------------------------------------------------------


def command(*words: str, timeout_s: float = 30.0) -> health_checks.CheckCommand:
    return health_checks.CheckCommand("nccl", words, timeout_s)


def plan(**changes: Any) -> health_checks.CheckPlan:
    return health_checks.CheckPlan(**changes)


WITH = plan(commands=(command("a"),))


@pytest.mark.parametrize(
    ("before", "after", "checks"),
    [
        (WITH, WITH, []),
        (plan(), WITH, ["nccl"]),
        (WITH, plan(), []),
        (WITH, plan(commands=(command("b"),)), ["nccl"]),
        (WITH, plan(commands=(command("a", timeout_s=40),)), []),
        (WITH, plan(commands=(command("a", timeout_s=20),)), ["nccl"]),
        (plan(), plan(mounts=("/data",)), ["mounts"]),
        (plan(mounts=("/data",)), plan(), []),
        (plan(off=("clock",)), plan(), ["clock"]),
        (plan(), plan(disk_free_ratio=0.5, stuck_processes=3), ["disk-space", "stuck-processes"]),
        (plan(), plan(gpu_temperature_celsius=10), []),
        (plan(), None, []),
    ],
)
def test_checks_that_are_new_or_stricter(
    before: health_checks.CheckPlan | None, after: health_checks.CheckPlan | None, checks: list[str]
) -> None:
    assert list(health_checks.untried(before, after)) == checks


def test_a_pool_that_begins_to_check_has_tried_none_but_those_of_the_disk() -> None:
    found = health_checks.untried(None, plan(disk_free_ratio=0.005, inodes_free_ratio=0.005))
    assert "disk-space" not in found
    assert {"gpu-ecc", "clock"} <= set(found)


def test_one_node_tries_changed_checks_where_agents_say_what_they_have_checked() -> None:
    before, after = pool("a", 4), pool("a", 4, checks=plan(commands=(command("b"),), before=("b",)))
    known = seen("a0", "a1", checked="")
    (risk,) = of(before, after, known).risks
    assert (risk.nodes, risk.gpus) == (1, 8)
    gate = sync_limits.SafetyGate(lambda: known, lambda: NOW)
    assert gate.judge(state(before), state(after), frozenset()).findings == ()


@pytest.mark.parametrize(("nodes", "held"), [(2, False), (1, True)])
def test_one_trial_in_each_of_many_small_pools_is_not_much_of_the_cluster(
    nodes: int, held: bool
) -> None:
    pools = [pool(name, nodes) for name in "abcd"]
    changed = [msgspec.structs.replace(one, checks=WITH) for one in pools]
    known = seen(*(node for one in pools for node in one.nodes), checked="")
    gate = sync_limits.SafetyGate(lambda: known, lambda: NOW)
    judged = gate.judge(state(*pools), state(*changed), frozenset())
    assert bool(judged.findings) is held
    assert len(measured(state(*pools), state(*changed), known).risks) == 4


def test_a_trial_counts_in_its_pool_beside_what_else_leaves() -> None:
    known = seen("a0", "a1", "a2", "a3", checked="")
    fewer = pool("a", 3, checks=WITH)
    gate = sync_limits.SafetyGate(lambda: known, lambda: NOW)
    (one,) = gate.judge(state(A4), state(fewer), frozenset()).findings
    assert "16 of 32 GPUs of pool a (50%) leave service" in one.message


def test_a_trial_waits_for_a_sync_window() -> None:
    known = seen("a0", "a1", "a2", "a3", checked="")
    window = desired.SyncWindow(
        allow=False, schedule=((0,), None, None, None, None), duration_s=86_400
    )
    safety = desired.SafetyLimits(windows=(window,))
    gate = sync_limits.SafetyGate(lambda: known, lambda: NOW)
    changed = pool("a", 4, checks=WITH)
    (one,) = gate.judge(state(A4, safety=safety), state(changed), frozenset()).findings
    assert one.rule == "outside-window"


@pytest.mark.parametrize(
    ("changes", "gpus", "held"),
    [
        ({}, 8, False),  # what the brake lets go of four nodes, which is one of several
        ({"brake": desired.HealthBrake(share=0.5)}, 16, True),
        ({"brake": desired.HealthBrake(share=1.0)}, 32, True),
        ({"checks": plan(commands=(command("b"),), before=("nccl",))}, 32, True),
        ({"checks": plan(commands=(command("b"),), mounts=("/d",))}, 16, True),
    ],
)
def test_a_changed_check_may_take_out_what_the_brake_lets_go(
    changes: dict[str, Any], gpus: int, held: bool
) -> None:
    before = pool("a", 4, checks=WITH)
    after = pool("a", 4, **({"checks": plan(commands=(command("b"),))} | changes))
    found = of(before, after, FOUR)
    assert (found.total.gpus_lost, found.total.gpus_leaving) == (gpus, 0)
    assert [(one.pool, one.gpus) for one in found.risks] == [("a", gpus)]
    gate = sync_limits.SafetyGate(lambda: FOUR, lambda: NOW)
    judged = gate.judge(state(before), state(after), frozenset())
    assert bool(judged.findings) is held
    if held:
        assert f"(at most {gpus} GPUs of pool a, by " in judged.findings[0].message


# --- the same rule as in the cycle ------------------------------------------------------------

GATED = plan(commands=(command("a"),), before=("nccl",))
DEMANDS = st.fixed_dictionaries(
    {},
    optional={
        "node_resources": st.builds(
            Resources,
            st.sampled_from([4000, 8000, 16_000]),
            st.sampled_from([32 * GI, 64 * GI, 128 * GI]),
            st.sampled_from([4000, 8000]),
        ),
        "checks": st.sampled_from([None, health_checks.CheckPlan(), GATED]),
        "brake": st.builds(desired.HealthBrake, st.sampled_from([0.3, 0.7, 1.0])),
        "grace_s": st.integers(1, 9),
    },
)


@pytest.mark.parametrize(
    ("change", "out"),
    [
        ({"brake": desired.HealthBrake(share=1.0)}, 7),
        ({"brake": desired.HealthBrake(share=0.5)}, 2),
        ({"checks": GATED}, 7),
        ({"grace_s": 9}, 0),
        ({"brake": desired.HealthBrake(share=0.1)}, 0),
    ],
)
def test_what_a_brake_holds_leaves_by_a_change_that_lets_it_go(
    change: dict[str, Any], out: int
) -> None:
    place = world.World(nodes=10, cpu=8, gpu=8)
    place.change_structure(
        pools={"pool": msgspec.structs.replace(place.pool, checks=plan(commands=(command("a"),)))}
    )
    for node in place.nodes.values():
        node.checks = (FAILED,)
    place.settle()
    changed = msgspec.structs.replace(place.structure.pools["pool"], **change)
    before, after = structured(place, pools={"pool": changed})
    found = told(place, before, after)
    assert [one.node for one in found.exits] == [f"n{number}" for number in range(3, 3 + out)]
    gate = sync_limits.SafetyGate(lambda: place.memory.observed((), {}), lambda: place.now)
    assert bool(gate.judge(before, after, frozenset()).findings) is (out > 3)


@settings(max_examples=40, deadline=None)
@example({}, {"checks": plan()}, {"n0", "n1"})
@example({"checks": plan()}, {"checks": plan(), "brake": desired.HealthBrake(1.0)}, {"n0", "n1"})
@example({"checks": plan(), "brake": desired.HealthBrake(0.7)}, {"checks": GATED}, {"n0", "n3"})
@given(DEMANDS, DEMANDS, st.sets(st.sampled_from(["n0", "n1", "n2", "n3"])))
def test_exactly_those_nodes_leave_that_the_next_cycle_takes_out(
    first: dict[str, Any], then: dict[str, Any], failing: set[str]
) -> None:
    place = world.World(nodes=4, cpu=8, gpu=8)
    for name in failing:
        place.nodes[name].checks = (FAILED,)
    place.change_structure(pools={"pool": msgspec.structs.replace(place.pool, **first)})
    place.settle()
    ready = {n for n, one in place.memory.nodes.items() if one.state is states.NodeState.READY}
    changed = msgspec.structs.replace(place.structure.pools["pool"], **then)
    found = told(place, *structured(place, pools={"pool": changed}))
    place.change_structure(pools={"pool": changed})
    place.settle()
    after = {n for n, one in place.memory.nodes.items() if one.state is states.NodeState.READY}
    assert {one.node for one in found.exits} == ready - after
    assert set(found.total.nodes_entering) == after - ready


SCRUB = job_commands.JobCommand("scrub", ("/opt/scrub",))
#: What fails of it is its job's fault.
AS_USER = msgspec.structs.replace(SCRUB, run_as="user")


@pytest.mark.parametrize(
    ("before", "after", "risky"),
    [
        ((), (SCRUB,), ("scrub",)),
        ((SCRUB,), (SCRUB,), ()),
        ((SCRUB,), (), ()),
        ((SCRUB,), (msgspec.structs.replace(SCRUB, timeout_s=90.0),), ()),
        ((SCRUB,), (msgspec.structs.replace(SCRUB, timeout_s=1.0),), ("scrub",)),
        ((SCRUB,), (AS_USER,), ()),
        ((), (AS_USER,), ()),
        ((AS_USER,), (SCRUB,), ("scrub",)),
        ((SCRUB,), (msgspec.structs.replace(SCRUB, command=("/opt/s",)),), ("scrub",)),
    ],
)
@pytest.mark.parametrize("moment", ["before_job", "after_job"])
def test_commands_around_jobs_may_take_out_what_the_brake_lets_go(
    moment: str,
    before: tuple[job_commands.JobCommand, ...],
    after: tuple[job_commands.JobCommand, ...],
    risky: tuple[str, ...],
) -> None:
    old, new = (msgspec.structs.replace(A4, **{moment: one}) for one in (before, after))
    risks = of(old, new, FOUR).risks
    assert [(one.checks, one.nodes, one.gpus, one.trial) for one in risks] == (
        [(risky, 1, 8, False)] if risky else []
    )


@pytest.mark.parametrize(
    ("changes", "checks", "gpus"),
    [
        ({"before_job": (SCRUB,)}, ("scrub",), 24),
        ({"checks": plan(commands=(command("b"),))}, ("nccl",), 24),
        ({}, (), 0),
    ],
)
@pytest.mark.parametrize("moved", [(), ("b",), ("b", "c")])
def test_nodes_are_compared_with_their_former_pool(
    moved: tuple[str, ...], changes: dict[str, Any], checks: tuple[str, ...], gpus: int
) -> None:
    """A pool that gets another name, or is split, hides nothing that its nodes have not tried."""
    was = pool("a", 10, checks=plan(), brake=desired.HealthBrake(0.3))
    beside = pool("z", 50)
    new = msgspec.structs.replace(was, **changes)
    half = len(was.nodes) // len(moved) if moved else 10
    parts = [
        msgspec.structs.replace(new, name=name, nodes=was.nodes[half * at : half * (at + 1)])
        for at, name in enumerate(moved or ("a",))
    ]
    found = measured(state(was, beside), state(*parts, beside), seen(*was.nodes))
    assert {one.checks for one in found.risks} == ({checks} if checks else set())
    assert {one.former for one in found.risks} == ({"a"} if checks else set())
    # of each half, one of five
    assert found.total.gpus_lost == (gpus if len(moved) < 2 or not gpus else 16)
    gate = sync_limits.SafetyGate(lambda: seen(*was.nodes), lambda: NOW)
    safety = desired.SafetyLimits(gpu_share=0.15)
    judged = gate.judge(
        state(was, beside, safety=safety), state(*parts, beside, safety=safety), frozenset()
    )
    # more than the share of the former pool, though little of the cluster
    assert bool(judged.findings) is bool(gpus)


def test_what_the_nodes_of_a_pool_do_already_is_not_new_for_one_that_comes() -> None:
    scrubs = pool("b", 2, before_job=(SCRUB,))
    after = state(pool("a", 3), msgspec.structs.replace(scrubs, nodes=(*scrubs.nodes, "a3")))
    assert measured(state(A4, scrubs), after).risks == ()
    stricter = msgspec.structs.replace(SCRUB, timeout_s=1.0)
    both = msgspec.structs.replace(scrubs, nodes=(*scrubs.nodes, "a3"), before_job=(stricter,))
    risks = measured(state(A4, scrubs), state(pool("a", 3), both)).risks
    assert [(one.former, one.nodes) for one in risks] == [("a", 1), ("b", 1)]
