"""A process that keeps all who read its environment waiting stops neither node nor supervisor."""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.host import process_memory, processes
from agents.isolation import cgroups, task_limits
from reconciler.model.state.states import EndReason
from tests.integration.agents import supervised
from tests.integration.agents.supervised import Bed, alive, wait

CONNECTIONS = Path("/sys/fs/fuse/connections")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users"),
    pytest.mark.skipif(
        cgroups.offers(cgroups.discover())[0] == "process-group", reason="no control groups here"
    ),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE here"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler here"),
]


@pytest.fixture(autouse=True, scope="module")
def open_device() -> None:
    """Let everybody open the device, as udev does on hosts, and images without it do not."""
    Path("/dev/fuse").chmod(0o666)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with supervised.made_in(tmp_path) as made:
        yield made


@pytest.fixture
def program(bed: Bed) -> str:
    source = Path(__file__).with_name("unreadable.c")
    made = bed.root / "unreadable"
    subprocess.run(["cc", "-O1", "-w", "-o", made, source, "-lpthread"], check=True, timeout=60)
    made.chmod(0o755)
    return str(made)


def connection_of(pid: int) -> Path:
    """The kernel's file by which the file system of a process is ended."""
    if not any(CONNECTIONS.iterdir()):
        libc = ctypes.CDLL(None)
        libc.mount(b"none", os.fsencode(CONNECTIONS), b"fusectl", ctypes.c_ulong(0), None)
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        if " - fuse x " in line and (found := re.search(r" 0:(\d+) ", line)):
            return CONNECTIONS / found[1] / "abort"
    raise AssertionError("it has no file system")


@pytest.fixture
def hostile(bed: Bed, program: str) -> Iterator[int]:
    """A task's orphan that nobody can read, and nothing else ends than the end of this."""
    bed.start("hostile", f"exec {program} 8", user="nobody")
    written = bed.root / "attempts/hostile/work/pid"
    wait(written.exists, "the process that nobody can read")
    pid = int(written.read_text())
    connection = connection_of(pid)
    try:
        yield pid
    finally:
        connection.write_text("1")
        processes.kill(pid)
        wait(lambda: not alive(pid), "its end")


def test_the_node_goes_on_beside_a_process_that_nobody_can_read(bed: Bed, hostile: int) -> None:
    reader = subprocess.Popen(["cat", f"/proc/{hostile}/environ"], stdout=subprocess.DEVNULL)
    with pytest.raises(subprocess.TimeoutExpired):
        reader.wait(1.0)  # else this would try nothing
    reader.kill()
    reader.wait(10.0)
    assert set(process_memory.read([hostile, os.getpid()], ())) == {os.getpid()}
    beside = bed.run("echo up", user="daemon")
    assert (beside.end_reason, beside.exit_code) == (EndReason.EXITED, 0)
    bed.ended("hostile")  # its first process has left
    assert bed.run("echo up", user="daemon").exit_code == 0


def test_a_new_supervisor_starts_beside_a_process_that_nobody_can_read(
    bed: Bed, hostile: int
) -> None:
    assert alive(hostile)
    bed.kill_supervisor()
    bed.meet()
    assert bed.run("echo up", user="daemon").exit_code == 0


@pytest.mark.parametrize("way", ["limits", "private"])
def test_a_restricted_task_serves_no_file_system(bed: Bed, program: str, way: str) -> None:
    """Either of the two is enough."""
    denied = {
        "limits": {"deny_devices": list(task_limits.FUSE.values())},
        "private": {"masks": list(task_limits.FUSE)},
    }
    if way == "limits" and "devices" not in cgroups.offers(cgroups.discover())[1]:
        pytest.skip("no controller devices here")
    assert bed.run(": <> /dev/fuse", user="nobody").exit_code == 0
    report = bed.run(f"{program} 0", user="nobody", **{way: denied[way]})
    assert report.exit_code == 1
