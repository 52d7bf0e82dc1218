"""Limits that are lowered under running work: what the impact of a change names then leaves."""

import random
from typing import Any

import msgspec
import pytest

from reconciler.core.safety import impact, sync_limits
from reconciler.model import desired
from reconciler.model.policy.drift_kinds import Action
from tests.unit.core import world
from tests.unit.core.safety.test_impact import structured, told

POLICY = "queue-over-limit"
Q = desired.Queue("default")


def busy(
    *jobs: desired.Job,
    action: Action | None = "remediate",
    queues: tuple[desired.Queue, ...] = (Q,),
    **settings: Any,
) -> world.World:
    """Return two nodes of eight GPUs on which jobs began one after another, an hour ago."""
    policy = {POLICY: action} if action else {}
    place = world.World(
        nodes=2,
        cpu=16,
        gpu=8,
        queues=queues,
        settings=desired.ClusterSettings(drift=policy, **settings),
    )
    for one in jobs:
        place.commit(one)
        place.settle()
        place.advance(10)
    place.advance(3600)
    return place


def four(**changes: Any) -> list[desired.Job]:
    return [world.job(f"j{number}", gpu=1, **changes) for number in range(4)]


def limited(name: str = "default", gpus: int = 1, **values: Any) -> desired.Queue:
    return desired.Queue(name, limit=desired.QuotaAmounts(gpu_milli=gpus * 1000), **values)


def ends(what: impact.Impact) -> list[str]:
    return [one.job for one in what.jobs if one.ends]


def left_of(place: world.World, queues: dict[str, desired.Queue]) -> list[str]:
    """Return the jobs that leave with these queues, whether or not they find capacity again."""
    place.change_structure(queues=queues)
    for _ in range(4):
        place.advance(60)
    return sorted(set(place.events("JobEvicted")))


@pytest.mark.parametrize(
    ("action", "settings", "after", "expected"),
    [
        ("remediate", {}, {}, ["j1", "j2", "j3"]),
        ("remediate", {"gpus": 3}, {}, ["j3"]),
        ("remediate", {"gpus": 4}, {}, []),
        ("report", {}, {}, []),
        (None, {}, {}, []),
        ("remediate", {}, {"suspend": True}, []),
        # The policy is what changes, and the limit with it.
        ("report", {}, {"drift": {POLICY: "remediate"}}, ["j1", "j2", "j3"]),
        ("remediate", {}, {"drift": {POLICY: "report"}}, []),
    ],
)
def test_a_lowered_limit_evicts_where_policy_has_the_drift_made_right(
    action: Action | None, settings: dict[str, Any], after: dict[str, Any], expected: list[str]
) -> None:
    place = busy(*four(), action=action)
    changed = msgspec.structs.replace(place.structure.settings, **after)
    queues = {"default": limited(**settings)}
    what = told(place, *structured(place, queues=queues, settings=changed))
    assert ends(what) == expected
    assert what.jobs_ended("structure") == len(expected)
    # Each has had one GPU for an hour, and some seconds while the next ones began.
    assert what.gpu_hours_lost("structure") == pytest.approx(len(expected), rel=0.02)
    place.change_structure(settings=changed)
    assert left_of(place, queues) == expected


def test_what_leaves_anyhow_is_not_the_change() -> None:
    place = busy(*four())
    place.change_structure(queues={"default": limited(gpus=3)})
    what = told(place, *structured(place, queues={"default": limited(gpus=2)}))
    assert ends(what) == ["j2"]


def test_a_policy_that_comes_to_a_queue_above_its_limit_evicts() -> None:
    place = busy(*four(), action="report")
    place.change_structure(queues={"default": limited(gpus=3)})
    place.settle()
    policy = msgspec.structs.replace(place.structure.settings, drift={POLICY: "remediate"})
    assert ends(told(place, *structured(place, settings=policy))) == ["j3"]
    asleep = msgspec.structs.replace(policy, suspend=True)
    place.change_structure(settings=asleep)
    # To wake a suspended cluster is what then has it leave.
    assert ends(told(place, *structured(place, settings=policy))) == ["j3"]


