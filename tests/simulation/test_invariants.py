"""Each checker catches a violation planted for it, and finds nothing where all is well."""

import ast
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from reconciler.core import reconcile
from reconciler.model import desired
from reconciler.model.state import outcome, pending_reasons, records
from reconciler.model.state.states import ELEMENT_CODE, AttemptState, JobState, NodeState
from reconciler.model.values.resources import Resources
from tests.simulation import invariants, rights, views
from tests.simulation.views import Running, View
from tests.unit.core.world import GI, job

NOW = 1_000_000.0
STRUCTURE = desired.Structure(
    settings=desired.ClusterSettings(lease_s=60),
    pools={
        "pool": desired.Pool(
            name="pool", nodes=("n0", "n1"), node_resources=Resources(4000, 8 * GI, 2000)
        )
    },
    queues={
        "default": desired.Queue(name="default"),
        "owner": desired.Queue(
            name="owner", guaranteed=desired.QuotaAmounts(cpu_milli=2000, gpu_milli=2000)
        ),
        "capped": desired.Queue(name="capped", limit=desired.QuotaAmounts(cpu_milli=1000)),
    },
    quotas={
        "ann": desired.Quota(
            "ann", user="ann", resources=desired.QuotaAmounts(cpu_milli=1000), running=1
        )
    },
)


def record(spec: desired.Job, state: JobState, reason_key: str = "") -> records.JobRecord:
    code = ELEMENT_CODE[state if state is not JobState.HELD else JobState.PENDING]
    elements = bytes([code]) * spec.element_count
    return records.JobRecord(spec, state, elements, NOW, reason_key=reason_key)


def attempt(
    spec: desired.Job, index: int = 0, node: str = "n0", **changes: Any
) -> records.AttemptRecord:
    values: dict[str, Any] = {
        "id": f"{spec.key}.0.main.{index}.1",
        "job": spec.name,
        "run": spec.run,
        "job_key": spec.key,
        "element": 0,
        "group": "main",
        "index": index,
        "try_number": 1,
        "node": node,
        "boot_id": "b",
        "resources": spec.groups[0].resources,
        "state": AttemptState.RUNNING,
        "assigned_at": NOW,
        "lease_s": 60,
        **changes,
    }
    return records.AttemptRecord(**values)


def view(
    specs: tuple[desired.Job, ...],
    attempts: tuple[records.AttemptRecord, ...],
    *,
    started: bool = True,
    **changes: Any,
) -> View:
    """Jobs that run, all of whose attempts have just started."""
    plain = View(
        now=NOW,
        structure=STRUCTURE,
        jobs={spec.name: spec for spec in specs},
        job_records={spec.name: record(spec, JobState.RUNNING) for spec in specs},
        attempts={one.id: one for one in attempts},
        nodes={name: records.NodeRecord(name, NodeState.READY, "pool") for name in ("n0", "n1")},
        hardware=dict.fromkeys(("n0", "n1"), Resources(4000, 8 * GI, 2000)),
        running=tuple(Running(one.node, one) for one in attempts),
        started=frozenset(one.id for one in attempts) if started else frozenset(),
    )
    return msgspec.structs.replace(plain, **changes)


ONE = job("one", gpu=1)
PAIR = job("pair", count=2)
HALF = Resources(1000, 0, 500)


def with_resources(name: str, resources: Resources, **changes: Any) -> desired.Job:
    spec = job(name, **changes)
    group = msgspec.structs.replace(spec.groups[0], resources=resources)
    return msgspec.structs.replace(spec, groups=(group,))


def shared(name: str, share_milli: int) -> records.AttemptRecord:
    return attempt(with_resources(name, Resources(100, 0, share_milli)), devices=(0,))


