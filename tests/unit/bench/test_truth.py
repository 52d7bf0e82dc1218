"""Reasons against what can be seen by trying: drawn worlds have none that is false."""

import ast
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench import moment, quota_moment, truth, tryout
from reconciler.model import desired
from reconciler.model.state import pending_reasons, records
from reconciler.model.state.states import EndReason, JobState, NodeState
from reconciler.model.values.resources import Resources
from tests.simulation.test_invariants import attempt, record
from tests.unit.bench import worlds
from tests.unit.core.world import GI, job

EXAMPLES = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
NOW = 1_000_000.0
POOL = desired.Pool(
    name="pool",
    nodes=("n0", "n1"),
    node_resources=Resources(8000, 64 * GI, 4000),
    runs_unmapped=True,
    levels=("rack",),
    domains={"n0": ("r0",), "n1": ("r1",)},
)
QUEUES = {
    "default": desired.Queue("default", guaranteed=desired.QuotaAmounts(gpu_milli=8000)),
    "capped": desired.Queue("capped", limit=desired.QuotaAmounts(gpu_milli=2000)),
    "held": desired.Queue("held", suspend=True),
}
QUOTAS = {
    "ann": desired.Quota("ann", user="ann", resources=desired.QuotaAmounts(gpu_milli=2000)),
    "rich": desired.Quota("rich", user="rich", budget_gpu_s=3600.0),
}


@EXAMPLES
@given(st.integers(0, 2**32))
def test_no_reason_is_false(seed: int) -> None:
    worlds.story(random.Random(seed), Counter())


def test_nearly_all_reasons_can_be_checked() -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for seed in range(30):
        worlds.story(random.Random(seed), counts)
    unknown = sum(count for (_, verdict), count in counts.items() if verdict == "open")
    assert unknown < 0.1 * counts.total(), counts


def running(
    spec: desired.Job, node: str = "n0", devices: tuple[int, ...] = (0,), index: int = 0
) -> records.AttemptRecord:
    """A task of a job that started a while ago."""
    return attempt(spec, index, node, devices=devices, assigned_at=NOW - 60)


def judged(
    spec: desired.Job,
    code: str,
    message: str = "so it is",
    attempts: tuple[records.AttemptRecord, ...] = (),
    **changes: Any,
) -> truth.Finding:
    """What is found of a reason (of ``why`` the first) of a job that waits, beside others."""
    reason = pending_reasons.Reason(pending_reasons.ReasonCode(code), message)
    others = {one.job: record(HOG, JobState.RUNNING) for one in attempts}
    nodes = {name: records.NodeRecord(name, NodeState.READY, "pool") for name in POOL.nodes}
    values: dict[str, Any] = {
        "now": NOW,
        "structure": desired.Structure(pools={"pool": POOL}, queues=QUEUES, quotas=QUOTAS),
        "job_records": {**others, spec.name: record(spec, JobState.PENDING, "key")},
        "attempts": {one.id: one for one in attempts},
        "nodes": nodes,
        "why": {"key": (reason,)},
        **changes,
    }
    return next(truth.Checker(moment.Seen(**values)).findings())


HOG = job("hog", gpu=4)
ONE = job("one", gpu=1)
FOUR = job("four", gpu=4)
OTHER = job("other", gpu=1)
NEAR = job("near", gpu=1, topology=desired.TopologyConstraint(required="rack"))
BOTH = (running(HOG, "n0", (0, 1, 2, 3), index=0), running(HOG, "n1", (0, 1, 2, 3), index=1))
LEAVES = msgspec.structs.replace(
    BOTH[0], stop=records.StopOrder(EndReason.PREEMPTED, "SIGTERM", 30, NOW)
)
AFTER = desired.Dependency("hog")
DUE = "it would fit now, but it could still run when room is due to hog at 1970-01-12T13:48:20Z"
FIRST = "it would fit, but others go first: hog"
WAITS = {"hog": record(HOG, JobState.PENDING)}
DONE = {"hog": record(HOG, JobState.SUCCEEDED)}


def waits_for(spec: desired.Job, others: dict[str, records.JobRecord]) -> dict[str, Any]:
    """Records of a job that waits beside others."""
    return {"job_records": {**others, spec.name: record(spec, JobState.PENDING, "key")}}


