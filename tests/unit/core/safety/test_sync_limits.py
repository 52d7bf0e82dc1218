"""What is held, for which figure, and what an approval covers, as tables."""

from typing import Any

import msgspec
import pytest

from reconciler.core.safety import digests, impact, structure_diff, sync_limits
from reconciler.desired.documents import cron
from reconciler.model import desired
from reconciler.model.rules import recurrence
from reconciler.model.state import instance_records, records
from reconciler.model.values import times
from tests.unit.core import world
from tests.unit.core.safety.test_impact import pool, running, state, told, wanted

NOW = times.parse_time("2026-11-25T10:00:00Z")  # a Wednesday
NONE: frozenset[str] = frozenset()


def judged(
    before: desired.Desired, after: desired.Desired, approvals: frozenset[str] = NONE
) -> list[str]:
    what = impact.measure_impact(before, after, records.Observed(), NOW)
    found = sync_limits.judge(before, what, NOW, approvals)
    return [f"{one.part} {one.rule}" for one in found.findings]


def limits(**values: Any) -> desired.SafetyLimits:
    return desired.SafetyLimits(**values)


A4, A3, A2 = pool("a", 4), pool("a", 3), pool("a", 2)
A4_DRAINED = pool("a", 4, drains={"a0": "fan"})
OVER = ["structure over-limit"]
BOTH = ["structure over-limit", "structure over-limit"]  # of all, and of the pool


@pytest.mark.parametrize(
    ("safe", "before", "after", "expected"),
    [
        (limits(), (A4,), (A3,), []),
        (limits(), (A4,), (A2,), OVER),
        (limits(), (A4, pool("b", 1)), (A2,), BOTH),
        (limits(gpu_floor=33), (A4,), (A2,), []),
        (limits(gpu_floor=32), (A4,), (A2,), OVER),
        (limits(gpu_share=None), (A4,), (), []),
        (limits(gpu_share=0.5), (A4,), (A2,), []),
        (limits(gpu_share=None, gpus=15), (A4,), (A2,), OVER),
        (limits(gpu_share=None, gpus=16), (A4,), (A2,), []),
        # drained nodes make no cluster small: what is left is not free to go
        (limits(gpu_floor=32), (A4_DRAINED,), (), OVER),
        (limits(gpu_floor=33), (A4_DRAINED,), (), []),
        (limits(gpu_floor=32), (A4_DRAINED,), (A4_DRAINED,), []),
        (limits(gpu_floor=32), (A4_DRAINED,), (A4,), []),
        # a small part of all, and much of one pool
        (limits(), (pool("a", 4), pool("b", 16)), (pool("a", 2), pool("b", 16)), OVER),
        # one node of a small pool, and not its last, nor a part of two
        (limits(), (A3,), (A2,), []),
        (limits(gpu_floor=1), (A2,), (pool("a", 1),), []),
        (limits(gpu_floor=1), (pool("a", 1), pool("b", 8)), (pool("b", 8),), OVER),
        (limits(gpu_floor=1), (A2,), (pool("a", 2, 4),), OVER),
        # nodes that change their pool are lost to nobody
        (limits(), (A4,), (pool("b", 4, nodes=A4.nodes),), []),
        (limits(), (), (A4,), []),
        (limits(approval=("NodePool",)), (A4,), (pool("a", 5),), ["structure needs-approval"]),
        (limits(prune={"NodePool": "confirm"}, gpu_share=None), (A4,), (A2,), []),
        (
            limits(prune={"NodePool": "confirm"}, gpu_share=None),
            (A4,),
            (),
            ["structure prune-confirm"],
        ),
        (
            limits(prune={"NodePool": "never"}, gpu_share=None),
            (A4,),
            (),
            ["structure prune-never"],
        ),
    ],
)
def test_limits(
    safe: desired.SafetyLimits,
    before: tuple[desired.Pool, ...],
    after: tuple[desired.Pool, ...],
    expected: list[str],
) -> None:
    assert judged(state(*before, safety=safe), state(*after, safety=safe)) == expected


