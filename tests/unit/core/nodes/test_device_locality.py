"""The devices of a node that are near each other, as pools declare and agents report."""

from typing import Any

import msgspec
import pytest

from reconciler.core.nodes import device_locality, mismatches
from reconciler.model import desired
from reconciler.model.observed.devices import NvLinkPeer
from reconciler.model.state import records
from reconciler.model.state.states import JobState
from reconciler.model.values.resources import Resources
from tests.unit.core import world


def gpu(index: int, numa: int | None = None, *joined: int, switch: bool = False) -> records.Gpu:
    """Return a device that NVLink joins with others."""
    links = [NvLinkPeer("gpu", f"pci-{other}", 2) for other in joined]
    if switch:
        links.append(NvLinkPeer("switch", f"switch-{index % 2}", 18))
    return records.Gpu(
        index, f"GPU-{index}", "H200", pci_address=f"pci-{index}", numa_node=numa,
        nvlinks=tuple(links),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "numa", "nvlink"),
    [
        ([], (), ()),
        ([gpu(0), gpu(1)], (), ()),
        ([gpu(0, 0), gpu(1, 0), gpu(2, 1), gpu(3, 1)], ((0, 1), (2, 3)), ()),
        # -1 is what Linux says where it does not know
        ([gpu(0, -1), gpu(1, 7)], ((1,),), ()),
        ([gpu(0, 0, 3), gpu(1, 0, 2), gpu(2, 0, 1), gpu(3, 0, 0)], ((0, 1, 2, 3),),
         ((0, 3), (1, 2))),
        # whichever switch it is: they are one fabric
        ([gpu(0, switch=True), gpu(1, switch=True), gpu(2)], (), ((0, 1),)),
        # a ring is one domain: each reaches each by NVLink
        ([gpu(0, None, 1), gpu(1, None, 2), gpu(2, None, 0)], (), ((0, 1, 2),)),
        # a peer that is gone
        ([gpu(0, None, 9), gpu(1)], (), ()),
    ],
)  # fmt: skip
def test_domains_as_agents_tell_them(gpus: list[records.Gpu], numa: Any, nvlink: Any) -> None:
    assert device_locality.numa(gpus) == numa
    assert device_locality.nvlink(gpus) == nvlink


PAIRS = ((0, 1), (2, 3))


@pytest.mark.parametrize(
    ("declared", "gpus", "messages"),
    [
        ({}, [gpu(0, 0), gpu(1, 1), gpu(2, 0), gpu(3, 1)], []),
        ({"numa": PAIRS}, [gpu(0, 0), gpu(1, 0), gpu(2, 1), gpu(3, 1)], []),
        # names of NUMA nodes and the order of domains are nobody's business
        ({"numa": PAIRS}, [gpu(0, 5), gpu(1, 5), gpu(2, 3), gpu(3, 3)], []),
        (
            {"numa": PAIRS},
            [gpu(0, 0), gpu(1, 1), gpu(2, 0), gpu(3, 1)],
            ["GPUs by NUMA node: 0 2 | 1 3, 0 1 | 2 3 declared"],
        ),
        ({"numa": PAIRS}, [gpu(0, 0), gpu(1, None), gpu(2, 0), gpu(3, 1)], []),
        (
            {"nvlink": PAIRS},
            [gpu(0, None, 1), gpu(1, None, 0), gpu(2), gpu(3)],
            ["GPUs by NVLink domain: 0 1, 0 1 | 2 3 declared"],
        ),
        ({"nvlink": PAIRS}, [gpu(0), gpu(1), gpu(2), gpu(3)], []),
    ],
)
def test_what_is_near_in_another_way_than_declared_is_told(
    declared: dict[str, Any], gpus: list[records.Gpu], messages: list[str]
) -> None:
    pool = desired.Pool("p", ("n0",), Resources(0, 0, 4000), **declared)
    inventory = records.Inventory(capacity=Resources(0, 0, 4000), gpus=tuple(gpus))
    assert [one.message for one in mismatches.find_mismatches(inventory, pool)] == messages


class Node(world.VirtualNode):
    """A node that reports its devices."""

    gpus: tuple[records.Gpu, ...] = ()

    def report(self, now: float) -> records.NodeReport:
        told = super().report(now)
        assert told.inventory is not None
        inventory = msgspec.structs.replace(told.inventory, gpus=self.gpus)
        return msgspec.structs.replace(told, inventory=inventory)


def asking(name: str, gpus: int, required: str = "numa") -> desired.Job:
    group = desired.TaskGroup(
        name="main", count=1, resources=Resources(1000, 0, gpus * 1000), command=("true",),
        inner_required=required,
    )  # fmt: skip
    return world.job(name, groups=(group,))


def test_what_a_node_tells_counts_where_its_pool_says_nothing() -> None:
    """It counts again when the node reports something else while others run on it."""
    made = world.World(nodes=2, cpu=16, gpu=4)
    for name in made.nodes:
        made.nodes[name] = Node(name, made.pool)
    made.settle()
    made.commit(asking("near", 3))
    made.settle()
    assert made.state("near") is JobState.PENDING
    reason = made.memory.reasons[made.memory.jobs["near"].reason_key][0]
    assert reason.code.value == "NeverFits"
    assert [(step.count, step.why) for step in reason.funnel] == [
        (2, "do not tell the NUMA node of their GPUs")
    ]
    node = made.nodes["n1"]
    assert isinstance(node, Node)
    node.gpus = (gpu(0, 0), gpu(1, 1), gpu(2, 1), gpu(3, 1))
    made.advance(1)
    assert [(a.node, a.devices) for a in made.attempts("near")] == [("n1", (1, 2, 3))]
    made.commit(asking("next", 2, "nvlink"))
    made.settle()
    assert made.state("next") is JobState.PENDING
    made.change_structure(pools={"pool": msgspec.structs.replace(made.pool, nvlink=PAIRS)})
    made.settle()
    assert [(a.node, a.devices) for a in made.attempts("next")] == [("n0", (0, 1))]
