"""A node as a terminal shows it."""

from typing import Any

import msgspec
import pytest

from reconciler.cli.cluster import inspect_commands, node_details
from reconciler.model.observed import devices, storage
from reconciler.model.state import records
from reconciler.operations.views import job_views
from tests.unit import gpusamples


def shown(node: records.NodeRecord, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The words of each line."""
    usage = [gpusamples.usage(uuid) for uuid in gpusamples.UUIDS]
    view = job_views.node_view(node, (), usage)
    node_details.show(msgspec.to_builtins(view))
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_volumes_are_shown_with_what_is_wrong_with_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = gpusamples.node()
    states = (
        storage.VolumeState("sets"),
        storage.VolumeState("results", "/srv/results is not mounted"),
    )
    inventory = msgspec.structs.replace(node.inventory, volumes=states)
    lines = shown(msgspec.structs.replace(node, inventory=inventory), capsys)
    at = lines.index(["VOLUME", "STATE"])
    assert lines[at + 1 : at + 3] == [
        ["sets", "ok"], ["results", "/srv/results", "is", "not", "mounted"],
    ]  # fmt: skip
    assert ["VOLUME", "STATE"] not in shown(node, capsys)


def test_instances_stand_below_their_device_and_layouts_say_what_they_wait_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = gpusamples.node()
    cut = devices.MigCut(devices.WAITING, "waits until it is idle: a runs on it")
    first = msgspec.structs.replace(node.inventory.gpus[0], cut=cut)
    inventory = msgspec.structs.replace(node.inventory, gpus=(first, node.inventory.gpus[1]))
    lines = shown(msgspec.structs.replace(node, inventory=inventory), capsys)
    part = next(line for line in lines if line[:1] == ["0:7"])
    assert part == ["0:7", "MIG", "1g.18gb", "ok", "-", "1Gi/16Gi", "-", "-", "a"]
    assert ["GPU", "0,", "MIG", "layout:", "waits"] in [line[:5] for line in lines]
    assert any("MIG" in line and "waiting;" in line for line in lines)


def test_a_list_of_nodes_counts_instances_and_those_that_are_given() -> None:
    parts = [{"attempt": "a"}, {"attempt": None}, {"attempt": None}]
    gpus: list[dict[str, Any]] = [
        {"simulated": False, "state": "ok", "mig": []},
        {"simulated": False, "state": "ok", "mig": parts},
    ]
    item = {"gpus": gpus, "allocated": {"gpu": 0}, "capacity": {"gpu": 2}}
    assert inspect_commands._gpus(item, item["capacity"]) == "0/2 MIG 1/3"
    gpus[1]["mig"] = []
    assert inspect_commands._gpus(item, item["capacity"]) == "0/2"


def test_a_node_says_what_it_has_and_when_it_was_heard(capsys: pytest.CaptureFixture[str]) -> None:
    node = gpusamples.node()
    lines = shown(msgspec.structs.replace(node, last_report_at=0.0), capsys)
    capacity = node.inventory.capacity
    assert ["CPUs", f"{capacity.cpu_milli / 1000:g}"] in lines
    assert ["Memory", f"{capacity.memory_bytes / 2**30:.3g}Gi"] in lines
    assert ["Reported", "never"] in lines


def test_what_an_agent_cannot_do_beside_its_tasks_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = gpusamples.node()
    inventory = msgspec.structs.replace(node.inventory, notice="its port is taken")
    told = shown(msgspec.structs.replace(node, inventory=inventory), capsys)
    assert ["Notice", "its", "port", "is", "taken"] in told
    assert "Notice" not in {word for line in shown(node, capsys) for word in line}


def test_a_driver_without_a_version_of_cuda_says_none() -> None:
    driver = {"state": "ok", "version": "550.54.15", "cudaVersion": ""}
    real = [{"simulated": False}]
    assert node_details._driver(driver, real) == "550.54.15"
    assert node_details._driver(driver | {"cudaVersion": "12.4"}, real) == "550.54.15, CUDA 12.4"


def test_a_driver_of_simulated_devices_says_that_it_is_none() -> None:
    driver = {"state": "ok", "version": "550.54.15", "cudaVersion": ""}
    assert node_details._driver(driver, [{"simulated": True}]) == "simulated, as 550.54.15"
    assert node_details._driver(driver | {"version": ""}, [{"simulated": True}]) == "simulated"
    failed = driver | {"state": "failed", "message": "it hangs"}
    assert node_details._driver(failed, [{"simulated": True}]) == "failed: it hangs"


def test_a_pool_on_observe_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    item = msgspec.to_builtins(job_views.node_view(gpusamples.node(), ()))
    node_details.show(item)
    assert "observe" not in capsys.readouterr().out
    node_details.show(item, is_observed=True)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "observe" in line]
    assert line.startswith("Pool ")
    assert line.endswith("(mode observe: nothing is started here)")


@pytest.mark.parametrize(
    ("simulated", "state", "said"),
    [
        (True, "ok", "simulated"),
        (True, "lost", "simulated, lost"),
        (False, "ok", "ok"),
        (False, "lost", "lost"),
    ],
)
def test_a_simulated_gpu_that_is_lost_says_both(said: str, state: str, *, simulated: bool) -> None:
    assert node_details._state({"simulated": simulated, "state": state}) == said


def test_what_is_said_of_several_layouts_is_said_once() -> None:
    def gpu(index: int, message: str | None) -> dict[str, object]:
        return {"index": index, "migLayout": None if message is None else {"message": message}}

    gpus = [gpu(index, "waits until it is idle") for index in (0, 1, 2, 5)]
    gpus += [gpu(3, "was refused"), gpu(4, None), gpu(6, "")]
    found = [(node_details._ranges(of), told) for of, told in node_details._layout_messages(gpus)]
    assert found == [("0-2, 5", "waits until it is idle"), ("3", "was refused")]


def test_totals_are_what_tasks_may_take_and_the_rest_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    item = msgspec.to_builtins(job_views.node_view(gpusamples.node(), ()))
    item["capacity"] = {"cpu": 2, "memory": 4 * 2**30, "gpu": 0}
    item["allocated"] = {"cpu": 1, "memory": 2**30, "gpu": 0}
    pool = {"name": item["pool"], "offered": {"cpu": 1, "memory": 2**31, "gpu": 0}}
    offers = node_details.offered(item, {item["pool"]: pool})
    assert inspect_commands._of(item, offers, "cpu") == "1/1"
    assert inspect_commands._gib(item, offers) == "1/2"
    node_details.show(item, offers)
    said = capsys.readouterr().out
    assert "1 for tasks, as its pool declares; it has 2" in said
    assert "2Gi for tasks, as its pool declares; it has 4Gi" in said
    assert node_details.offered(item, {}) == item["capacity"], "a node that no pool declares"
