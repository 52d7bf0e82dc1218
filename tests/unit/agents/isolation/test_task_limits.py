"""What a task may see and use, as the supervisor is told."""

from pathlib import Path

import msgspec
import pytest

from agents.isolation import task_limits
from reconciler.model.observed.devices import MigInstance
from reconciler.model.protocol.agent_messages import Assignment
from reconciler.model.state.records import Gpu, RankPlacement
from tests.unit.agents.host.test_host_info import tree

GPUS = tuple(Gpu(i, f"GPU-{i}", "H200", pci_address=f"0000:{i + 1}b:00.0") for i in range(3))
DRIVER = {
    f"driver/nvidia/gpus/{gpu.pci_address}/information": "Model: H200\n"
    f"Device Minor: \t {7 - gpu.index}\n"
    for gpu in GPUS
}


def test_only_what_can_be_enforced_is_asked_for() -> None:
    some = task_limits.IsolationCapabilities("cgroup-v1", ("memory", "pids"), pids_max=10)
    found = task_limits.limits_of(some, 1000, 2**20, "0-1", {"/dev/nvidia1": "c 195:1 rwm"})
    assert found == {"memory_bytes": 2**20, "pids": 10}
    assert task_limits.limits_of(task_limits.IsolationCapabilities(), 1000, 2**20, "0-1", {}) == {}
    every = task_limits.IsolationCapabilities(
        "cgroup-v1", ("memory", "cpu", "cpuset", "devices", "pids")
    )
    assert task_limits.limits_of(every, 500, 0, "3", {"/dev/nvidia1": "c 195:1 rwm"}) == {
        "cpu_milli": 500, "cpus": "3", "deny_devices": ["c 195:1 rwm"],
    }  # fmt: skip


def test_gpus_of_others_are_denied_by_the_drivers_own_numbers(tmp_path: Path) -> None:
    proc = tree(tmp_path, DRIVER)
    assert task_limits.denied_gpus(GPUS, (1,), system=proc) == {
        "/dev/nvidia7": "c 195:7 rwm", "/dev/nvidia5": "c 195:5 rwm",
    }  # fmt: skip
    assert task_limits.denied_gpus(GPUS, (0, 1, 2), system=proc) == {}
    # of a gang with several tasks here each reaches the devices of the others
    alone = Assignment("j.1.0.0.main.0.1", "t", "boot", devices=(1,))
    rank = RankPlacement(local_devices=(0, 1))
    beside = Assignment("j.1.0.0.main.0.1", "t", "boot", devices=(1,), rank=rank)
    assert "/dev/nvidia7" in task_limits.denied_gpus(GPUS, alone.reachable, system=proc)
    assert "/dev/nvidia7" not in task_limits.denied_gpus(GPUS, beside.reachable, system=proc)
    assert task_limits.denied_gpus(GPUS, (), system=tmp_path / "nowhere") == {}
    assert task_limits.minor_of("../../etc", proc) is None


def test_gpus_that_the_node_does_not_offer_are_denied_too(tmp_path: Path) -> None:
    """Several agents may share a machine, each by its own ``--gpus``."""
    proc = tree(tmp_path, DRIVER)
    every = {"/dev/nvidia7", "/dev/nvidia6", "/dev/nvidia5"}
    assert set(task_limits.denied_gpus(GPUS[:1], (0,), system=proc)) == every - {"/dev/nvidia7"}
    assert set(task_limits.denied_gpus(GPUS[:1], (), system=proc)) == every
    assert set(task_limits.denied_gpus((), (), system=proc)) == every, "a node without any"
    virtual = (Gpu(0, "GPU-sim-0", "simulated", simulated=True),)
    assert set(task_limits.denied_gpus(virtual, (0,), system=proc)) == every
    split = msgspec.structs.replace(GPUS[0], mig=PARTS)
    proc = tree(tmp_path / "split", DRIVER | CAPABILITIES)
    found = set(task_limits.denied_gpus((split,), (), PARTS[1:2], proc))
    assert {"/dev/nvidia6", "/dev/nvidia5"} < found
    assert "/dev/nvidia7" not in found


def test_no_gpu_is_taken_for_a_strangers_that_may_be_the_tasks_own(tmp_path: Path) -> None:
    """A driver that tells no PCI address of a device leaves it open which one it is."""
    proc = tree(tmp_path, DRIVER)
    nameless = msgspec.structs.replace(GPUS[0], pci_address="")
    assert task_limits.denied_gpus((nameless,), (0,), system=proc) == {}
    found = task_limits.denied_gpus((nameless, GPUS[1]), (0,), system=proc)
    assert set(found) == {"/dev/nvidia6"}


PARTS = tuple(MigInstance(f"MIG-{i}", "1g.18gb", 7 + i, 0) for i in range(3))
MINORS = "config 1\nmonitor 2\n" + "".join(
    f"gpu7/gi{7 + i}/access {30 + i}\ngpu7/gi{7 + i}/ci0/access {40 + i}\n" for i in range(3)
)
CAPABILITIES = {
    "driver/nvidia-caps/mig-minors": MINORS,
    "devices": "Character devices:\n195 nvidia\n236 nvidia-caps\n\nBlock devices:\n  8 sd\n",
}


