"""Which tasks take more of the disk than they may, and what is said of it."""

import os
import threading
from pathlib import Path

import pytest

from agents.node import disk_watch

MIB = 2**20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("attempts/a.1/work", "attempts/a.1/tmp", "logs"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


class Agent:
    """An agent with one task, which has a limit."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def scratch_limits(self) -> dict[str, int]:
        return {"a.1": MIB}

    def over_limit(self, attempt: str, message: str) -> None:
        assert message
        self.ended.append(attempt)


def watch(root: Path) -> disk_watch.DiskWatch:
    return disk_watch.DiskWatch(root, Agent(), Agent(), threading.Event())


def fill(path: Path, mib: int) -> None:
    path.write_bytes(os.urandom(mib * MIB))


def test_all_that_a_task_writes_on_the_node_counts(root: Path) -> None:
    """Also what it has put beside the folders that it was given."""
    looks = watch(root)
    fill(root / "attempts/a.1/work/a", 2)
    fill(root / "attempts/a.1/tmp/b", 3)
    (root / "attempts/a.1/hidden").mkdir()
    fill(root / "attempts/a.1/hidden/c", 1)
    fill(root / "logs/a.1.stdout", 1)
    assert list(looks.look({"a.1": 8 * MIB})) == []
    ((name, message),) = looks.look({"a.1": 6 * MIB})
    assert name == "a.1"
    assert message.startswith("its files on the node take 7Mi, and its pool allows 6Mi")
    assert message.endswith("(scratchLimit): tmp 3Mi, work 2Mi, output 1Mi")


def test_only_what_has_a_limit_is_looked_at(root: Path) -> None:
    fill(root / "attempts/a.1/work/a", 2)
    assert list(watch(root).look({"gone.1": 1})) == []


def test_a_folder_that_cannot_be_measured_is_no_way_out(root: Path) -> None:
    """Once may be by chance: files come and go while they are counted."""
    deep = root / "attempts/a.1/work" / "/".join("d" * 80)
    deep.mkdir(parents=True)
    looks = watch(root)
    assert list(looks.look({"a.1": MIB})) == []
    ((_, message),) = looks.look({"a.1": MIB})
    assert "can't be measured" in message


def test_what_is_above_its_limit_is_ended(root: Path) -> None:
    agent = Agent()
    leaving = threading.Event()
    leaving.set()
    fill(root / "attempts/a.1/work/a", 2)
    disk_watch.DiskWatch(root, agent, agent, leaving).turn()
    assert agent.ended == ["a.1"]
