"""Logs are within their limits soon after a task has ended or written much."""

import os
from pathlib import Path

import pytest

from agents.logs import log_streamer
from agents.node import cleanup
from agents.settings import AgentSettings

KIB = 2**10


class Scene:
    """A folder of logs and a clock that a test turns."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "logs"
        self.folder.mkdir()
        self.now = 100.0
        self.said: list[str] = []
        settings = AgentSettings(
            "http://127.0.0.1:1", "n1", root, log_bytes_max=40 * KIB, logs_total_bytes_max=100 * KIB
        )
        self.logs = cleanup.LogCleanup(self.folder, settings, self.said.append, lambda: self.now)
        assert self.logs.turn([]), "at the start"

    def write(self, name: str, kib: int, age: float = 0.0) -> None:
        path = self.folder / f"{name}.stdout"
        path.write_bytes(b"x" * kib * KIB)
        os.utime(path, (2e9 - age, 2e9 - age))

    def turn(self, *running: str, after: float = 10.0) -> bool:
        self.now += after
        return self.logs.turn(list(running))

    def left(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_the_end_of_a_task_enforces_the_limit(scene: Scene) -> None:
    for age, name in enumerate(["c", "b", "a"]):
        scene.write(name, 40, age)
    assert not scene.turn("c")
    scene.logs.ended()
    assert scene.turn()
    assert scene.left() == {"c.stdout", "b.stdout"}
    assert not scene.turn()


def test_what_runs_takes_room_from_what_has_ended(scene: Scene) -> None:
    scene.write("a", 35, 2)
    scene.write("b", 35, 1)
    scene.logs.ended()
    assert scene.turn()
    scene.write("c", 20)
    assert not scene.turn("c")
    scene.write("c", 40)
    assert scene.turn("c"), "all three have passed it"
    assert scene.left() == {"b.stdout", "c.stdout"}
    scene.write("c", 90)
    assert not scene.turn("c"), "it is turned over, and has a log of 40 KiB then"
    scene.write("c", 39)
    assert scene.turn("c")
    beside = {"c.stdout.1", "c.stdout.cut"}
    assert scene.left() == {"c.stdout", *beside}, "what runs is kept, within its own limit"


def test_the_folder_is_gone_through_no_more_often_than_it_may_cost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    prune = log_streamer.prune

    def slow(folder: Path, keep: set[str], bytes_max: int, age_s_max: float) -> int:
        scene.now += 2.0
        return prune(folder, keep, bytes_max, age_s_max)

    monkeypatch.setattr(log_streamer, "prune", slow)
    scene.logs.ended()
    assert scene.turn()
    found = []
    for _ in range(20):
        scene.logs.ended()
        found.append(scene.turn(after=5.0))
    assert sum(found) == 2, "each took 2 s: 40 s of rest"


def test_it_is_gone_through_now_and_then_for_what_is_too_old(scene: Scene) -> None:
    assert not scene.turn(after=cleanup.PRUNE_EVERY_S - 50)
    assert scene.turn(after=51)


def test_who_writes_fast_is_looked_at_again_soon(scene: Scene) -> None:
    scene.write("a", 100)
    scene.turn("a")
    assert scene.logs.again_s == cleanup.HURRIED_S
    scene.write("a", 50)
    scene.turn("a")
    assert scene.logs.again_s == cleanup.ROTATE_EVERY_S


def test_what_was_written_just_before_the_end_is_cut_too(scene: Scene) -> None:
    scene.turn("a")
    scene.write("a", 500)
    scene.logs.ended()
    scene.turn()
    assert {path.name: path.stat().st_size for path in scene.folder.iterdir()} == {
        "a.stdout": 0,
        "a.stdout.1": 40 * KIB,
        "a.stdout.cut": 9,
    }