A, B = with_resources("a", HALF), with_resources("b", Resources(100, 0, 600))
DRAINED = msgspec.structs.replace(
    STRUCTURE,
    pools={
        "pool": msgspec.structs.replace(
            STRUCTURE.pools["pool"], drains={"n0": desired.NodeDrain("fan")}
        )
    },
)
TAINTED = msgspec.structs.replace(
    STRUCTURE,
    pools={
        "pool": msgspec.structs.replace(STRUCTURE.pools["pool"], taints=(desired.Taint("slow"),))
    },
)


NEAR = job("near", gpu=2)
NEAR = msgspec.structs.replace(
    NEAR, groups=(msgspec.structs.replace(NEAR.groups[0], inner_required="numa"),)
)
SOCKETS = msgspec.structs.replace(
    STRUCTURE,
    pools={"pool": msgspec.structs.replace(STRUCTURE.pools["pool"], numa=((0, 2), (1, 3)))},
)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (view((A, B), (attempt(A, devices=(0,)), attempt(B, devices=(0,)))), "1100 thousandths"),
        (view((ONE,), (attempt(ONE, devices=(2,)),)), "no device 2"),
        (view((ONE,), (attempt(ONE),)), "takes 1000 of ()"),
        (view((PAIR,), (attempt(PAIR, resources=Resources(5000)),)), "records: n0 has"),
        (
            view((PAIR,), (), running=(Running("n0", attempt(PAIR, resources=Resources(5000))),)),
            "reality: n0 has",
        ),
        (view((PAIR,), (attempt(PAIR),), structure=DRAINED), "which is drained"),
        (view((PAIR,), (attempt(PAIR),), structure=TAINTED), "in spite of its taint"),
        (view((PAIR,), (attempt(PAIR, node="n7"),)), "no pool declares"),
        (
            view((NEAR,), (attempt(NEAR, devices=(0, 1)),), structure=SOCKETS),
            "starts on (0, 1) of ((0, 2), (1, 3))",
        ),
    ],
)
def test_capacity(broken: View, said: str) -> None:
    assert any(said in line for line in invariants.capacity(broken))


def test_gangs_are_decided_whole() -> None:
    assert invariants.whole_gangs(view((PAIR,), (attempt(PAIR),))) == [
        "pair[0] has 1 of 2 tasks of main"
    ]
    three = tuple(attempt(PAIR, index) for index in range(3))
    assert invariants.whole_gangs(view((PAIR,), three)) == ["pair[0] has 3 tasks of main"]


def test_gangs_run_partly_for_a_while_only() -> None:
    partly = invariants.PartlyRunning(silence_s=30, slack_s=10)
    broken = view((PAIR,), (attempt(PAIR),))
    assert partly.check(broken) == []
    later = msgspec.structs.replace(broken, now=NOW + 500)
    assert "runs partly for 500 s" in partly.check(later)[0]
    partly.has_succeeded(attempt(PAIR, 1))
    assert partly.check(later) == [], "the other has done its work"


def waiting(spec: desired.Job, code: pending_reasons.ReasonCode) -> dict[str, Any]:
    hog = job("hog", gpu=2)
    held = [attempt(hog, 0, node, devices=(0, 1)) for node in ("n0", "n1")]
    held[1] = msgspec.structs.replace(held[1], id="other")
    return {
        "specs": (hog, spec),
        "attempts": tuple(held),
        "job_records": {
            "hog": record(hog, JobState.RUNNING),
            spec.name: record(spec, JobState.PENDING, "key"),
        },
        "why": {"key": (pending_reasons.Reason(code, "so it is"),)},
    }


def test_guarantees() -> None:
    no_room = pending_reasons.ReasonCode.INSUFFICIENT_RESOURCES
    spec = job("mine", gpu=1, queue="owner")
    found = rights.guarantees(view(**waiting(spec, no_room)))
    assert found == ["mine is within the guarantee of owner and fits on n0"]
    for other in (job("mine", gpu=1), job("mine", cpu=3, queue="owner")):
        assert not rights.guarantees(view(**waiting(other, no_room)))
    off = waiting(spec, pending_reasons.ReasonCode.DEPENDENCY)
    assert not rights.guarantees(view(**off))


