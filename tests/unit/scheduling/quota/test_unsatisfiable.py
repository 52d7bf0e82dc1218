"""What could never start is no demand: it takes no share from others."""

import dataclasses

import numpy as np
import pytest

from reconciler.scheduling.inputs import pending_groups
from reconciler.scheduling.quota import unsatisfiable
from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import Situation


def shared() -> Situation:
    """Four nodes of two GPUs; one queue runs on all of them, another one asks for half of them."""
    s = Situation()
    for index in range(4):
        s.node(f"n{index}", gpu=2)
    s.queue("owner", guaranteed=0).queue("a", limit=2).queue("b").queue("c")
    s.queue_list[0].guaranteed = (0, 0, 0)
    for index in range(8):
        s.job(f"b{index}", "b", gpu=1, on=(f"n{index // 2}",))
    for index in range(4):
        s.job(f"c{index}", "c", gpu=1)
    return s


@pytest.mark.parametrize(
    ("queue", "job"),
    [
        pytest.param("a", {"gpu": 3, "tasks": 1}, id="a task larger than any node"),
        pytest.param("owner", {"gpu": 2, "tasks": 5}, id="a gang larger than all nodes"),
        pytest.param("owner", {"gpu": 1, "cpu": 65}, id="more CPUs than any node has"),
        pytest.param("a", {"gpu": 1, "tasks": 3}, id="more than the limit of its queue"),
        pytest.param("owner", {"gpu": 1, "pool": "none"}, id="nodes that are not there"),
    ],
)
def test_what_never_starts_takes_no_share_from_others(queue: str, job: dict[str, int]) -> None:
    s = shared().job("never", queue, **job)  # type: ignore[arg-type]
    decisions = s.decide()
    assert [who for _, who in situations.evicted(decisions)] == [f"c{i}" for i in range(4)]
    assert decisions.shares[3].fair_share[2] == 4000


def test_firm_work_beyond_its_guarantee_takes_none_either() -> None:
    s = shared()
    s.queue_list[0].guaranteed = (0, 0, 2000)
    s.job("never", "owner", gpu=1, tasks=3, preemptible=False)
    assert s.decide().shares[3].fair_share[2] == 4000


def test_what_may_start_still_counts() -> None:
    s = shared().job("may", "owner", gpu=2, tasks=2)
    assert s.decide().shares[3].fair_share[2] < 4000


def test_what_waits_for_a_window_or_for_some_pool_counts() -> None:
    s = shared().job("later", "a", gpu=2)
    s.window("w", 10, 50, [True] * 4)
    snapshot = s.snapshot()
    columns = pending_groups.columns_of(snapshot.lines)
    assert not unsatisfiable.lines(snapshot, columns).any()


@pytest.mark.parametrize(
    ("array", "parallelism", "suspended", "gives"),
    [
        pytest.param(6, None, False, 4, id="all of an array that may run at once"),
        pytest.param(6, 1, False, 1, id="no more of an array than may run at once"),
        pytest.param(6, None, True, 0, id="nothing of a suspended queue"),
    ],
)
def test_what_may_not_run_now_takes_no_share(
    array: int, parallelism: int | None, suspended: bool, gives: int
) -> None:
    s = Situation().node("n0", gpu=8)
    s.queue("a", suspended=suspended).queue("b")
    s.queue_list[0].limit = (None, None, None)
    for index in range(8):
        s.job(f"b{index}", "b", gpu=1, on=("n0",))
    s.job("swept", "a", gpu=1, array=array, parallelism=parallelism)
    assert s.decide().shares[0].fair_share[2] == gives * 1000


def test_nodes_are_held_against_a_task_one_by_one() -> None:
    s = shared().node("cpus", cpu=128).job("never", "owner", gpu=1, cpu=100)
    assert [who for _, who in situations.evicted(s.decide())] == [f"c{i}" for i in range(4)]


def test_one_domain_has_to_hold_who_must_be_in_one() -> None:
    s = shared()
    snapshot = s.job("gang", "owner", gpu=1, tasks=3).snapshot()
    columns = pending_groups.columns_of(snapshot.lines)
    number = len(snapshot.lines) - 1
    shape = snapshot.shapes[snapshot.lines[number].shape]
    for domains, too_large in (((0, 0, 1, 1), False), ((0, 1, 2, 3), True), ((-1,) * 4, True)):
        nodes = dataclasses.replace(snapshot.nodes, domains=np.array([domains]).T)
        for within in (
            dataclasses.replace(shape, required_level=0),
            dataclasses.replace(
                shape, groups=(dataclasses.replace(shape.groups[0], required_level=0),)
            ),
        ):
            shapes = list(snapshot.shapes)
            shapes[snapshot.lines[number].shape] = within
            told = dataclasses.replace(snapshot, nodes=nodes, shapes=tuple(shapes))
            assert bool(unsatisfiable.lines(told, columns)[number]) is too_large


@pytest.mark.parametrize(("memory", "too_large"), [(16, False), (8, True), (0, False)])
def test_memory_of_a_device_is_asked_about_where_it_is_known(memory: int, too_large: bool) -> None:
    snapshot = shared().job("share", "owner", gpu=0.5).snapshot()
    number = len(snapshot.lines) - 1
    at = snapshot.lines[number].shape
    group = dataclasses.replace(snapshot.shapes[at].groups[0], share_bytes=12)
    shapes = list(snapshot.shapes)
    shapes[at] = dataclasses.replace(shapes[at], groups=(group,))
    nodes = dataclasses.replace(
        snapshot.nodes, device_memory=np.full(len(snapshot.nodes.names), memory, dtype=np.int64)
    )
    told = dataclasses.replace(snapshot, nodes=nodes, shapes=tuple(shapes))
    assert (
        bool(unsatisfiable.lines(told, pending_groups.columns_of(told.lines))[number]) is too_large
    )