def test_the_limits_in_force_judge_and_not_those_that_are_proposed() -> None:
    loose = limits(gpu_share=None)
    assert judged(state(A4), state(A2, safety=loose)) == OVER
    assert judged(state(A4, safety=loose), state(A2)) == []


def test_queues() -> None:
    queues = tuple(desired.Queue(name) for name in ("default", "q", "r"))
    safe = limits(queues=1)
    before = state(queues=queues, safety=safe)
    assert judged(before, state(queues=queues[:2], safety=safe)) == []
    assert judged(before, state(queues=queues[:1], safety=safe)) == OVER


def test_an_objects_own_annotation_beats_its_kind() -> None:
    safe = limits(prune={"Queue": "confirm"})
    before = state(queues=(desired.Queue("default"), desired.Queue("q")), safety=safe)
    own = msgspec.structs.replace(before.structure, prune={"Queue/q": "auto"})
    after = state(safety=safe)
    assert judged(before, after) == ["structure prune-confirm"]
    assert judged(msgspec.structs.replace(before, structure=own), after) == []


@pytest.mark.parametrize("policy", ["confirm", "never"])
def test_the_queue_that_needs_no_document_has_one_that_can_be_kept(policy: desired.Prune) -> None:
    """Without it the queue stays, but its settings are gone."""
    limited = desired.Queue("default", weight=5)
    before = state(queues=(limited,), safety=limits())
    own = msgspec.structs.replace(before.structure, prune={"Queue/default": policy})
    before = msgspec.structs.replace(before, structure=own)
    assert judged(before, state(queues=(desired.Queue("default"),))) == [
        f"structure prune-{policy}"
    ]
    assert judged(before, state(queues=(desired.Queue("default", weight=4),))) == []


@pytest.mark.parametrize(
    ("policy", "of_job", "expected"),
    [
        ("auto", None, []),
        ("confirm", None, ["removal prune-confirm"]),
        ("confirm", "auto", []),
        ("auto", "never", ["removal prune-never"]),
    ],
)
def test_removal_of_jobs(policy: desired.Prune, of_job: desired.Prune, expected: list[str]) -> None:
    job = msgspec.structs.replace(world.job("j"), prune=of_job)
    safe = limits(prune={"Job": policy})
    assert judged(state(jobs=(job,), safety=safe), state(safety=safe)) == expected


# --- running work, and what approval covers ---------------------------------------------------


def with_limits(place: world.World, **values: Any) -> None:
    settings = desired.ClusterSettings(safety=desired.SafetyLimits(**values))
    place.change_structure(settings=settings)


def at_work(place: world.World, approvals: frozenset[str] = NONE, **jobs: Any) -> list[str]:
    before, after = wanted(place, **jobs)
    what = told(place, before, after)
    found = sync_limits.judge(before, what, place.now, approvals)
    return [f"{one.part} {one.rule}" for one in found.findings]


def test_running_jobs_and_their_work() -> None:
    place = running(world.job("j", gpu=4), world.job("k", gpu=4))
    with_limits(place, jobs=1)
    assert at_work(place, j=None) == []
    assert at_work(place, j=None, k=None) == ["removal over-limit"]
    with_limits(place, gpu_hours=3)
    assert at_work(place, j=None) == []  # 4 GPUs for half an hour
    place.advance(1800)
    assert at_work(place, j=None) == ["removal over-limit"]


