"""A node whose own disk is full while tasks start, run and end: nothing is lost, all is told."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.model.states import EndReason
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

TASKS = 12


@pytest.fixture
def small(tmp_path: Path, controller: Controller) -> Iterator[Node]:
    """A node whose folder is on a disk of its own, of 8 MiB and 400 files."""
    root = Path(os.path.realpath(tmp_path)) / "root"
    root.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=400", "none", str(root)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("nothing can be mounted here")
    made = Node(root, controller)
    yield made
    made.tear_down()
    subprocess.run(["umount", "--lazy", str(root)], check=True)


def fill_bytes(folder: Path) -> None:
    """Take every page that is left, as somebody's file."""
    with (folder / "file").open("wb", buffering=0) as stream:
        while True:
            stream.write(b"x" * 4096)


def fill_files(folder: Path) -> None:
    """Take every file that is left: others have room, and can't make one."""
    for number in range(1000):
        (folder / str(number)).touch()


@pytest.mark.parametrize(("fill", "starts"), [(fill_bytes, True), (fill_files, False)])
def test_a_full_disk_loses_no_end_and_is_no_mystery(
    small: Node, controller: Controller, tmp_path: Path,
    fill: Callable[[Path], None], *, starts: bool,
) -> None:  # fmt: skip
    """Records have room of their own on the disk, so that they are kept and told while it is full.

    A task whose output finds no room may run all the same; one that can have no folder may not.
    """
    small.start()
    go = tmp_path / "go"
    script = f"echo begun; until [ -e {go} ]; do sleep 0.1; done; exit 7"
    controller.assign("a.1", "sh", "-c", script)
    log = small.root / "logs/a.1.stdout"
    controller.wait(lambda: log.exists() and "begun" in log.read_text(), "the first task")

    somebodys = small.root / "somebodys"
    somebodys.mkdir()
    with pytest.raises(OSError, match="No space left"):
        fill(somebodys)
    names = [f"b.{number}" for number in range(TASKS)]
    for number, name in enumerate(names):
        controller.assign(name, "sh", "-c", f"head -c 9000 /dev/zero; exit {number + 10}")
    ends = [controller.ended(name) for name in names]
    for code, end in enumerate(ends, 10):
        if end.end_reason is EndReason.START_FAILED:
            assert "No space left on device" in end.message
            assert end.exit_code is None
        else:
            assert (end.end_reason, end.exit_code) == (EndReason.EXITED, code)
    assert starts or EndReason.START_FAILED in {end.end_reason for end in ends}
    go.touch()
    assert controller.ended("a.1").exit_code == 7, "it ran before, and its status is its own"

    shutil.rmtree(somebodys)
    controller.assign("c.1", "sh", "-c", "echo all of it; exit 6")
    assert controller.ended("c.1").exit_code == 6, "with room it goes on by itself"
    assert (small.root / "logs/c.1.stdout").read_text() == "all of it\n"
