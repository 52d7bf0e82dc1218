"""A node's own folder on a disk that has nothing left: an agent that can't begin there says what is
missing, of which file system, and what to do."""

import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agents.host import disk_space, processes
from agents.supervisor import client
from reconciler.model.observed.storage import In, StagingPlan, VolumeStore
from reconciler.model.state.states import EndReason
from tests.unit.agents.tasks.test_launcher import Starts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount here")
DEADLINE_S = 90.0


@contextmanager
def disk(place: Path, options: str) -> Iterator[Path]:
    """A small file system of its own at a place."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def agent(root: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "agents", "--virtual", "--server", "http://127.0.0.1:9"]
    command += ["--name", "n1", "--root", str(root), "--isolation", "process-group", *more]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def no_files(place: Path) -> None:
    """Take every file that is left."""
    for number in range(1000):
        (place / str(number)).touch()


def no_bytes(place: Path) -> None:
    """Take every page that is left."""
    with (place / "file").open("wb", buffering=0) as stream:
        while True:
            stream.write(b"x" * 4096)


def test_a_first_start_without_a_file_left(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=8m,nr_inodes=2") as place:
        with agent(place / "root") as begun:
            _, told = begun.communicate(timeout=DEADLINE_S)
        assert begun.returncode == 1
        assert told.count("\n") == 1
        for word in (
            f"muster-agent n1: {place}/root/agent.lock: No space left on device",
            f"the file system at {place} has none of its 2 files (inodes) left",
            f"df -i {place}",
            "another folder with --root",
        ):
            assert word in told


def test_a_check_beforehand_says_the_same(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=8m,nr_inodes=1") as place:
        with agent(place / "root", "--check") as begun:
            told, _ = begun.communicate(timeout=DEADLINE_S)
        assert begun.returncode == 1
        line = next(line for line in told.splitlines() if line.startswith("failed  folder"))
        assert f"the file system at {place} has none of its 1 files (inodes) left" in line


#: So many files have to be left that the agent begins, but not its supervisor: its log can't be
#: made, or it finds no room itself.
@pytest.mark.parametrize("files", [19, 21, 22])
def test_a_supervisor_that_finds_no_room_is_told_about_and_follows(
    short_folder: Path, files: int
) -> None:
    with disk(short_folder / "disk", f"size=8m,nr_inodes={files}") as place:
        begun = agent(place / "root")
        assert begun.stderr is not None
        try:
            told = next(line for line in begun.stderr if "WARNING" in line)
            assert re.search(r"the supervisor (can't be started|ends with status 1)", told)
            assert "No space left on device" in told
            assert f"the file system at {place} has none of its {files} files (inodes)" in told
            assert "trying again" in told
            remount = ["mount", "-o", "remount,nr_inodes=100", str(place)]
            subprocess.run(remount, check=True)
            assert any("tasks are isolated by" in line for line in begun.stderr)
        finally:
            begun.terminate()
            begun.communicate(timeout=DEADLINE_S)
            for pid in processes.supervisors_of(str(place / "root")):
                processes.kill(pid)


@pytest.mark.parametrize(
    ("fill", "word"),
    [
        (no_files, r"none of its 50 files \(inodes\) left"),
        (no_bytes, "none of its 1Mi free: make room"),
    ],
)
def test_what_is_missing(tmp_path: Path, fill: Callable[[Path], None], word: str) -> None:
    with disk(tmp_path / "disk", "size=1m,nr_inodes=50") as place:
        assert not disk_space.is_short(place / "not/there")
        with pytest.raises(OSError, match="No space left") as refused:
            fill(place)
        assert disk_space.is_short(place / "not/there")
        told = disk_space.explained(refused.value, place)
        assert re.search(f"the file system at {place} has {word}", told), told


def test_a_file_system_that_is_read_only(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=1m,ro") as place:
        with agent(place / "root") as begun:
            _, told = begun.communicate(timeout=DEADLINE_S)
        assert begun.returncode == 1
        assert f"{place}/root: Read-only file system" in told
        assert f"mount -o remount,rw {place}" in told


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (OSError(errno.EDQUOT, "Disk quota exceeded", "/x"), ["/x: Disk", "quota of root", "at /"]),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), ["and", "files free by now"]),
        (OSError(errno.EACCES, "Permission denied", "/x"), ["/x: Permission denied"]),
        (OSError("odd"), ["odd"]),
    ],
)
def test_words(problem: OSError, words: list[str]) -> None:
    told = disk_space.explained(problem, Path("/"))
    assert [word for word in words if word not in told] == [], told


def test_a_supervisor_that_ends_at_once_is_told_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()  # it can't be written
    node = client.SupervisorClient(tmp_path, "process-group")
    with pytest.raises(
        client.SupervisorError, match=r"status 1 as soon as .*Is a directory.*journal"
    ):
        node.connect(threading.Event())
    node.close()


def test_a_copy_without_room_is_the_fault_of_its_node(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=8m,nr_inodes=60") as place:
        starts = Starts(place, threading.RLock())
        source = tmp_path / "volume"
        source.mkdir()
        for number in range(60):
            (source / str(number)).write_text("x")
        plan = StagingPlan(ins=(In("x", VolumeStore("v", str(source))),))
        starts.begin("a.1", stage=plan)
        assert starts.came.wait(DEADLINE_S)
        (order,) = starts.orders
        assert (order["op"], order["reason"]) == ("refuse", EndReason.CHECK_FAILED.value)
        assert "the node's cache: no space is left on the disk" in order["message"]