def test_who_waits_for_something_else_does_not_hide_who_is_owed() -> None:
    given = waiting(
        job("mine", gpu=1, queue="owner"), pending_reasons.ReasonCode.INSUFFICIENT_RESOURCES
    )
    later = job("later", gpu=1, queue="owner", priority=99)
    first = record(later, JobState.PENDING, "later")
    given["specs"] += (later,)
    given["job_records"]["later"] = first
    given["why"]["later"] = (
        pending_reasons.Reason(pending_reasons.ReasonCode.DEPENDENCY, "so it is"),
    )
    assert rights.guarantees(view(**given)) == [
        "mine is within the guarantee of owner and fits on n0"
    ]


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (desired.QuotaAmounts(cpu_milli=2000, gpu_milli=2000), True),
        (desired.QuotaAmounts(cpu_milli=2000, gpu_milli=500), False),
        (desired.QuotaAmounts(gpu_milli=2000), False),
    ],
)
def test_guarantees_of_a_pool(there: desired.QuotaAmounts, *, told: bool) -> None:
    """Where GPUs of a pool are guaranteed, only who is guaranteed enough of them there is owed."""
    flavor = desired.QueueFlavor("pool", guaranteed=there)
    owner = msgspec.structs.replace(STRUCTURE.queues["owner"], flavors=(flavor,))
    structure = msgspec.structs.replace(STRUCTURE, queues=STRUCTURE.queues | {"owner": owner})
    spec = job("mine", gpu=1, queue="owner")
    given = waiting(spec, pending_reasons.ReasonCode.INSUFFICIENT_RESOURCES)
    assert bool(rights.guarantees(view(**given, structure=structure))) is told


def test_guarantees_are_due_from_siblings_whatever_the_parent_has() -> None:
    """A parent at its guarantee by what one child borrows, and the other child asks for its own."""
    amounts = desired.QuotaAmounts(cpu_milli=4000, gpu_milli=4000)
    queues = {
        "parent": desired.Queue(name="parent", guaranteed=amounts),
        "owner": desired.Queue(name="owner", parent="parent", guaranteed=amounts),
        "borrower": desired.Queue(name="borrower", parent="parent"),
    }
    structure = msgspec.structs.replace(STRUCTURE, queues=queues)
    code = pending_reasons.ReasonCode.INSUFFICIENT_RESOURCES
    for owner, told in (("owner", True), ("borrower", False)):
        spec = job("mine", gpu=1, queue=owner)
        given = waiting(spec, code)
        hog = job("hog", gpu=2, queue="borrower" if told else "owner")
        given["specs"] = (hog, spec)
        given["job_records"]["hog"] = record(hog, JobState.RUNNING)
        found = rights.guarantees(view(**given, structure=structure))
        assert bool(found) == told, found


CAPPED = job("capped", cpu=2, queue="capped")
FIRM = job("firm", cpu=3, queue="owner", preemptible=False)
ANNS = job("anns", cpu=2, owner="ann")
SMALL = [with_resources(name, Resources(100), owner="ann") for name in ("first", "second")]


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ((CAPPED,), "limit"),
        ((FIRM,), "guarantee of firm work"),
        ((ANNS,), "quota ann has"),
        (tuple(SMALL), "one of 2 under quota ann"),
    ],
)
def test_limits(specs: tuple[desired.Job, ...], said: str) -> None:
    attempts = tuple(attempt(spec) for spec in specs)
    assert any(said in line for line in rights.limits(view(specs, attempts)))
    older = view(specs, attempts, started=False)
    assert rights.limits(older) == [], "what runs already may stay"