#: Of each code a reason that is true, and one that is planted.
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Held", {"spec": job("x", queue="held")}, {"spec": ONE}),
    ("Invalid", {"spec": job("x", queue="gone")}, {"spec": ONE}),
    (
        "DependencyNeverMet",
        waits_for(job("x", depends_on=(desired.Dependency("hog", "afterNotOk"),)), DONE),
        waits_for(job("x", depends_on=(AFTER,)), DONE),
    ),
    (
        "Dependency",
        waits_for(job("x", depends_on=(AFTER,)), WAITS),
        waits_for(job("x", depends_on=(AFTER,)), DONE),
    ),
    (
        "BackingOff",
        {
            "job_records": {
                "x": msgspec.structs.replace(
                    record(job("x"), JobState.PENDING, "key"),
                    notes={0: records.ElementNote(not_before=NOW + 9)},
                )
            }
        },
        {"spec": ONE},
    ),
    (
        "ArrayLimit",
        {"spec": job("x", array_count=3, parallelism=1), "promised": {"x": 1}},
        {"spec": job("x", array_count=3, parallelism=1)},
    ),
    ("OverLimit", {"spec": job("x", queue="capped", gpu=3)}, {"spec": job("x", queue="capped")}),
    (
        "OverLimit",
        {"spec": job("x", owner="ann", gpu=3), "message": "Quota ann limits ann"},
        {"spec": job("x", owner="ann", gpu=2), "message": "Quota ann limits ann"},
    ),
    (
        "OverBudget",
        {"spec": job("x", owner="rich", gpu=2), "message": "Quota rich gives rich"},
        {"spec": job("x", gpu=2), "message": "Quota rich gives rich"},
    ),
    ("NeverFits", {"spec": job("x", gpu=5)}, {"spec": FOUR}),
    ("NeverFits", {"spec": job("x", gpu=9, preemptible=False)}, {"spec": FOUR}),
    (
        "NoTopologyDomain",
        {"spec": msgspec.structs.replace(NEAR, groups=job("x", gpu=2, count=3).groups)},
        {"spec": NEAR},
    ),
    ("NoTopologyDomain", {"spec": NEAR, "attempts": BOTH}, {"spec": ONE, "attempts": BOTH}),
    (
        "WaitingForQuota",
        {"spec": job("x", gpu=1, queue="capped", preemptible=False)},
        {"spec": job("x", gpu=1, preemptible=False)},
    ),
    (
        "Fragmented",
        {"spec": FOUR, "attempts": (running(ONE, "n0"), running(OTHER, "n1"))},
        {"spec": FOUR, "attempts": BOTH},
    ),
    ("InsufficientResources", {"spec": ONE, "attempts": BOTH}, {"spec": ONE}),
    (
        "InsufficientResources",
        {"spec": job("x", gpu=2, count=4), "attempts": BOTH[:1]},
        {"spec": job("x", gpu=2, count=2), "attempts": BOTH[:1]},
    ),
    (
        "WaitingForEvictions",
        {"spec": FOUR, "attempts": (LEAVES, BOTH[1]), "promised": {"four": 1}},
        {"spec": FOUR, "attempts": BOTH, "promised": {"four": 1}},
    ),
    (
        "Reserved",
        {"message": DUE, **waits_for(ONE, WAITS)},
        {"message": DUE, **waits_for(job("x", gpu=1, time_limit_s=60), WAITS)},
    ),
    (
        "Behind",
        {
            "spec": ONE,
            "message": FIRST,
            "attempts": tuple(msgspec.structs.replace(one, assigned_at=NOW) for one in BOTH),
        },
        {"spec": ONE, "message": FIRST, "attempts": BOTH},
    ),
]


