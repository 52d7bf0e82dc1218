"""Memory that tasks share by name goes with them, and is shared by the tasks of one gang alone."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.host import processes
from agents.isolation import cgroups
from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.records import RankPlacement
from reconciler.model.state.states import AttemptState, EndReason
from tests.integration.agents import supervised
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller
from tests.integration.agents.supervised import Bed

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces here")

MIB = 2**20
ALONE = {"private": {"shm_bytes": 8 * MIB, "ipc": ""}}
#: Makes a segment of System V with a key and a file, as programs do that end without deleting them.
LEAVES = """exec python3 -c '
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
number = libc.shmget(0x7a51, 4 << 20, 0o1666)
assert number >= 0
ctypes.memset(libc.shmat(number, None, 0), 65, 4 << 20)
open("/dev/shm/muster-left", "w").write("x")
print("left", flush=True)
import sys, time
time.sleep(%s)
'"""
#: Says which of the two it finds.
FINDS = """exec python3 -c '
import ctypes, os
print(ctypes.CDLL(None).shmget(0x7a51, 0, 0) >= 0, os.path.exists("/dev/shm/muster-left"))
'"""


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with supervised.made_in(tmp_path) as made:
        yield made


def segments() -> int:
    """How many segments of the key there are on this machine."""
    return Path("/proc/sysvipc/shm").read_text().count(str(0x7A51))


def supervisor_of(bed: Bed) -> Path:
    """The supervisor's folder in ``/proc``."""
    (pid,) = processes.supervisors_of(str(bed.root))
    return Path(f"/proc/{pid}")


def namespaces(bed: Bed) -> int:
    """How many namespaces and mounts the supervisor holds for gangs."""
    links = [str(path.readlink()) for path in (supervisor_of(bed) / "fd").iterdir()]
    own = 1  # the way back
    return sum(link.startswith("ipc:") or link == "/" for link in links) - own


@pytest.mark.parametrize("user", ["games", None])
def test_nothing_stays_when_a_task_has_ended(bed: Bed, user: str | None) -> None:
    report = bed.run(LEAVES % 0, user=user, **ALONE)
    assert (report.exit_code, bed.output(report.id)) == (0, "left\n")
    assert not segments()
    assert not Path("/dev/shm/muster-left").exists()
    after = bed.run(FINDS, user=user, **ALONE)
    assert bed.output(after.id) == "False False\n"


@pytest.mark.parametrize("user", ["games", None])
def test_tasks_of_a_gang_share_it_and_nobody_else_does(bed: Bed, user: str | None) -> None:
    gang = {"private": {"shm_bytes": 8 * MIB, "ipc": "job/1/0/1/5"}}
    bed.start("rank0", LEAVES % 999, user=user, **gang)
    bed.until("rank0", AttemptState.RUNNING)
    supervised.wait(lambda: "left" in bed.output("rank0"), "the segment")
    for found, order in (("True True", gang), ("False False", ALONE), ("True True", gang)):
        report = bed.run(FINDS, user=user, **order)
        assert bed.output(report.id) == f"{found}\n"
    other = bed.run(FINDS, user=user, private={"shm_bytes": 8 * MIB, "ipc": "job/1/0/2/5"})
    assert bed.output(other.id) == "False False\n"
    assert not segments()
    assert namespaces(bed) == 2
    stop = {"op": "stop", "id": "rank0", "reason": "Cancelled", "signal": "SIGKILL", "grace_s": 0}
    bed.supervisor.send([stop])
    assert bed.ended("rank0").end_reason is EndReason.CANCELLED
    assert namespaces(bed) == 0
    again = bed.run(FINDS, user=user, **gang)
    assert bed.output(again.id) == "False False\n"