@pytest.mark.parametrize(
    ("running_now", "removed", "values", "held"),
    [
        (16, 9, {}, True),
        (16, 16, {}, True),
        (16, 8, {}, False),
        (15, 15, {}, False),  # of a few, one is a large part
        (16, 16, {"job_share": None}, False),
        (16, 16, {"job_share": 1}, False),
        (16, 5, {"job_share": 0.25}, True),
        (16, 4, {"job_share": 0.25}, False),
        (4, 4, {"job_floor": 4}, True),
        (4, 4, {"job_floor": 5}, False),
    ],
)
def test_most_of_what_runs_is_not_ended_by_a_folder_that_is_deleted(
    running_now: int, removed: int, values: dict[str, Any], *, held: bool
) -> None:
    names = [f"j{number:02}" for number in range(running_now)]
    place = running(*(world.job(name, gpu=1) for name in names))
    with_limits(place, **values)
    before, after = wanted(place, **dict.fromkeys(names[:removed]))
    gate = sync_limits.SafetyGate(lambda: place.memory.observed((), {}), lambda: place.now)
    found = gate.judge(before, after, NONE)
    assert [one.rule for one in found.findings] == (["over-limit"] if held else [])
    assert {one.part for one in found.findings} <= {"removal"}
    if held:
        assert f"{removed} of {running_now} running jobs" in found.findings[0].message
        assert gate.judge(before, after, frozenset({found.digest})).findings == ()


@pytest.mark.parametrize(("approved", "held"), [(20, False), (10, False), (9, True), (1, True)])
def test_an_approval_covers_no_more_than_a_share_of_what_runs_beside(
    approved: int, *, held: bool
) -> None:
    """Approved when few of them ran: of 20, 10 may end without an approval."""
    names = [f"j{number:02}" for number in range(20)]
    place = running(*(world.job(name, gpu=1) for name in names), nodes=3)
    gate = sync_limits.SafetyGate(lambda: place.memory.observed((), {}), lambda: place.now)
    before, after = wanted(place, **dict.fromkeys(names))
    now = digests.parse_digest(gate.judge(before, after, NONE).digest)
    assert now is not None
    assert now.jobs_ended == 20
    given = msgspec.structs.replace(now, jobs_ended=approved).text()
    assert bool(gate.judge(before, after, frozenset({given})).findings) is held


def test_files_of_what_has_ended_leave_at_once_and_few_cost_no_look_at_the_records() -> None:
    over = tuple(world.job(f"j{number:02}") for number in range(20))
    before, after = state(jobs=over), state(jobs=over[:8])
    asked: list[float] = []

    def observe() -> records.Observed:
        asked.append(NOW)
        return records.Observed()

    gate = sync_limits.SafetyGate(observe, lambda: NOW)
    assert gate.judge(before, after, NONE).findings == ()
    assert len(asked) == 1
    assert gate.judge(before, state(jobs=over[:12]), NONE).findings == ()
    assert len(asked) == 1


def test_work_that_owners_end_themselves_is_not_counted() -> None:
    place = running(world.job("j", gpu=4))
    with_limits(place, jobs=0, gpu_hours=0)
    assert at_work(place, j=msgspec.structs.replace(place.jobs["j"], run=2)) == []


def test_approval_holds_while_the_cluster_moves_on_and_covers_no_more() -> None:
    place = running(*(world.job(name, gpu=1) for name in "abcdef"))
    with_limits(place, jobs=1, gpu_share=None)
    before, after = wanted(place, a=None, b=None, c=None)
    digest = told(place, before, after).digest
    given = frozenset({digest})
    assert at_work(place, a=None, b=None, c=None) == ["removal over-limit"]
    assert at_work(place, given, a=None, b=None, c=None) == []
    # Jobs come and go.
    place.end("a")
    place.commit(world.job("new", gpu=1))
    place.settle()
    assert at_work(place, given, a=None, b=None, c=None) == []
    # Another change, though it removes some of the same.
    assert at_work(place, given, a=None, b=None, c=None, d=None) == ["removal over-limit"]
    assert at_work(place, given, b=None, c=None) == ["removal over-limit"]


