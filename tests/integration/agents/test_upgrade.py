"""A node's package is upgraded while tasks run: they go on, and their supervisor gives
way to one of the new edition when none is left.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import agents
import reconciler
from agents.supervisor import source_hash
from reconciler.model.state.states import EndReason
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

DEADLINE_S = 90.0


class Installed:
    """A package of one's own, which can be upgraded, and the agent of a node that runs from it."""

    def __init__(self, place: Path, node: Node) -> None:
        self.place = place
        self.node = node
        place.mkdir()
        shutil.copytree(Path(agents.__file__).parent, place / "agents")
        (place / "reconciler").symlink_to(Path(reconciler.__file__).parent)

    def start(self) -> None:
        with self.node.log.open("ab") as stream:
            self.node.agent = subprocess.Popen(
                [sys.executable, *self.node.command()[1:]], stderr=stream, cwd="/",
                env={**os.environ, "PYTHONPATH": str(self.place)},
            )  # fmt: skip

    def change(self, name: str, change: Callable[[str], str]) -> None:
        """Another edition of a file; nobody reads half of it."""
        path = self.place / "agents" / name
        (self.place / "part").write_text(change(path.read_text()))
        (self.place / "part").replace(path)

    def restart(self) -> None:
        assert self.node.agent is not None
        self.node.agent.terminate()
        assert self.node.agent.wait(DEADLINE_S) == 0
        self.start()

    def said(self) -> str:
        return self.node.log.read_text()


@pytest.fixture
def installed(tmp_path: Path, node: Node) -> Installed:
    return Installed(Path(os.path.realpath(tmp_path)) / "package", node)


def newer(text: str) -> str:
    return f"{text}# of another edition\n"


def silent(text: str) -> str:
    """As supervisors were that did not say which edition they were of."""
    changed = re.sub(r'^ +"edition": self\.edition,\n', "", text, flags=re.MULTILINE)
    assert changed != text
    return changed


@pytest.mark.parametrize("old", [None, silent], ids=["one that says its edition", "an older one"])
def test_an_upgrade_reaches_the_supervisor_when_no_task_is_left(
    installed: Installed, controller: Controller, tmp_path: Path,
    old: Callable[[str], str] | None,
) -> None:  # fmt: skip
    node = installed.node
    if old is not None:
        before = (installed.place / "agents/supervisor/__main__.py").read_text()
        installed.change(source_hash.SCRIPT, old)
    installed.start()
    go = tmp_path / "go"
    controller.assign("a.1", "sh", "-c", f"until [ -e {go} ]; do sleep 0.1; done; exit 7")
    controller.running("a.1")
    first = node.supervisor()
    if old is not None:
        installed.change(source_hash.SCRIPT, lambda _: before)
    installed.change("supervisor/journal.py", newer)
    installed.restart()
    controller.assign("b.1", "sh", "-c", f"until [ -e {go} ]; do sleep 0.1; done; exit 8")
    controller.running("b.1")
    assert node.supervisor() == first, "its tasks would end with it"
    assert "the supervisor is of another edition than this agent" in installed.said()
    go.touch()
    assert controller.ended("a.1").exit_code == 7
    assert controller.ended("b.1").exit_code == 8

    def another() -> bool:
        return node.supervisor() not in {0, first}

    controller.wait(another, "a supervisor of the new edition")
    controller.assign("c.1", "sh", "-c", "exit 9")
    assert controller.ended("c.1").exit_code == 9
    second = node.supervisor()
    installed.restart()
    controller.assign("d.1", "sh", "-c", "exit 10")
    assert controller.ended("d.1").exit_code == 10
    assert node.supervisor() == second, "that one is of the edition on the disk"
    told = installed.said()
    assert told.count("the outdated supervisor has ended") == 1
    assert "the supervisor has died" not in told
    assert "internal error" not in told


def test_what_starts_while_it_leaves_is_not_lost(
    installed: Installed, controller: Controller
) -> None:
    installed.start()
    controller.assign("a.0", "sh", "-c", "exit 1")
    assert controller.ended("a.0").exit_code == 1
    first = installed.node.supervisor()
    installed.change("supervisor/journal.py", newer)
    installed.restart()
    number = 0
    while installed.node.supervisor() in {0, first}:  # it leaves between two of these
        number += 1
        assert number < 5000
        controller.assign(f"b.{number}", "sh", "-c", f"exit {number % 100}")
        end = controller.ended(f"b.{number}")
        assert (end.exit_code, end.end_reason) == (number % 100, EndReason.EXITED)
    controller.assign("c.0", "sh", "-c", "exit 2")
    assert controller.ended("c.0").exit_code == 2


def test_each_file_of_it_counts(tmp_path: Path) -> None:
    shutil.copytree(Path(agents.__file__).parent, tmp_path / "agents")
    folder = str(tmp_path / "agents")
    found = {source_hash.on_disk(), source_hash.on_disk(folder)}
    assert len(found) == 1
    files = source_hash.source_files()
    for name in files:
        with (tmp_path / "agents" / name).open("a") as stream:
            stream.write("# more\n")
        found.add(source_hash.on_disk(folder))
    assert len(found) == 1 + len(files)
    (tmp_path / "agents/supervisor/journal.py").unlink()
    assert not source_hash.on_disk(folder)
