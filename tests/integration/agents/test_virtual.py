"""Virtual nodes: started, killed in part and in whole, and gone without a trace."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.host import processes
from agents.virtual import VirtualNode, VirtualNodes
from reconciler.model.state.states import EndReason
from tests import started
from tests.integration.agents.controller import Controller


@pytest.fixture
def nodes(tmp_path: Path, controller: Controller) -> Iterator[VirtualNodes]:
    """One virtual node, not started yet."""
    node = VirtualNode("v1", cpus="3", memory="2Gi", gpus=2, labels={"pool": "a"})
    made = VirtualNodes(controller.url, tmp_path / "nodes", [node])
    yield made
    made.stop_all()
    assert not processes.supervisors_of(str(made.root("v1")))
    assert not tasks(made)
    assert processes.kill_leftovers(str(made.root("v1")), [])


def tasks(nodes: VirtualNodes) -> set[int]:
    """Live processes of the node's attempts."""
    root = str(nodes.root("v1"))
    return {pid for pid in processes.processes() if started.attempt_of(pid, root)}


def test_offers_what_it_was_given(nodes: VirtualNodes, controller: Controller) -> None:
    nodes.start("v1")
    controller.wait(lambda: controller.inventory is not None, "an inventory")
    found = controller.inventory
    assert found is not None
    assert found.virtual
    assert found.labels == {"pool": "a"}
    assert (found.capacity.cpu_milli, found.capacity.memory_bytes) == (3000, 2 * 2**30)
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-sim-v1-0", "GPU-sim-v1-1"]


def test_a_killed_node_comes_back_with_a_new_boot(
    nodes: VirtualNodes, controller: Controller
) -> None:
    nodes.start("v1")
    controller.assign("a.1", "sleep", "3600")
    controller.running("a.1")
    boot = controller.boot_id()
    nodes.kill_node("v1")
    assert not tasks(nodes)
    assert not processes.supervisors_of(str(nodes.root("v1")))
    controller.requests.clear()
    nodes.start("v1")
    assert controller.boot_id() != boot
    assert controller.ended("a.1").end_reason is EndReason.LOST


def test_a_killed_agent_is_the_same_boot(nodes: VirtualNodes, controller: Controller) -> None:
    nodes.start("v1")
    controller.assign("a.1", "sleep", "3600")
    controller.running("a.1")
    boot = controller.boot_id()
    nodes.kill_agent("v1")
    assert not nodes.alive("v1")
    assert nodes.poll() == []
    assert tasks(nodes)
    controller.requests.clear()
    nodes.restart("v1")
    assert controller.boot_id() == boot
    nodes.remove("v1")
    assert nodes.names() == []
    assert not tasks(nodes)
    assert controller.ended("a.1").end_reason is EndReason.NODE_STOPPED


def test_an_agent_that_dies_is_started_again(nodes: VirtualNodes, controller: Controller) -> None:
    nodes.start("v1")
    first = controller.boot_id()
    running = nodes._nodes["v1"].agent
    assert running is not None
    running.kill()
    running.wait()
    controller.requests.clear()
    controller.wait(lambda: nodes.poll() == ["v1"], "a restart")
    assert controller.boot_id() == first