@pytest.mark.parametrize(("more", "held"), [(5, False), (6, True)])
def test_an_approval_of_so_much_work_is_none_of_much_more(more: int, held: bool) -> None:
    """Two GPU-hours were approved. A limit of three allows as much more, and nothing beyond."""
    place = running(world.job("j", gpu=4))
    with_limits(place, gpu_hours=3)
    given = msgspec.structs.replace(
        digests.parse_digest(told(place, *wanted(place, j=None)).digest) or digests.Digest()
    )
    assert given.gpu_hours_lost == 2
    place.advance((more - 2) * 900)
    found = at_work(place, frozenset({given.text()}), j=None)
    assert found == (["removal over-limit"] if held else [])


def test_approval_of_one_change_is_none_of_another() -> None:
    halves, gone = state(A2), state()
    digest = impact.measure_impact(state(A4), halves, records.Observed(), NOW).digest
    assert judged(state(A4), halves, frozenset({digest})) == []
    assert judged(state(A4), gone, frozenset({digest})) == OVER
    assert judged(state(A4), halves, frozenset({"nonsense", digest.replace("s", "r")})) == OVER


def test_what_is_never_removed_can_not_be_approved() -> None:
    before = state(A4, safety=limits(prune={"NodePool": "never"}))
    after = state(safety=limits())
    digest = impact.measure_impact(before, after, records.Observed(), NOW).digest
    assert judged(before, after, frozenset({digest})) == ["structure prune-never"]
    what = impact.measure_impact(before, after, records.Observed(), NOW)
    assert sync_limits.judge(before, what, NOW, NONE).command == ""


def test_the_message_says_figure_limit_and_command() -> None:
    what = impact.measure_impact(state(A4), state(A2), records.Observed(), NOW)
    found = sync_limits.judge(state(A4), what, NOW, NONE)
    (finding,) = found.findings
    assert finding.message == (
        "16 of 32 GPUs (50%) leave service, and at most 30% may without approval "
        "(limits.gpuShare in spec.sync of Cluster)"
    )
    assert found.command == f"`muster approve {what.digest}` approves exactly this change"


# --- windows ----------------------------------------------------------------------------------


def window(kind: str, schedule: str, hours: float) -> desired.SyncWindow:
    return desired.SyncWindow(kind == "allow", cron.parse(schedule), int(hours * 3600))


@pytest.mark.parametrize(
    ("windows", "opens"),
    [
        ((), ""),
        ((window("deny", "0 9 * * *", 2),), "2026-11-25T11:00"),
        ((window("deny", "0 11 * * *", 2),), ""),
        ((window("allow", "0 9 * * *", 2),), ""),
        ((window("allow", "0 22 * * *", 2),), "2026-11-25T22:00"),
        ((window("allow", "0 22 * * 6", 2),), "2026-11-28T22:00"),
        # Deny beats allow.
        ((window("allow", "0 9 * * *", 4), window("deny", "0 9 * * *", 2)), "2026-11-25T11:00"),
        ((window("allow", "0 9 * * *", 1), window("deny", "0 9 * * *", 2)), "never"),
        ((window("deny", "* * * * *", 1),), "never"),
        ((window("allow", "0 0 1 1 *", 1),), "2027-01-01T00:00"),
    ],
)
def test_when_disruptive_changes_may_apply(
    windows: tuple[desired.SyncWindow, ...], opens: str
) -> None:
    found = sync_limits.opens_at(windows, NOW)
    if opens == "never":
        assert found == recurrence.NEVER
    elif opens:
        assert found is not None
        assert times.format_time(found).startswith(opens)
    else:
        assert found is None


def test_only_disruptive_changes_wait_for_their_time() -> None:
    closed = limits(windows=(window("deny", "0 9 * * *", 2),))
    before = state(A4, safety=closed)
    more = state(pool("a", 5), safety=closed)
    fewer = state(A3, safety=closed)
    assert judged(before, more) == []
    assert judged(before, fewer) == ["structure outside-window"]
    what = impact.measure_impact(before, fewer, records.Observed(), NOW)
    found = sync_limits.judge(before, what, NOW, NONE)
    assert found.until == NOW + 3600
    assert sync_limits.judge(before, what, NOW + 3600, NONE).findings == ()
    assert judged(before, fewer, frozenset({what.digest})) == []


