"""A real agent over the stand-in: what it registers, gives to tasks, and notices."""

from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.model import desired
from reconciler.model.observed import devices, task_usage
from reconciler.model.state.records import Inventory
from reconciler.model.state.states import AttemptState, EndReason
from tests import sleeping
from tests.integration.agents.conftest import Node
from tests.integration.agents.conftest import controller as controller  # noqa: PLC0414
from tests.integration.agents.conftest import node as node  # noqa: PLC0414
from tests.integration.agents.controller import Controller
from tests.nvml import standin
from tests.nvml.standin import machine, uuid

OPTIONS = ("--gpu-interval", "0.05")


class Machine:
    """A node whose machine has what the situation says."""

    def __init__(self, node: Node, controller: Controller, library: Path) -> None:
        self.node = node
        self.controller = controller
        self.situation = node.root.parent / "situation"
        node.environment |= standin.environment(library, self.situation)
        self.say(machine(2))

    def say(self, lines: list[str]) -> None:
        """What NVML says from now on."""
        standin.write(self.situation, lines)

    def until(self, holds: Callable[[Inventory], bool], what: str) -> Inventory:
        """The inventory once it is so."""
        self.controller.wait(
            lambda: self.controller.inventory is not None and holds(self.controller.inventory), what
        )
        assert self.controller.inventory is not None
        return self.controller.inventory

    def usage(self, holds: Callable[[devices.GpuUsage], bool]) -> devices.GpuUsage:
        """The usage of GPU 0 once it is so."""

        def found() -> devices.GpuUsage | None:
            told = [request.gpu_usage for request in self.controller.requests if request.gpu_usage]
            return told[-1][0] if told and holds(told[-1][0]) else None

        # usage goes along with other reports: something has to be reported for it to come
        self.controller.poll_s = 0.05
        self.controller.change()
        self.controller.wait(lambda: found() is not None, "usage of GPU 0")
        usage = found()
        assert usage is not None
        return usage


@pytest.fixture
def scene(node: Node, controller: Controller, libraries: dict[bool, Path]) -> Machine:
    """A machine with two GPUs and an agent on it."""
    made = Machine(node, controller, libraries[False])
    node.start(*OPTIONS)
    return made


def test_the_first_report_has_the_gpus(scene: Machine) -> None:
    inventory = scene.until(lambda _found: True, "an inventory")
    assert [gpu.uuid for gpu in inventory.gpus] == [uuid(0), uuid(1)]
    assert inventory.capacity.gpu_milli == 2000
    assert inventory.gpu_driver == devices.GpuDriver("ok", "", "550.54.15", "12.4", "12.550.54.15")
    assert inventory.host is not None
    assert inventory.host.cpus > 0


def test_a_task_sees_its_devices_by_uuid(scene: Machine) -> None:
    script = "echo $CUDA_VISIBLE_DEVICES"
    scene.controller.assign("a", "sh", "-c", script, devices=(1, 0))
    scene.controller.ended("a")
    assert (scene.node.root / "logs" / "a.stdout").read_text() == f"{uuid(1)},{uuid(0)}\n"


def test_processes_are_told_apart_by_whose_they_are(scene: Machine) -> None:
    controller = scene.controller
    # the second process leaves the session and the tree of the task, as daemons do
    script = "setsid sh -c 'sleep 600 & echo $! >pid' & wait; echo ready >ready; sleep 600"
    controller.assign("a", "sh", "-c", script)
    controller.running("a")
    work = scene.node.root / "attempts" / "a" / "work"
    controller.wait((work / "ready").exists, "the task's daemon")
    daemon = int((work / "pid").read_text())
    with sleeping.sleeper() as stranger:
        pids = (daemon, stranger.pid)
        scene.say([*(f"process 0 {pid} 1048576" for pid in pids), *machine(2)])
        inventory = scene.until(lambda found: bool(found.foreign_gpu_processes), "a stranger")
        (told,) = inventory.foreign_gpu_processes
        assert (told.pid, told.gpu, told.name) == (stranger.pid, 0, "sleep")
        usage = scene.usage(lambda found: found.foreign_processes == 1)
        assert usage.task_processes == 1
        controller.wait(
            lambda: any(
                one.gpus == (task_usage.GpuUse(0, 1, 1048576),)
                for request in controller.requests
                for one in request.task_use or ()
            ),
            "what the task has on its GPU",
        )
    scene.say([f"process 0 {daemon} 1048576", *machine(2)])
    scene.until(lambda found: not found.foreign_gpu_processes, "nobody")


def test_a_device_that_falls_off_the_bus_is_told_at_once_and_its_return(scene: Machine) -> None:
    scene.until(lambda found: found.capacity.gpu_milli == 2000, "two devices")
    scene.say([f"return:* 1 {standin.GPU_IS_LOST}", *machine(2)])
    found = scene.until(lambda found: found.capacity.gpu_milli == 1000, "the loss")
    assert [gpu.state for gpu in found.gpus] == [devices.OK, devices.LOST]
    scene.say(machine(2))
    scene.until(lambda found: found.capacity.gpu_milli == 2000, "its return")


def test_what_does_not_change_is_not_told_again(scene: Machine) -> None:
    before = scene.usage(lambda _found: True)
    for _ in range(8):
        at = before.at
        before = scene.usage(lambda found, at=at: found.at > at)  # type: ignore[misc]
    told = [request.inventory for request in scene.controller.requests if request.inventory]
    assert len(told) <= 2, "two requests begin at once, and both may tell the first inventory"


