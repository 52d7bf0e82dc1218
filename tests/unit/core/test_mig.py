"""MIG layouts that nodes do not have yet: what is given away meanwhile, and what is reported."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from reconciler.core.nodes import mismatches
from reconciler.model import desired
from reconciler.model.observed import devices
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, JobState, NodeState
from reconciler.model.values.resources import Resources
from reconciler.simulation.engine import simulated_nodes
from tests.unit.core import world

GIB = 2**30
ONES, THREES = (("1g.18gb", 7),), (("3g.71gb", 2),)


def cut(index: int, instances: Iterable[tuple[str, int]], **more: Any) -> records.Gpu:
    """Return a device with instances."""
    parts = [profile for profile, count in instances for _ in range(count)]
    return records.Gpu(
        index, f"GPU-{index}", "H200", mig_enabled=True,
        mig=tuple(devices.MigInstance(f"MIG-{index}-{n}", p, n, 0) for n, p in enumerate(parts)),
        **more,
    )  # fmt: skip


def whole(index: int) -> records.Gpu:
    return records.Gpu(index, f"GPU-{index}", "H200")


def pool(**layouts: tuple[tuple[str, int], ...]) -> desired.Pool:
    """Return a pool of two devices, ``d0`` and ``d1``, which may have a layout."""
    return desired.Pool(
        "p", ("n0",), Resources(8000, 64 * GIB, 2000),
        mig=tuple(desired.MigLayout(int(name[1:]), said) for name, said in layouts.items()),
    )  # fmt: skip


WAITS = devices.MigCut(devices.WAITING, "waits until it is idle: a runs on it")


@pytest.mark.parametrize(
    ("gpus", "declared", "messages"),
    [
        ((whole(0), whole(1)), pool(), []),
        ((whole(0), cut(1, ONES)), pool(d1=ONES), []),
        ((whole(0), whole(1)), pool(d1=ONES), ["is whole, 7 x 1g.18gb declared"]),
        ((whole(0), cut(1, ())), pool(d1=ONES), ["is split into none, 7 x 1g.18gb declared"]),
        (
            (whole(0), cut(1, THREES, cut=WAITS)),
            pool(d1=ONES),
            ["is 2 x 3g.71gb, 7 x 1g.18gb declared: waits until it is idle: a runs on it"],
        ),
        ((cut(0, ONES), whole(1)), pool(), ["is 7 x 1g.18gb, whole declared"]),
        ((cut(0, ONES), whole(1)), pool(d1=ONES), ["is 7 x", "is whole"]),
        ((whole(0), whole(1), cut(2, ONES)), pool(), []),
    ],
)
def test_what_is_not_cut_as_declared_is_told(
    gpus: tuple[records.Gpu, ...], declared: desired.Pool, messages: list[str]
) -> None:
    usable = 1000 * sum(gpu.usable for gpu in gpus)
    inventory = records.Inventory(
        capacity=Resources(8000, 64 * GIB, usable), gpus=gpus, gpu_driver=devices.GpuDriver("ok")
    )
    found = [one.message for one in mismatches.layouts(inventory, declared)]
    assert len(found) == len(messages)
    assert all(said in message for said, message in zip(messages, found, strict=True))
    assert not mismatches.find_mismatches(inventory, declared), "the rest of the node takes work"


def test_simulated_instances_are_there_once_they_are_declared() -> None:
    gpu = records.Gpu(1, "GPU-1", "simulated", simulated=True)
    inventory = records.Inventory(capacity=Resources(gpu_milli=2000), gpus=(gpu,))
    assert not list(mismatches.layouts(inventory, pool(d1=ONES)))


class Node(world.VirtualNode):
    """A node whose devices are as a test sets them."""

    gpus: tuple[records.Gpu, ...] = (whole(0), whole(1))

    def report(self, now: float) -> records.NodeReport:
        told = super().report(now)
        assert told.inventory is not None
        usable = 1000 * sum(gpu.usable for gpu in self.gpus)
        capacity = msgspec.structs.replace(told.inventory.capacity, gpu_milli=usable)
        inventory = msgspec.structs.replace(told.inventory, gpus=self.gpus, capacity=capacity)
        return msgspec.structs.replace(told, inventory=inventory)


class Cluster(world.World):
    """One node with such a pool."""

    def __init__(self, declared: desired.Pool) -> None:
        super().__init__(nodes=1, cpu=16, gpu=2)
        self.pool = msgspec.structs.replace(self.pool, mig=declared.mig)
        self.change_structure(pools={"pool": self.pool})
        self.node = Node("n0", self.pool)
        self.nodes["n0"] = self.node
        self.settle()

    def state(self, name: str) -> JobState:
        return self.memory.jobs[name].state


def task(name: str, gpu_milli: int, profile: str = "") -> desired.Job:
    needs = Resources(1000, 0, gpu_milli)
    group = desired.TaskGroup(
        name="main", count=1, resources=needs, command=("true",), devices=1, mig_profile=profile
    )
    return world.job(name, groups=(group,))


def small(name: str) -> desired.Job:
    return task(name, 142, "1g.18gb")


def big(name: str) -> desired.Job:
    return task(name, 1000)


def test_an_instance_is_given_away_once_it_is_there() -> None:
    made = Cluster(pool(d1=ONES))
    made.commit(small("a"))
    made.settle()
    assert made.state("a") is JobState.PENDING
    reason = made.memory.reasons[made.memory.jobs["a"].reason_key][0]
    assert reason.code.value == "InsufficientResources", "it only has to be made"
    assert "1 have 1g.18gb declared, and not made yet" in reason.message
    assert made.memory.nodes["n0"].state is NodeState.READY
    made.commit(big("b"))
    made.settle()
    assert made.state("b") is JobState.RUNNING, "the other device is given away"
    made.commit(big("c"))
    made.settle()
    assert made.state("c") is JobState.PENDING, "this one is not, whole"
    made.node.gpus = (whole(0), cut(1, ONES))
    made.settle()
    assert made.state("a") is JobState.RUNNING
    assert made.state("c") is JobState.PENDING
    assert not [one for one in made.memory.drift if one.kind == "node-mig"]


def test_what_is_cut_otherwise_is_kept_back_until_it_is_made() -> None:
    made = Cluster(pool(d0=ONES, d1=ONES))
    made.node.gpus = (cut(0, ONES), cut(1, THREES))
    made.settle()
    names = [f"a{number}" for number in range(9)]
    made.commit(*map(small, names))
    made.settle()
    assert sum(made.state(name) is JobState.RUNNING for name in names) == 7
    made.node.gpus = (cut(0, ONES), cut(1, ONES))
    made.settle()
    assert all(made.state(name) is JobState.RUNNING for name in names)


def test_a_device_that_is_to_be_whole_again_is_given_away_when_it_is() -> None:
    made = Cluster(pool())
    made.node.gpus = (whole(0), cut(1, ONES))
    made.settle()
    made.commit(big("a"), big("b"))
    made.settle()
    assert {made.state("a"), made.state("b")} == {JobState.RUNNING, JobState.PENDING}
    (told,) = [one for one in made.memory.drift if one.kind == "node-mig"]
    assert (told.wanted, told.found) == ("whole", "7 x 1g.18gb")
    made.node.gpus = (whole(0), whole(1))
    made.settle()
    assert made.state("a") is made.state("b") is JobState.RUNNING


def test_forecasts_take_layouts_of_idle_devices_for_made() -> None:
    inventory = records.Inventory(
        capacity=Resources(8000, 64 * GIB, 1000), gpus=(whole(0), cut(1, THREES))
    )
    told = simulated_nodes.as_cut(inventory, {1: ONES})
    assert told.capacity.gpu_milli == 2000
    assert not list(mismatches.layouts(told, pool(d1=ONES)))
    assert not list(mismatches.layouts(simulated_nodes.as_cut(inventory, {}), pool()))


def runs(**has: Any) -> records.AttemptRecord:
    """Return an attempt on the node."""
    return records.AttemptRecord(
        *("a", "j", 1, "k", 0, "main", 0, 1, "n0", "b", Resources()),
        *(AttemptState.RUNNING, 0.0),
        **has,
    )


NONE: dict[str, Any] = {}
BLOCKED = devices.MigCut(devices.BLOCKED, "others made 1 instance")
FOREIGN = {"foreign_gpu_processes": (devices.GpuProcess(7, 1, "GPU-1"),)}


@pytest.mark.parametrize(
    ("has", "found", "attempt"),
    [
        ({}, NONE, {"devices": (1,)}),
        ({}, NONE, {"mig_profile": "3g.71gb", "instances": (3,)}),
        ({}, FOREIGN, NONE),
        ({"cut": BLOCKED}, NONE, NONE),
    ],
)
def test_forecasts_leave_devices_as_they_are_that_can_not_be_cut_now(
    has: dict[str, Any], found: dict[str, Any], attempt: dict[str, Any]
) -> None:
    gpus = (cut(0, THREES), cut(1, THREES, **has))
    inventory = records.Inventory(capacity=Resources(8000, 64 * GIB, 0), gpus=gpus, **found)
    told = simulated_nodes.as_cut(
        inventory, {0: ONES, 1: ONES}, (runs(**attempt),) if attempt else ()
    )
    (left,) = mismatches.layouts(told, pool(d0=ONES, d1=ONES))
    assert left.subject == "gpu1"
    assert told.capacity.gpu_milli == 1000


def test_a_device_is_cut_once_what_runs_on_it_has_ended() -> None:
    inventory = records.Inventory(capacity=Resources(8000, 64 * GIB, 1000), gpus=(whole(0),))
    node = simulated_nodes.SimulatedNode("n0", Resources(), inventory=inventory)
    node.follow((desired.MigLayout(0, ONES),))
    node.start(runs(devices=(0,)), simulated_nodes.TaskOutcome(runs_s=60.0), 0.0)
    first = node.report(1.0, complete=False).inventory
    assert first is not None
    assert not first.gpus[0].simulated
    assert node.report(2.0, complete=False).inventory is None
    assert node.end("a", 60.0)
    then = node.report(60.0, complete=False).inventory
    assert then is not None
    assert then.gpus[0].simulated
    assert node.report(61.0, complete=False).inventory is None


@pytest.mark.parametrize(
    ("attempt", "told"),
    [
        ({"mig_profile": "1g.18gb", "instances": (6, 13)}, None),
        (
            {"mig_profile": "1g.18gb", "instances": (13, 15, 14)},
            (
                "it holds MIG instances 14,15 of 1g.18gb on n0, and pool p declares 14 MIG "
                "instances of 1g.18gb on each node"
            ),
        ),
        (
            {"mig_profile": "3g.71gb", "instances": (0,)},
            (
                "it holds MIG instance 0 of 3g.71gb on n0, and pool p declares 0 MIG instances "
                "of 3g.71gb on each node"
            ),
        ),
        ({"devices": (0, 1)}, None),
        (
            {"devices": (1, 2)},
            "it holds GPU 2 of n0, and pool p declares GPUs 0 and 1 on each node",
        ),
        (
            {"devices": (2, 4)},
            "it holds GPUs 2 and 4 of n0, and pool p declares GPUs 0 and 1 on each node",
        ),
    ],
)
def test_what_a_task_holds_beyond_its_pool_is_told(
    attempt: dict[str, Any], told: str | None
) -> None:
    found = mismatches.held(runs(**attempt), pool(d0=ONES, d1=ONES))
    assert (found.message if found else None) == told


@pytest.mark.parametrize(
    ("gpus", "wanted"),
    [(0, "no GPU"), (1, "GPU 0"), (3, "GPUs 0, 1 and 2"), (8, "GPUs 0 to 7")],
)
def test_the_gpus_that_a_pool_declares_are_told_by_number(gpus: int, wanted: str) -> None:
    declared = msgspec.structs.replace(
        pool(), mig=(), node_resources=Resources(8000, 0, gpus * 1000)
    )
    found = mismatches.held(runs(devices=(8,)), declared)
    assert found is not None
    assert (found.wanted, found.found) == (wanted, "GPU 8")
    assert found.message == f"it holds GPU 8 of n0, and pool p declares {wanted} on each node"