@pytest.mark.parametrize(
    ("code", "true", "planted"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_planted_reason_is_found(
    code: str, true: dict[str, Any], planted: dict[str, Any]
) -> None:
    for given_, verdict in ((true, truth.Verdict.TRUE), (planted, truth.Verdict.FALSE)):
        finding = judged(**{"spec": ONE, "code": code, **given_})
        assert finding.verdict is verdict, finding


@pytest.mark.parametrize(("codes", "verdict"), [(["Behind"], "false"), (["Reserved"], "open")])
def test_room_that_is_due_to_others_by_another_reason_proves_nothing(
    codes: list[str], verdict: str
) -> None:
    """Who is behind one job on n0 fits on n1, which is due to another: both are told."""
    began = msgspec.structs.replace(BOTH[0], assigned_at=NOW)
    told = {"Behind": FIRST, "Reserved": DUE.replace("hog", "other")}
    why = [
        pending_reasons.Reason(pending_reasons.ReasonCode(one), told[one])
        for one in ["Behind", *codes]
    ]
    found = judged(ONE, "Behind", FIRST, (began,), why={"key": tuple(why)})
    assert found.verdict == verdict, found


def test_every_code_has_its_plant() -> None:
    planted = {code for code, *_ in CASES}
    rest = {"NotAllowed", "NoUnixUser"}
    assert planted | rest == {code.value for code in pending_reasons.ReasonCode}


def test_checkers_import_the_model_alone() -> None:
    allowed = {"bench", "bench.tryout", "bench.moment"}
    for module in (truth, moment, quota_moment, tryout):
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        named = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        ours = {name for name in named if name.partition(".")[0] in ("reconciler", "bench")}
        assert all(name.startswith("reconciler.model") for name in ours - allowed), ours


@pytest.mark.parametrize(("assigned_at", "verdict"), [(NOW, "true"), (NOW - 5, "false")])
def test_a_cap_lets_all_tasks_of_an_element_through(assigned_at: float, verdict: str) -> None:
    """One of two tasks got room in this cycle: what the other had counted with is given back."""
    plain = job("hog", gpu=1, count=2, owner="ann")
    group = msgspec.structs.replace(plain.groups[0], minimum=1)
    elastic = msgspec.structs.replace(plain, groups=(group,))
    one = job("one", gpu=1, owner="ann")
    began = msgspec.structs.replace(running(elastic), assigned_at=assigned_at)
    found = judged(
        one,
        "OverLimit",
        "Quota ann limits ann to 2 GPUs: 2 GPUs in use, 1 GPU asked",
        attempts=(began,),
        job_records={
            "hog": record(elastic, JobState.STARTING),
            "one": record(one, JobState.PENDING, "key"),
        },
    )
    assert found.verdict == verdict, found.because


@pytest.mark.parametrize(("queue", "verdict"), [("default", "true"), ("other", "false")])
def test_what_a_guarantee_covers_goes_before_older_work(queue: str, verdict: str) -> None:
    """A cap leaves nothing for the older job, as room may come for the guaranteed one first."""
    late = msgspec.structs.replace(
        record(job("late", gpu=2, owner="ann", queue=queue), JobState.PENDING), order=2
    )
    old = job("old", gpu=1, owner="ann", queue="other")
    found = judged(
        old,
        "OverLimit",
        "Quota ann limits ann to 2 GPUs: 0 GPUs in use, 2 GPUs left to work before it, 1 asked",
        job_records={"old": record(old, JobState.PENDING, "key"), "late": late},
        structure=desired.Structure(
            pools={"pool": POOL}, queues={**QUEUES, "other": desired.Queue("other")}, quotas=QUOTAS
        ),
    )
    assert found.verdict == verdict, found.because


@pytest.mark.parametrize(("minimum", "verdict"), [(1, "true"), (None, "false")])
def test_an_elastic_job_goes_before_with_what_it_may_start_with(
    minimum: int | None, verdict: str
) -> None:
    """All of it is more than the cap leaves, and its smallest is what its guarantee covers."""
    late = job("late", gpu=1, count=2, owner="ann", queue="some")
    group = msgspec.structs.replace(late.groups[0], minimum=minimum)
    late = msgspec.structs.replace(late, groups=(group,))
    old, hog = (job(name, gpu=1, owner="ann", queue="other") for name in ("old", "hog"))
    found = judged(
        old,
        "OverLimit",
        "Quota ann limits ann to 2 GPUs: 1 GPU in use, 1 GPU left to work before it, 1 asked",
        attempts=(running(hog),),
        job_records={
            "old": record(old, JobState.PENDING, "key"),
            "hog": record(hog, JobState.RUNNING),
            "late": msgspec.structs.replace(record(late, JobState.PENDING), order=2),
        },
        structure=desired.Structure(
            pools={"pool": POOL},
            queues={
                "other": desired.Queue("other"),
                "some": desired.Queue("some", guaranteed=desired.QuotaAmounts(gpu_milli=1000)),
            },
            quotas=QUOTAS,
        ),
    )
    assert found.verdict == verdict, found.because
