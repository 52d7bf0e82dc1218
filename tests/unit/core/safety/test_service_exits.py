"""Nodes that a change takes out of service although their pool keeps them."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core.safety import impact, sync_limits
from reconciler.model import desired
from reconciler.model.observed import devices, health_checks
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
        (A4, pool("a", 4, **larger(512)), FOUR, 32, "bytes of memory"),
        (A4, pool("a", 4, gpus=9), FOUR, 32, "8 GPUs, 9 declared"),
        (A4, pool("a", 4, gpu_model="H100"), FOUR, 32, "GPU 0 is a NVIDIA H200"),
        (A4, pool("a", 4, gpu_model="h200"), FOUR, 0, ""),
        (A4, pool("a", 4, gpu_driver="560"), FOUR, 32, "NVIDIA driver 550.54, 560 declared"),
        (A4, pool("a", 4, gpu_memory_bytes=180 * GI), FOUR, 32, "bytes of memory in GPU 0"),
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


NIGHTLY = ((0,), (2,), None, None, None)


@pytest.mark.parametrize(
    ("before", "after", "nodes"),
    [
        ((), (reservation(maintenance=True),), 4),
        ((), (reservation(users=("ada",)),), 4),
        ((), (reservation(nodes=("a1", "gone")),), 1),
        ((), (reservation(amounts=amounts(16)),), 2),
        ((), (reservation(amounts=amounts(12)),), 2),
        ((reservation(amounts=amounts(8)),), (reservation(amounts=amounts(16)),), 1),
        ((), (reservation(starts_at=NOW - 20, ends_at=NOW - 10),), 0),
        # long ahead is no less: nobody is asked again when it begins
        ((), (reservation(starts_at=NOW + 3e7, ends_at=NOW + 6e7),), 4),
        ((), (reservation(schedule=NIGHTLY, duration_s=60),), 4),
        ((reservation(),), (), 0),
        ((reservation(),), (reservation(),), 0),
        ((reservation(),), (reservation(ends_at=NOW + 7000),), 0),
        ((reservation(),), (reservation(ends_at=NOW + 7300),), 4),
        ((reservation(),), (reservation(nodes=("a0", "a1")),), 0),
        ((reservation(nodes=("a0", "a1")),), (reservation(),), 2),
        ((reservation(users=("ada",)),), (reservation(users=("ada", "bob")),), 0),
        ((reservation(users=("ada", "bob")),), (reservation(users=("ada",)),), 4),
        ((reservation(),), (reservation(maintenance=True),), 4),
        ((reservation(maintenance=True),), (reservation(),), 0),
        (
            (reservation(schedule=NIGHTLY, duration_s=60),),
            (reservation(schedule=NIGHTLY, duration_s=90),),
            4,
        ),
    ],
)
def test_reservations_take_out_what_they_keep_and_did_not_keep(
    before: tuple[desired.Reservation, ...], after: tuple[desired.Reservation, ...], nodes: int
) -> None:
    found = measured(reserved(*before), reserved(*after))
    assert found.total.gpus_lost == 8 * nodes
    assert [one.node for one in found.exits] == sorted(A4.nodes)[:nodes] or nodes in {1, 2}


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

DEMANDS = st.fixed_dictionaries(
    {},
    optional={
        "node_resources": st.builds(
            Resources,
            st.sampled_from([4000, 8000, 16_000]),
            st.sampled_from([32 * GI, 64 * GI, 128 * GI]),
            st.sampled_from([4000, 8000]),
        ),
        "checks": st.sampled_from([None, health_checks.CheckPlan()]),
        "grace_s": st.integers(1, 9),
    },
)


@settings(max_examples=40, deadline=None)
@given(DEMANDS, DEMANDS, st.sets(st.sampled_from(["n0", "n1", "n2"])))
def test_exactly_those_nodes_leave_that_the_next_cycle_takes_out(
    first: dict[str, Any], then: dict[str, Any], failing: set[str]
) -> None:
    place = world.World(nodes=3, cpu=8, gpu=8)
    for name in failing:
        place.nodes[name].checks = (FAILED,)
    whole = msgspec.structs.replace(place.pool, brake=desired.HealthBrake(share=1.0))
    place.change_structure(pools={"pool": msgspec.structs.replace(whole, **first)})
    place.settle()
    ready = {n for n, one in place.memory.nodes.items() if one.state is states.NodeState.READY}
    changed = msgspec.structs.replace(place.structure.pools["pool"], **then)
    found = told(place, *structured(place, pools={"pool": changed}))
    place.change_structure(pools={"pool": changed})
    place.settle()
    after = {n for n, one in place.memory.nodes.items() if one.state is states.NodeState.READY}
    assert {one.node for one in found.exits} == ready - after
    assert set(found.total.nodes_entering) == after - ready
