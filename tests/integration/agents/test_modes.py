"""Modes of what a node writes are the same, whoever has started its agent."""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reconciler.model.protocol.agent_messages import TaskTemplate
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users")

#: What a job writes, and its own umask.
SCRIPT = """
umask; echo complaint >&2; touch plain; mkdir folder
echo '{"loss": 1}' >> $MUSTER_METRICS
touch $MUSTER_CHECKPOINT_DIR/step-1
"""
#: Files that only the agent's user, or the task's, can read.
PRIVATE = (
    "logs/a.1.stdout", "logs/a.1.stderr", "logs/a.1.metrics", "supervisor.log", "journal",
    "supervisor.sock", "agent.lock", "supervisor.lock", "attempts/a.1", "metrics", "staging",
    "shared/games", "shared/games/c",
)  # fmt: skip
#: Folders that users have to pass through, with the modes that this takes.
PASSED = {
    "": 0o755,
    "shared": 0o755,
    "attempts": 0o711,
    "logs": 0o711,
    "cache": 0o711,
    "lib": 0o755,
}


@contextmanager
def umask_of(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077], ids=oct)
def test_modes_are_those_of_no_caller(tmp_path: Path, controller: Controller, mask: int) -> None:
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_uid == 0 and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    above = Path(os.path.realpath(tmp_path)) / "above"
    node = Node(above / "root", controller)
    shutil.rmtree(above)  # the agent creates it
    node.log = tmp_path / "agent.log"
    try:
        with umask_of(mask):
            node.start()
        template = TaskTemplate("j", 1, "g", script=SCRIPT, user="games", checkpoint_path="c")
        controller.assign("a.1", template=template)
        assert controller.ended("a.1").exit_code == 0
        modes = {
            str(path.relative_to(node.root)): stat.S_IMODE(path.lstat().st_mode)
            for path in node.root.rglob("*")
            if not path.is_symlink() and path.exists()
        }
        modes |= {"": stat.S_IMODE(node.root.stat().st_mode)}
        assert (node.root / "logs/a.1.stdout").read_text() == "0022\n"
        assert stat.S_IMODE(above.stat().st_mode) == 0o755
        assert {name: modes[name] for name in PASSED} == PASSED
        assert {name for name in PRIVATE if modes[name] & 0o077} == set()
        assert {name for name, mode in modes.items() if mode & 0o022} == set()
        work = "attempts/a.1/work"
        assert (modes[f"{work}/plain"], modes[f"{work}/folder"]) == (0o644, 0o755)
        # the rest that others may read tells nothing: ids of this start of the agent and machine
        hidden = ("attempts/", "shared/", "metrics/", "staging/", "lib/")
        public = {name for name, mode in modes.items() if mode & 0o004} - set(PASSED)
        public = {name for name in public if not name.startswith(hidden)}
        assert public <= {"boot", "epoch", "cgroups.json", "incarnations"}
    finally:
        node.tear_down()