def test_a_client_of_mps_stays_with_its_daemon(bed: Bed) -> None:
    """Its order names no IPC namespace. It has its own ``/dev/shm`` all the same."""
    script = "readlink /proc/self/ns/ipc; df --output=size -B1 /dev/shm | tail -n 1"
    report = bed.run(script, user="games", private={"shm_bytes": 8 * MIB})
    here = Path("/proc/self/ns/ipc").readlink()
    assert bed.output(report.id).split() == [str(here), str(8 * MIB)]


def test_a_gang_has_the_memory_of_all_its_tasks(bed: Bed) -> None:
    gang = {"private": {"shm_bytes": 8 * MIB, "ipc": "g"}}
    bed.start("rank0", "echo up; exec sleep 999", user="games", **gang)
    bed.until("rank0", AttemptState.RUNNING)
    report = bed.run("df --output=size -B1 /dev/shm | tail -n 1", user="games", **gang)
    assert int(bed.output(report.id)) == 16 * MIB


def test_a_start_that_fails_leaves_nothing(bed: Bed) -> None:
    gang = {"shm_bytes": 8 * MIB, "ipc": "g"}
    for order, reason in (
        ({"private": gang, "argv": ["nosuchcommand"]}, EndReason.START_FAILED),
        ({"private": gang | {"binds": [("/no/such", "/tmp")]}}, EndReason.CHECK_FAILED),
        ({"private": gang, "cwd": "/no/such"}, EndReason.START_FAILED),
    ):
        for user in ("games", None):
            assert bed.run("true", user=user, **order).end_reason is reason
    assert namespaces(bed) == 0
    assert bed.run("true").exit_code == 0


def test_the_supervisor_is_where_it_was(bed: Bed) -> None:
    there, here = supervisor_of(bed) / "ns", Path("/proc/self/ns")
    for order in (ALONE, {"private": {"shm_bytes": 0, "ipc": "g"}}, {"private": {"ipc": ""}}):
        bed.run("true", user="games", **order)
        for kind in ("ipc", "mnt"):
            assert (there / kind).readlink() == (here / kind).readlink()


@pytest.mark.skipif(
    "memory" not in cgroups.offers(cgroups.discover())[1], reason="no controller memory here"
)
@pytest.mark.parametrize("what", ["segment", "file"])
def test_what_is_shared_is_charged_to_the_task(bed: Bed, what: str) -> None:
    segment = LEAVES.replace("4 << 20", "200 << 20") % 0
    script = segment if what == "segment" else "exec head -c 200000000 /dev/zero > /dev/shm/x"
    view = {"shm_bytes": 400 * MIB, "ipc": ""}
    report = bed.run(script, user="games", limits={"memory_bytes": 64 * MIB}, private=view)
    assert report.end_reason is EndReason.OUT_OF_MEMORY
    assert not segments()


class TestAgent:
    """What the agent asks for, with tasks that stay and tasks of a gang."""

    def test_the_working_directory_makes_no_difference(
        self, agent: Node, controller: Controller
    ) -> None:
        script = "touch left-by-muster && df --output=size -B1 . | tail -n 1"
        template = TaskTemplate(
            "j", 1, "g", script=script, working_directory="/dev/shm", memory_bytes=64 * MIB
        )
        controller.assign("a.1", template=template)
        assert controller.ended("a.1").exit_code == 0
        assert not Path("/dev/shm/left-by-muster").exists()
        assert int((agent.root / "logs/a.1.stdout").read_text()) == 64 * MIB

    def test_ranks_on_one_node_meet(self, agent: Node, controller: Controller) -> None:
        script = "touch /dev/shm/$RANK; while [ ! -e /dev/shm/$((1 - RANK)) ]; do sleep 0.1; done"
        template = TaskTemplate("j", 1, "g", script=script, framework="torchrun")
        for rank in (0, 1):
            placed = RankPlacement(rank, 2, rank, 2, 0, "127.0.0.1", 29500)
            controller.assign(f"a.{rank}", template=template, index=rank, rank=placed)
        for rank in (0, 1):
            assert controller.ended(f"a.{rank}").exit_code == 0
