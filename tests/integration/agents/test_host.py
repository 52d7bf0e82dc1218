"""What changes of the machine while its agent runs is told without anybody asking."""

import os
import subprocess
from pathlib import Path

import pytest

from agents.host import host_info
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller


def kind_of(folder: Path) -> str:
    """The file system that a folder is on."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    found = {line.split()[4]: line.partition(" - ")[2].split()[0] for line in lines}
    above = [str(one) for one in (folder, *folder.parents) if str(one) in found]
    return found[above[0]]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_mount_that_comes_and_goes_is_told(
    node: Node, controller: Controller, tmp_path: Path
) -> None:
    if kind_of(tmp_path) not in host_info.DATA_FILE_SYSTEMS - {"overlay"}:
        pytest.skip("temporary folders are on no file system that is told")
    source, target = tmp_path / "source", Path(os.path.realpath(tmp_path)) / "target"
    source.mkdir()
    target.mkdir()

    def told() -> bool:
        found = controller.inventory
        return (
            found is not None
            and found.host is not None
            and str(target) in {one.path for one in found.host.mounts}
        )

    node.start()
    controller.wait(lambda: controller.inventory is not None, "the first inventory")
    assert not told()
    subprocess.run(["mount", "--bind", str(source), str(target)], check=True)
    try:
        controller.wait(told, "word of the mount")
    finally:
        subprocess.run(["umount", str(target)], check=True)
    controller.wait(lambda: not told(), "word that it has gone")