@pytest.mark.parametrize(("gpus", "told"), [(500, True), (1000, False), (None, True)])
def test_firm_work_does_not_borrow_in_a_pool(gpus: int | None, *, told: bool) -> None:
    spec = job("firm", gpu=1, queue="owner", preemptible=False)
    there = desired.QueueFlavor("pool", guaranteed=desired.QuotaAmounts(gpu_milli=gpus))
    other = desired.QueueFlavor("pool", guaranteed=desired.QuotaAmounts(gpu_milli=1000))
    owner = msgspec.structs.replace(STRUCTURE.queues["owner"], flavors=(there,))
    mate = desired.Queue("mate", flavors=(other,))
    queues = STRUCTURE.queues | {"owner": owner, "mate": mate}
    structure = msgspec.structs.replace(STRUCTURE, queues=queues)
    found = rights.limits(view((spec,), (attempt(spec, devices=(0,)),), structure=structure))
    assert any("starts firm in pool" in line for line in found) is told


@pytest.mark.parametrize("pool", ["pool", "elsewhere"])
@pytest.mark.parametrize("whose", ["default", "rented"])
def test_limits_of_a_pool(whose: str, pool: str) -> None:
    few, spec = desired.QuotaAmounts(cpu_milli=1000), job("wide", cpu=2, queue="default")
    queue = desired.Queue("default", flavors=(desired.QueueFlavor(pool, limit=few),))
    structure = msgspec.structs.replace(
        STRUCTURE,
        queues=STRUCTURE.queues | ({"default": queue} if whose == "default" else {}),
        quotas={"rented": desired.Quota("rented", pool=pool, resources=few)}
        if whose == "rented"
        else {},
    )
    found = rights.limits(view((spec,), (attempt(spec),), structure=structure))
    assert any(f"{whose} has" in line for line in found) is (pool == "pool")
    older = view((spec,), (attempt(spec),), structure=structure, started=False)
    assert rights.limits(older) == [], "what runs already may stay"


def test_jobs_are_not_lost_and_end_once() -> None:
    assert invariants.Jobs().check(view((ONE,), (), job_records={})) == [
        "one is in git and nowhere else"
    ]
    assert invariants.Jobs().check(view((ONE,), (), jobs={})) == ["one has left git and lives on"]
    jobs = invariants.Jobs()
    assert jobs.check(view((ONE,), ())) == []
    assert f"{ONE.key} is gone without an end" in jobs.check(view((ONE,), (), job_records={}))
    jobs = invariants.Jobs()
    over = {"one": record(ONE, JobState.SUCCEEDED)}
    assert jobs.check(view((ONE,), (), job_records=over)) == []
    assert jobs.check(view((ONE,), ())) == [f"{ONE.key} was Succeeded and is Running"]
    ghost = view((ONE,), (attempt(ONE),), job_records=over)
    assert "its job has ended" in invariants.Jobs().check(ghost)[0]


def test_tasks_run_once() -> None:
    again = attempt(PAIR, node="n1", try_number=2, id="again")
    both = view((PAIR,), (attempt(PAIR), again))
    assert "runs twice" in invariants.once(both)[0]


def test_decisions_are_the_same() -> None:
    first = reconcile.reconcile(desired.Desired(), records.Observed(), NOW)
    assert invariants.same(first, first) == []
    other = msgspec.structs.replace(first, actions=(outcome.StartAttempt("a", "n0"),))
    assert invariants.same(first, other) == ["the same input decides otherwise about actions"]


def test_rest() -> None:
    before = view((PAIR,), (attempt(PAIR), attempt(PAIR, 1)))
    assert invariants.moves(before, before) == []
    after = view((PAIR,), (attempt(PAIR), attempt(PAIR, 1, state=AttemptState.STOPPING)))
    assert invariants.moves(before, after) == [f"{attempt(PAIR, 1).id} moves"]
    lives = invariants.ended(before)
    assert any("is Running at rest" in line for line in lives)
    assert any("runs on n0" in line for line in lives)