def test_what_is_not_preemptible_stays_and_the_rest_makes_room() -> None:
    queue = msgspec.structs.replace(
        limited(gpus=8), guaranteed=desired.QuotaAmounts(gpu_milli=8000)
    )
    firm = world.job("firm", gpu=2, preemptible=False)
    place = busy(world.job("a", gpu=1), world.job("b", gpu=1), firm, queues=(queue,))
    lower = msgspec.structs.replace(queue, limit=desired.QuotaAmounts(gpu_milli=2000))
    assert ends(told(place, *structured(place, queues={"default": lower}))) == ["a", "b"]


def test_only_the_elements_of_an_array_that_leave_are_counted() -> None:
    place = busy(world.job("many", gpu=1, array_count=4), world.job("z", gpu=1))
    (one, two) = told(place, *structured(place, queues={"default": limited(gpus=3)})).jobs
    assert (one.job, one.gpus, two.job, two.gpus) == ("many", 1.0, "z", 1.0)


def test_what_a_parent_may_no_more_counts_with_those_below_it() -> None:
    parent, child = desired.Queue("default"), desired.Queue("child", parent="default")
    jobs = [world.job("a", gpu=1), world.job("b", gpu=1, queue="child"), world.job("c", gpu=1)]
    place = busy(*jobs, queues=(parent, child))
    queues = {"default": limited(gpus=2), "child": limited("child", 0, parent="default")}
    assert ends(told(place, *structured(place, queues=queues))) == ["b", "c"]
    assert left_of(place, queues) == ["b", "c"]


def test_an_owner_who_moves_or_ends_work_answers_for_it_alone() -> None:
    place = busy(*four(), queues=(Q, limited("small", 1)))
    before, after = structured(place)
    moved = {name: msgspec.structs.replace(one, queue="small") for name, one in after.jobs.items()}
    assert not ends(told(place, before, msgspec.structs.replace(after, jobs=moved)))


@pytest.mark.parametrize(
    ("limits", "fields"),
    [
        ({"jobs": 2}, ["limits.jobs"]),
        ({"jobs": 3}, []),
        ({"gpu_hours": 2.5}, ["limits.gpuHours"]),
        ({"gpu_hours": 3.5}, []),
        ({"jobs": 0, "gpu_hours": 0.0}, ["limits.jobs", "limits.gpuHours"]),
    ],
)
def test_limits_hold_what_a_lowered_limit_evicts_until_it_is_approved(
    limits: dict[str, Any], fields: list[str]
) -> None:
    place = busy(*four(), safety=desired.SafetyLimits(**limits))
    before, after = structured(place, queues={"default": limited()})
    what = told(place, before, after)
    found = sync_limits.judge(before, what, place.now, frozenset()).findings
    assert [(one.part, one.rule) for one in found] == [("structure", "over-limit")] * len(fields)
    assert all(field in one.message for field, one in zip(fields, found, strict=True))
    assert not sync_limits.judge(before, what, place.now, frozenset({what.digest})).findings


@pytest.mark.parametrize("seed", range(12))
def test_what_is_named_is_what_leaves(seed: int) -> None:
    chance = random.Random(seed)
    tree = (Q, desired.Queue("x", parent="default"), desired.Queue("y", parent="default"))
    jobs = [
        world.job(
            f"j{number}",
            gpu=chance.randint(0, 2),
            cpu=chance.randint(1, 2),
            count=chance.randint(1, 2),
            queue=chance.choice(("x", "y")),
        )
        for number in range(6)
    ]
    place = busy(*jobs, queues=tree)
    name = chance.choice(("default", "x", "y"))
    lower = limited(name, chance.randint(0, 4), parent=None if name == "default" else "default")
    queues = {one.name: one for one in tree} | {name: lower}
    what = told(place, *structured(place, queues=queues))
    assert ends(what) == left_of(place, queues)