def test_other_instances_of_a_gpu_that_is_split_are_denied(tmp_path: Path) -> None:
    split = msgspec.structs.replace(GPUS[0], mig=PARTS)
    proc = tree(tmp_path, DRIVER | CAPABILITIES)
    found = task_limits.denied_gpus((split, *GPUS[1:]), (), PARTS[1:2], proc)
    assert found == {
        **{f"/dev/nvidia-caps/nvidia-cap{n}": f"c 236:{n} rwm" for n in (30, 40, 32, 42)},
        "/dev/nvidia6": "c 195:6 rwm",
        "/dev/nvidia5": "c 195:5 rwm",
    }
    # those of other nodes, and others in the same GPU instance, which the driver alone lists
    listed = {
        f"driver/nvidia/capabilities/gpu7/mig/{name}/access": "DeviceFileMinor: 1\n"
        for name in ("gi7", "gi7/ci0", "gi8", "gi8/ci0", "gi8/ci1", "gi9", "gi9/ci0")
    }
    more = {"driver/nvidia-caps/mig-minors": f"{MINORS}gpu7/gi8/ci1/access 51\n"}
    proc = tree(tmp_path / "listed", DRIVER | CAPABILITIES | listed | more)
    alone = msgspec.structs.replace(GPUS[0], mig=PARTS[1:2])
    found = task_limits.denied_gpus((alone,), (), PARTS[1:2], proc)
    caps = {path.rpartition("cap")[2] for path in found if "caps" in path}
    assert caps == {"30", "40", "51", "32", "42"}
    # a task without an instance of it does not get at the device at all
    assert "/dev/nvidia7" in task_limits.denied_gpus((split,), (), (), proc)
    bare = tree(tmp_path / "bare", DRIVER)
    untold = task_limits.denied_gpus((split, *GPUS[1:]), (1, 2), PARTS[1:2], bare)
    assert untold == {}, "a driver that tells no numbers"


@pytest.mark.parametrize(
    ("needed", "expected"),
    [
        (["/var/lib/muster", "/data"], ["/tmp", "/var/tmp"]),
        (["/tmp/muster", "/data"], ["/var/tmp"]),
        (["/var/lib/muster", "/var/tmp/work"], ["/tmp"]),
        (["/tmpfs/muster"], ["/tmp", "/var/tmp"]),
    ],
)
def test_folders_below_which_the_node_works_are_left_alone(
    needed: list[str], expected: list[str]
) -> None:
    found = task_limits.view_of(
        task_limits.IsolationCapabilities(views=True),
        task_limits.ViewedPaths("/a", tuple(needed[:1]), tuple(needed[1:])),
        memory_bytes=5,
        denied=[],
        alone=True,
        gang="",
    )
    assert found == {
        "binds": [("/a/tmp", folder) for folder in expected], "shm_bytes": 5, "ipc": "",
        "own_processes": True,
    }  # fmt: skip


def test_no_view_where_none_can_be_made() -> None:
    held = task_limits.IsolationCapabilities("cgroup-v1", ("memory",))
    paths = task_limits.ViewedPaths("/a", (), ())
    found = task_limits.view_of(held, paths, memory_bytes=5, denied=[], alone=True, gang="")
    assert found == {}


@pytest.mark.parametrize(
    ("needed", "own"), [(["/dev/shm/muster"], False), (["/dev/shm"], False), (["/dev/shmem"], True)]
)
def test_shared_memory_in_which_the_node_works_is_left_alone(
    needed: list[str], *, own: bool
) -> None:
    holding = task_limits.IsolationCapabilities(views=True)
    paths = task_limits.ViewedPaths("/a", tuple(needed), ())
    found = task_limits.view_of(holding, paths, memory_bytes=5, denied=[], alone=False, gang="g")
    assert ("shm_bytes" in found) is own
    assert found["ipc"] == "g"


def test_a_task_can_be_left_in_the_hosts_ipc_namespace() -> None:
    holding = task_limits.IsolationCapabilities(views=True)
    paths = task_limits.ViewedPaths("/a", (), ())
    found = task_limits.view_of(holding, paths, memory_bytes=5, denied=[], alone=False, gang=None)
    assert "ipc" not in found
    assert found["shm_bytes"] == 5


def test_no_choice_of_a_job_has_it_use_the_hosts_memory() -> None:
    holding = task_limits.IsolationCapabilities(views=True)
    paths = task_limits.ViewedPaths("/a", ("/root",), ("/dev/shm", "/dev/shm/program"))
    found = task_limits.view_of(holding, paths, memory_bytes=5, denied=[], alone=False, gang="")
    assert found["shm_bytes"] == 5


@pytest.mark.parametrize(
    ("root", "chosen", "views", "found"),
    [
        ("/srv/node", None, True, "/tmp"),
        ("/srv/node", "/scratch", True, "/scratch"),
        ("/srv/node", None, False, "/srv/node/attempts/a.1/tmp"),
        ("/tmp/node", None, True, "/var/tmp"),  # the task has to see the node
        ("/var/tmp/node", None, True, "/tmp"),
    ],
)
def test_a_temporary_folder_has_a_name_short_enough_for_sockets(
    root: str, chosen: str | None, views: bool, found: str
) -> None:
    attempt = f"{root}/attempts/a.1"
    paths = task_limits.ViewedPaths(attempt, (root,), (f"{attempt}/work", "/bin/true"))
    holding = task_limits.IsolationCapabilities(views=views)
    view = task_limits.view_of(holding, paths, memory_bytes=0, denied=[], alone=False, gang=None)
    environment = {"TMPDIR": chosen or f"{attempt}/tmp", "HOME": "/"}
    named = environment | task_limits.short_temporary(view, paths, environment)
    assert named == {"TMPDIR": found, "HOME": "/"}