def test_of_pools_that_grow_the_machines_that_are_there_are_limited() -> None:
    def grown(most: int) -> desired.Desired:
        asked = desired.Provisioning(minimum=0, maximum=most)
        return state(pool("a", most, provisioning=asked), safety=limits())

    up = {
        name: instance_records.InstanceRecord(name, instance_records.InstanceState.UP, name, 0.0)
        for name in ("a0", "a1", "a2", "a3")
    }
    known = instance_records.Provision("a", desired.Provisioning(0, 64), instances=up)
    seen: dict[str, records.Observed | None] = {
        "empty": records.Observed(provisions={"a": instance_records.Provision("a", known.asked)}),
        "four": records.Observed(provisions={"a": known}),
        "unknown": None,
    }
    for stand, change, held in (
        ("empty", (64, 8), False),
        ("four", (64, 8), False),
        ("four", (64, 1), True),
        ("unknown", (64, 8), True),
        ("unknown", (64, 64), False),
    ):
        gate = sync_limits.SafetyGate(lambda stand=stand: seen[stand], lambda: NOW)  # type: ignore[misc]
        found = gate.judge(grown(change[0]), grown(change[1]), NONE)
        assert bool(found.findings) is held, (stand, change)


def test_without_records_nothing_that_depends_on_them_applies() -> None:
    asked = []

    def observe() -> None:
        asked.append(1)

    gate = sync_limits.SafetyGate(observe, lambda: NOW)
    assert gate.judge(state(A4), state(A3), NONE).findings == ()
    assert not asked
    strict = limits(jobs=5)
    found = gate.judge(state(A4, safety=strict), state(A3, safety=strict), NONE)
    assert {one.rule for one in found.findings} == {"work-unknown"}
    assert found.until is not None


@pytest.mark.parametrize(
    "pattern",
    ["Access", "Access/people", "Access/roles", "*", "*/*", "*/roles", "Acc*/people", "A*/none"],
)
def test_who_names_a_document_of_access_means_all_that_it_says(pattern: str) -> None:
    """A change of a person or a role does not have the label of its document."""
    labels = ["Access/a@example.org", "Access/roles", "Queue/people"]
    found = structure_diff.needing_approval(labels, [pattern])
    assert found == (labels if pattern in {"*", "*/*"} else labels[:2])


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("Cluster", ["Cluster/other"]),
        ("Cluster/main", ["Cluster/other"]),
        ("*/main", ["Access/a@example.org", "Cluster/other", "Queue/main"]),
        ("Cl*/main", ["Cluster/other"]),
        ("C*", ["Cluster/other"]),
        ("Q*/m*", ["Queue/main"]),
        ("Queue/other", []),
    ],
)
def test_a_star_in_the_kind_means_all_of_the_cluster_and_of_access(
    pattern: str, named: list[str]
) -> None:
    labels = ["Access/a@example.org", "Cluster/other", "Queue/main"]
    assert structure_diff.needing_approval(labels, [pattern]) == named


@pytest.mark.parametrize("name", ["main", "other"])
def test_a_new_name_is_no_way_round_what_the_old_one_asks(name: str) -> None:
    before = desired.ClusterSettings(name="main", safety=limits(approval=("Cluster/main",)))
    after = msgspec.structs.replace(before, name=name, lease_s=before.lease_s + 1)
    first, second = (
        desired.Desired(structure=desired.Structure(settings=s)) for s in (before, after)
    )
    what = impact.measure_impact(first, second, records.Observed(), NOW)
    assert [one.rule for one in sync_limits.judge(first, what, NOW, NONE).findings] == [
        "needs-approval"
    ]
