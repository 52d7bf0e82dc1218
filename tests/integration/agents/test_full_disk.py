"""A node whose own disk is full while tasks start, run and end: nothing is lost, all is told."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason
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

    A task whose output finds no room may run all the same; one that can have no folder may not, and
    starts elsewhere at no cost to its job.
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
        if end.end_reason is EndReason.CHECK_FAILED:
            assert "No space left on device" in end.message
            assert end.exit_code is None
        else:
            assert (end.end_reason, end.exit_code) == (EndReason.EXITED, code)
    assert starts or EndReason.CHECK_FAILED in {end.end_reason for end in ends}
    go.touch()
    assert controller.ended("a.1").exit_code == 7, "it ran before, and its status is its own"

    shutil.rmtree(somebodys)
    controller.assign("c.1", "sh", "-c", "echo all of it; exit 6")
    assert controller.ended("c.1").exit_code == 6, "with room it goes on by itself"
    assert (small.root / "logs/c.1.stdout").read_text() == "all of it\n"


@pytest.mark.parametrize("fill", [fill_bytes, fill_files])
def test_an_agent_and_its_supervisor_that_die_on_a_full_disk_lose_no_end(
    small: Node, controller: Controller, tmp_path: Path, fill: Callable[[Path], None]
) -> None:
    """Both are killed while the disk is full, come back while it is, and are killed once more; what
    was told before is told again, and what nobody knows the end of is said to be lost."""
    small.start()
    told: dict[str, AttemptReport] = {}

    def assign(names: list[str], then: str) -> None:
        for name in names:
            code = 10 + len(wanted)
            wanted[name] = code
            script = f"echo x >> {tmp_path}/{name}; {then}; exit {code}"
            controller.assign(name, "sh", "-c", script)

    wanted: dict[str, int] = {}
    assign(["long.1"], "exec sleep 999")
    controller.running("long.1")
    assign([f"early.{number}" for number in range(TASKS)], "true")
    told |= {name: controller.ended(name) for name in wanted if name != "long.1"}
    somebodys = small.root / "somebodys"
    somebodys.mkdir()
    with pytest.raises(OSError, match="No space left"):
        fill(somebodys)
    for life in ("full", "full again"):
        names = [f"{life.replace(' ', '-')}-{number}.1" for number in range(TASKS)]
        assign(names, "head -c 9000 /dev/zero")
        told |= {name: controller.ended(name) for name in names[: TASKS // 2]}
        small.kill_agent()
        small.kill_supervisor()
        controller.wait(lambda: not small.tasks(), "the end of what the supervisor ran")
        with controller.news:
            told |= {n: r for n, r in controller.seen.items() if r.state is AttemptState.ENDED}
            controller.seen.clear()
        if life == "full again":
            shutil.rmtree(somebodys)
        small.start()
        for name in wanted:
            controller.ended(name)
        assert {name: controller.seen[name] for name in told} == told
    assert controller.seen["long.1"].end_reason is EndReason.LOST
    for name, code in wanted.items():
        end = controller.seen[name]
        begun = tmp_path / name
        assert len(begun.read_text().split() if begun.exists() else []) <= 1, f"{name} ran twice"
        if end.end_reason is EndReason.EXITED:
            assert (end.exit_code, begun.read_text()) == (code, "x\n")
        else:
            assert end.end_reason in {EndReason.LOST, EndReason.CHECK_FAILED}, name
    assign(["with-room.1"], "true")
    assert controller.ended("with-room.1").exit_code == wanted["with-room.1"]

    controller.acknowledge = True
    small.kill_agent()
    small.start()  # it tells of all that is known once more
    folders = small.root / "attempts"
    controller.wait(lambda: not list(folders.iterdir()), "the end of the folders")
    assert not small.tasks()