def test_a_driver_that_hangs_keeps_no_task_waiting(scene: Machine) -> None:
    scene.until(lambda found: len(found.gpus) == 2, "two devices")
    scene.say(["sleep:nvmlDeviceGetName * 600000", *machine(2)])
    for number in range(3):
        scene.controller.assign(f"a{number}", "true")
        assert scene.controller.ended(f"a{number}").exit_code == 0


def test_an_agent_that_starts_anew_knows_its_devices_before_the_driver_answers(
    scene: Machine,
) -> None:
    scene.until(lambda found: len(found.gpus) == 2, "two devices")
    scene.controller.assign("a", "sleep", "600", devices=(1,))
    scene.controller.running("a")
    scene.node.kill_agent()
    scene.say(["sleep:nvmlInitWithFlags * 600000", *machine(2)])
    scene.controller.inventory = None
    scene.node.start(*OPTIONS)
    found = scene.until(lambda found: len(found.gpus) == 2, "two devices")
    assert found.gpu_driver == devices.GpuDriver("ok", "not asked since the agent started")
    assert scene.controller.seen["a"].state is AttemptState.RUNNING


def test_simulated_devices_are_not_mixed_with_real_ones(
    node: Node, controller: Controller, libraries: dict[bool, Path]
) -> None:
    scene = Machine(node, controller, libraries[False])
    node.start("--simulated-gpus", "3")
    found = scene.until(lambda _found: True, "an inventory")
    assert [gpu.simulated for gpu in found.gpus] == [True] * 3
    assert found.gpu_driver is None


def test_a_node_offers_only_the_devices_it_is_told_to(
    node: Node, controller: Controller, libraries: dict[bool, Path]
) -> None:
    scene = Machine(node, controller, libraries[False])
    node.start("--virtual", "--gpus", uuid(1), "--no-gpu-usage", *OPTIONS)
    found = scene.until(lambda _found: True, "an inventory")
    assert [(gpu.index, gpu.uuid) for gpu in found.gpus] == [(0, uuid(1))]
    assert found.capacity.gpu_milli == 1000


def test_where_dcgm_exporter_runs_usage_is_not_told_and_what_devices_are_is(
    node: Node, controller: Controller, libraries: dict[bool, Path]
) -> None:
    scene = Machine(node, controller, libraries[False])
    node.start("--no-gpu-usage", *OPTIONS)
    found = scene.until(lambda _found: True, "an inventory")
    assert [gpu.state for gpu in found.gpus] == ["ok", "ok"]
    scene.say([f"return:* 1 {standin.GPU_IS_LOST}", *standin.machine(2)])
    scene.until(lambda now: now.gpus[1].state == "lost", "the loss of a device")
    # the same agent without the option tells of usage with its next report: see the tests above
    assert [one.gpu_usage for one in controller.requests if one.gpu_usage] == []


def layout(*, take_over: bool = False, **instances: int) -> desired.MigPlan:
    """Device 1 is cut; names of profiles write ``_`` for a dot."""
    said = tuple(sorted((name[1:].replace("_", "."), count) for name, count in instances.items()))
    return desired.MigPlan((desired.MigLayout(1, said),), take_over)


def cut_as(scene: Machine, plan: desired.MigPlan) -> None:
    scene.controller.mig = plan
    scene.controller.change()


def state_of(inventory: Inventory) -> str:
    """How far device 1 is with its layout."""
    gpu = inventory.gpus[1]
    return gpu.cut.state if gpu.cut is not None else ""


def test_tasks_get_their_mig_instances_and_layouts_change_when_they_end(scene: Machine) -> None:
    controller = scene.controller
    cut_as(scene, layout(p1g_18gb=2))
    found = scene.until(lambda found: state_of(found) == "fits", "a layout")
    assert found.capacity.gpu_milli == 1000, "one is whole"
    uuids = [one.uuid for one in found.gpus[1].mig]
    script = "echo $CUDA_VISIBLE_DEVICES; until [ -e go ]; do sleep 0.05; done"
    for name, number in (("a", 0), ("b", 1)):
        controller.assign(
            name, "sh", "-c", script, mig_profile="1g.18gb", instances=(number,)
        )  # fmt: skip
        controller.running(name)
    cut_as(scene, layout(p3g_71gb=1))
    waiting = scene.until(lambda found: state_of(found) == "waiting", "a layout that waits")
    assert [one.uuid for one in waiting.gpus[1].mig] == uuids
    # what comes too late for the instances that there were is not run on anything else
    controller.assign("c", "true", mig_profile="1g.18gb", instances=(0,))
    controller.ended("c")
    assert controller.seen["c"].end_reason is EndReason.CHECK_FAILED
    assert "MIG instance of 1g.18gb" in controller.seen["c"].message
    for name in ("a", "b"):
        (scene.node.root / "attempts" / name / "work" / "go").touch()
        controller.ended(name)
    told = [(scene.node.root / "logs" / f"{name}.stdout").read_text().strip() for name in "ab"]
    assert told == uuids
    found = scene.until(lambda found: state_of(found) == "fits", "the other layout")
    assert [one.profile for one in found.gpus[1].mig] == ["3g.71gb"]


def test_a_device_that_is_split_is_given_to_nobody_whole(scene: Machine) -> None:
    cut_as(scene, layout(p1g_18gb=2))
    scene.until(lambda found: state_of(found) == "fits", "a layout")
    scene.controller.assign("a", "true", devices=(0, 1))
    scene.controller.ended("a")
    assert scene.controller.seen["a"].end_reason is EndReason.CHECK_FAILED
    assert "GPU 1" in scene.controller.seen["a"].message
