"""What containers leave is removed once they are over, whoever has died in between."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agents.tasks import container_cleanup

UNTIL_S = 60.0


class Node:
    """Which attempts may begin, and what was said."""

    def __init__(self) -> None:
        self.expected: set[str] = set()
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def may_begin(self, attempt: str) -> bool:
        return attempt in self.expected


class Runtime:
    """Notes what it is asked to remove; some of it fails so many times."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.fails: dict[str, int] = {}

    def __call__(
        self, argv: list[str], _user: Mapping[str, Any] | None, _env: dict[str, str], _limit: float
    ) -> tuple[int | None, str]:
        name = argv[-1]
        if self.fails.get(name, 0) > 0:
            self.fails[name] -= 1
            return 125, "storage is busy"
        self.removed.append(name)
        return 0, ""


class Scene:
    """One node's folder, through several lives of its agent."""

    def __init__(self, root: Path) -> None:
        self.root, self.node, self.runtime = root, Node(), Runtime()
        self.leaving = threading.Event()

    def live(self) -> container_cleanup.ContainerRemover:
        """Another agent, the one before being dead."""
        self.leaving.set()
        self.leaving = threading.Event()
        made = container_cleanup.ContainerRemover(
            self.root, self.node.say, self.node.may_begin, self.leaving, self.runtime
        )
        threading.Thread(target=made.turn, daemon=True).start()
        return made

    def noted(self) -> set[str]:
        folder = self.root / container_cleanup.FOLDER
        return {path.name for path in folder.iterdir()} if folder.exists() else set()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.leaving.set()


def wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + UNTIL_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def other(op: str, name: str) -> Any:
    """A command without a container."""
    return {"op": op, "id": name}


def order(name: str, user: dict[str, Any] | None = None) -> Any:
    cleanup = {"argv": ["podman", "rm", name], "env": {"HOME": "/h"}, "user": user}
    return {"op": "start", "id": name, "cleanup": cleanup}


def test_one_that_has_ended_is_removed_and_its_note_goes(scene: Scene) -> None:
    agent = scene.live()
    agent.note([order("a.1"), order("a.2"), other("start", "b.1") | {"cleanup": None}])
    assert scene.noted() == {"a.1", "a.2"}
    assert (scene.root / container_cleanup.FOLDER).stat().st_mode & 0o777 == 0o700
    agent.ended("a.1")
    agent.ended("b.1")
    wait(lambda: scene.noted() == {"a.2"})
    assert scene.runtime.removed == ["a.1"]


def test_one_whose_agent_and_supervisor_died_is_removed_by_the_next(scene: Scene) -> None:
    scene.live().note([order("a.1"), order("a.2")])
    scene.node.expected = {"a.1", "a.2"}
    agent = scene.live()
    scene.node.expected = {"a.2"}  # a controller has been heard, and wants the other one only
    wait(lambda: scene.noted() == {"a.2"})
    agent.ended("a.2")
    wait(lambda: scene.noted() == set())
    assert scene.runtime.removed == ["a.1", "a.2"]


def test_what_only_the_supervisor_remembers_is_removed_as_well(scene: Scene) -> None:
    agent = scene.live()
    agent.ended("a.1", order("a.1")["cleanup"])
    wait(lambda: scene.runtime.removed == ["a.1"])


def test_a_removal_that_fails_is_said_once_and_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_cleanup, "AGAIN_S_MIN", 0.01)
    scene.runtime.fails["a.1"] = 3
    agent = scene.live()
    agent.note([order("a.1")])
    agent.ended("a.1")
    wait(lambda: scene.noted() == set())
    (said,) = scene.node.said
    assert said == "`podman rm a.1`: storage is busy; retrying until it succeeds"


def test_a_container_that_cannot_be_noted_is_not_started(scene: Scene) -> None:
    """As on a full disk: it would be nobody's if all died then. It is the fault of its node."""
    agent = scene.live()
    (scene.root / container_cleanup.FOLDER).write_text("no folder")
    plain = other("start", "b.1")
    noted: list[Any] = agent.note([order("a.1"), plain])
    refused, started = noted
    assert (refused["op"], refused["id"], refused["reason"]) == ("refuse", "a.1", "CheckFailed")
    assert "its container's removal can't be noted: " in refused["message"]
    assert started == plain


@pytest.mark.parametrize("text", ["", "{", '{"argv": 3}', "\x00"])
def test_what_is_no_note_is_told_and_stays(scene: Scene, text: str) -> None:
    """It is all that anybody knows of a container that may be left."""
    scene.live().note([order("a.2")])
    (scene.root / container_cleanup.FOLDER / "a.1").write_text(text)
    assert set(container_cleanup.read(scene.root)) == {"a.2"}
    scene.live()
    (said,) = scene.node.said
    assert f"{scene.root / container_cleanup.FOLDER / 'a.1'} can't be read" in said
    assert "look for a.1 in its runtime's list" in said
    wait(lambda: scene.noted() == {"a.1"})
    (told,) = container_cleanup.clear(scene.root, scene.runtime)
    assert told == said
    assert scene.noted() == {"a.1"}


def test_notes_are_on_the_disk_before_anything_starts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []

    def fsync(handle: int) -> None:
        kept.append(Path(f"/proc/self/fd/{handle}").readlink().name)

    monkeypatch.setattr("os.fsync", fsync)
    agent = scene.live()
    agent.note([order("a.1"), other("start", "b.1"), order("a.2")])
    assert kept == [".a.1", ".a.2", container_cleanup.FOLDER]
    agent.note([order("a.1")])  # it is noted already
    agent.note([other("stop", "a.1")])
    assert kept.count(".a.1") == 1


def test_whether_one_may_begin_is_asked_less_and_less_often(scene: Scene) -> None:
    scene.live().note([order("a.1")])
    scene.node.expected = {"a.1"}
    agent = container_cleanup.ContainerRemover(
        scene.root, scene.node.say, scene.node.may_begin, scene.leaving, scene.runtime
    )
    waits = [agent._wait_s() for _ in range(9)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


@pytest.mark.parametrize(("fails", "left"), [(2, []), (3, ["`podman rm a.1`: storage is busy"])])
def test_a_node_that_ends_removes_all_and_keeps_the_notes_of_what_fails(
    scene: Scene, fails: int, left: list[str]
) -> None:
    scene.live().note([order("a.1"), order("a.2", user={"uid": 7, "gid": 7, "groups": []})])
    scene.runtime.fails["a.1"] = fails
    paused: list[float] = []
    assert container_cleanup.clear(scene.root, scene.runtime, paused.append) == left
    assert scene.noted() == ({"a.1"} if left else set())
    assert paused == [container_cleanup.LAST_PAUSE_S] * 2
    assert container_cleanup.clear(scene.root, scene.runtime, paused.append) == []
    assert sorted(scene.runtime.removed) == ["a.1", "a.2"]
