"""Small dense clusters, come to rest, against every set of victims there is."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from reconciler.scheduling.preemption import victim_orders
from tests.scenarios import dense, laws

#: Draws of ``taken`` in which only units in a certain order make room, each just before its queue
#: would fall below its guarantee, some of those between left out.
ORDERED = (218, 1675, 3546, 1000423, 1001284)


@pytest.mark.parametrize("kind", sorted(dense.KINDS))
def test_nothing_is_denied_to_anybody_at_rest(kind: str) -> None:
    told = {seed: dense.run(dense.KINDS[kind](seed)) for seed in range(30)}
    assert {seed: found for seed, found in told.items() if found} == {}


@pytest.mark.parametrize("seed", ORDERED)
def test_those_that_hold_certain_devices_are_found_in_their_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dense.run(dense.taken(seed)) == []
    monkeypatch.setattr(victim_orders, "by_devices", lambda *_: iter(()))
    assert [told for told in dense.run(dense.taken(seed)) if "is owed the GPUs of" in told]


def test_a_scheduler_without_other_orders_of_victims_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = 103
    assert dense.run(dense.taken(seed)) == []
    monkeypatch.setattr(victim_orders, "orders", lambda _units, _taken: iter(()))
    monkeypatch.setattr(victim_orders, "by_devices", lambda *_: iter(()))
    assert [told for told in dense.run(dense.taken(seed)) if "is owed the GPUs of" in told]


def document(*jobs: Mapping[str, Any], limit: int | None = None) -> Mapping[str, Any]:
    owner: dict[str, Any] = {"name": "own", "guaranteed": {"gpu": 2}}
    if limit is not None:
        owner["limit"] = {"gpu": limit}
    return {
        "nodes": {"a": {"gpu": 2}, "b": {"gpu": 2}},
        "queues": [
            owner,
            {"name": "top", "guaranteed": {"gpu": 2}},
            {"name": "other", "guaranteed": {"gpu": 1}, "parent": "top"},
        ],
        "jobs": jobs,
    }


def job(name: str, queue: str, *gpus: float, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "queue": queue,
        "priority": 50,
        "tasks": [{"gpu": g} for g in gpus],
    } | more


def task(node: str, *devices: int, index: int = 0) -> laws.Task:
    return laws.Task(index, node, devices)


FULL = {
    "first": [task("a", 0), task("a", 1, index=1)],
    "second": [task("b", 0)],
    "third": [task("b", 1)],
}
OTHERS = (
    job("first", "other", 1, 1),
    job("second", "other", 1),
    job("third", "other", 1, priority=10),
)


@pytest.mark.parametrize(
    ("jobs", "limit", "running", "told"),
    [
        pytest.param(OTHERS, None, FULL, [], id="full and nobody waits"),
        pytest.param(
            (job("x", "own", 0.5), job("y", "own", 0.75)),
            None,
            {"x": [task("a", 0)], "y": [task("a", 0)]},
            ["device 0 of a gives 1.25 GPUs"],
            id="a device twice",
        ),
        pytest.param(
            (job("x", "own", 1, 1, 1),),
            None,
            {"x": [task("a", 0), task("a", 1, index=1)]},
            ["x runs with 2 of 3 tasks"],
            id="part of a gang",
        ),
        pytest.param(
            (job("x", "own", 2),), None, {}, ["x could start in what is free"], id="idle GPUs"
        ),
        pytest.param((job("x", "own", 2),), 1, {}, [], id="idle GPUs beyond a limit"),
        pytest.param((job("x", "own", 3),), None, {}, [], id="no node is so large"),
        pytest.param(
            (job("x", "own", 1, 1, 1, preemptible=False),), None, {}, [], id="firm, and borrows"
        ),
        pytest.param(
            (job("x", "own", 1, 1, min=1),),
            None,
            {"x": [task("a", 0)]},
            ["x could grow in what is free"],
            id="room to grow",
        ),
        pytest.param(
            (*OTHERS, job("x", "own", 1)),
            None,
            FULL,
            ["x is owed the GPUs of first[0,1]"],
            id="a guarantee denied",
        ),
        pytest.param(
            (*OTHERS, job("x", "own", 2)),
            None,
            FULL,
            ["x is owed the GPUs of first[0,1]"],
            id="two GPUs on one node",
        ),
        pytest.param(
            (*(one | {"preemptible": False} for one in OTHERS), job("x", "own", 2)),
            None,
            FULL,
            [],
            id="nobody gives way",
        ),
        pytest.param((*OTHERS, job("x", "own", 1, 1, 1)), None, FULL, [], id="beyond a guarantee"),
        pytest.param(
            (*OTHERS, job("x", "other", 1, priority=20)),
            None,
            FULL,
            ["x has priority over third[0]"],
            id="a lower priority stays",
        ),
        pytest.param((*OTHERS, job("x", "other", 2, priority=20)), None, FULL, [], id="too little"),
    ],
)
def test_laws(
    jobs: Sequence[Mapping[str, Any]],
    limit: int | None,
    running: Mapping[str, Sequence[laws.Task]],
    told: list[str],
) -> None:
    assert laws.broken(laws.Rest(document(*jobs, limit=limit), running)) == told


def test_spare_tasks_leave_before_their_gang() -> None:
    elastic = job("first", "other", 1, 1, min=1)
    rest = laws.Rest(document(elastic, *OTHERS[1:], job("x", "own", 1)), FULL)
    assert laws.broken(rest) == ["x is owed the GPUs of first[1]"]