@pytest.mark.parametrize(
    ("strict", "first", "rests"),
    [(True, "NeverFits", True), (False, "NeverFits", False), (True, "BackingOff", False)],
)
def test_who_waits_behind_the_first_of_a_strict_queue_may_wait_as_long(
    *, strict: bool, first: str, rests: bool
) -> None:
    queues = {"default": desired.Queue(name="default", strict=strict)}
    why = {
        "first": (pending_reasons.Reason(pending_reasons.ReasonCode(first), "not yet"),),
        "behind": (
            pending_reasons.Reason(pending_reasons.ReasonCode.BEHIND, "one goes first: strict"),
        ),
    }
    waits = view(
        (ONE, PAIR),
        (),
        structure=msgspec.structs.replace(STRUCTURE, queues=queues),
        job_records={
            "one": record(ONE, JobState.PENDING, "first"),
            "pair": record(PAIR, JobState.PENDING, "behind"),
        },
        why=why,
    )
    assert (invariants.ended(waits) == []) is rests


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        (JobState.PENDING, None, "for no reason"),
        (JobState.SUCCEEDED, "Behind", "and waits for"),
        (JobState.PENDING, "Held", "not true"),
        (JobState.PENDING, "BackingOff", "not true"),
        (JobState.PENDING, "Dependency", "not true"),
        (JobState.PENDING, "ArrayLimit", "not true"),
        (JobState.PENDING, "NeverFits", "not true"),
    ],
)
def test_reasons(state: JobState, code: str | None, said: str) -> None:
    told = (pending_reasons.Reason(pending_reasons.ReasonCode(code), "so it is"),) if code else ()
    waits = record(ONE, state, "key" if code else "")
    broken = view((ONE,), (), job_records={"one": waits}, why={"key": told})
    assert any(said in line for line in invariants.true_reasons(broken))


@pytest.mark.parametrize(
    "checker",
    [
        invariants.capacity,
        invariants.whole_gangs,
        invariants.PartlyRunning(0, 0).check,
        rights.guarantees,
        rights.limits,
        invariants.Jobs().check,
        invariants.once,
        invariants.true_reasons,
    ],
)
def test_where_all_is_well_nothing_is_found(checker: Callable[[View], list[str]]) -> None:
    specs = (ONE, PAIR)
    attempts = (attempt(ONE, devices=(1,)), attempt(PAIR), attempt(PAIR, 1, "n1"))
    assert checker(view(specs, attempts)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"structure": msgspec.structs.replace(STRUCTURE)},
        {"generation": 2},
        {"job_records": {}},
        {"attempts": {}},
        {"nodes": {"n0": records.NodeRecord("n0", NodeState.UNKNOWN, "pool")}},
        {"why": {"key": (pending_reasons.Reason(pending_reasons.ReasonCode.BEHIND, "others"),)}},
        {"running": (Running("n0", attempt(ONE), told=True),)},
        {"started": frozenset({"one"})},
        {"ended": (record(ONE, JobState.SUCCEEDED),)},
        {},
    ],
)
def test_what_checkers_look_at_again(changes: dict[str, object]) -> None:
    """Whatever changes is looked at; what each cycle has of its own, always."""
    plain = view((ONE,), (attempt(ONE),), started=False)
    later = msgspec.structs.replace(plain, now=NOW + 1, **changes)
    assert later.is_as(plain) is (not changes)


@pytest.mark.parametrize("module", [invariants, rights, views])
def test_checkers_import_the_model_alone(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    named = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    plain = [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    sources = {node.module or "" for node in named}
    ours = {source for source in sources if source.partition(".")[0] in ("reconciler", "tests")}
    allowed = ("reconciler.model", "tests.simulation")
    assert all(source.startswith(allowed) for source in ours), ours
    names = {alias.name for node in named for alias in node.names if node.module == allowed[1]}
    assert names <= {"invariants", "views"}
    assert set(plain) <= {"msgspec"}
    assert sources - ours <= {"collections", "collections.abc"}
