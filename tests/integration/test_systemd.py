"""The agent's unit under a real systemd: tasks outlive it, in a delegated scope of their own."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.model.states import EndReason
from reconciler.model.wire import TaskTemplate
from tests.integration import machine, test_units
from tests.integration.agents.controller import Controller

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("systemd"),
    pytest.mark.skipif(bool(machine.problem()), reason=machine.problem() or "-"),
]
ROOT = "/var/lib/muster-agent"
UNIT = "muster-agent"
WAITS = "while ! test -e /mnt/go; do sleep 0.1; done; exit 7"


class Scene:
    """A machine on which systemd has started the agent's unit."""

    def __init__(self, folder: Path) -> None:
        self.controller = Controller()
        (path,) = [one for one in test_units.UNITS if one.stem == UNIT]
        options = f"MUSTER_AGENT_OPTIONS=--server {self.controller.url} --gpus none\n"
        self.machine = machine.Machine(
            folder, {path.name: test_units.here(path)}, {"muster/agent.env": options}
        )
        self.mnt = folder / "mnt"

    def until(self, holds: Callable[[], bool], what: str) -> None:
        ends_at = time.monotonic() + machine.DEADLINE_S
        while not holds():
            if time.monotonic() > ends_at:
                status = self.machine.run("systemctl", "status", "--no-pager", UNIT).stdout
                log = self.machine.log.read_text(errors="replace")[-3000:]
                raise AssertionError(f"no {what}: {status}\n{log}")
            time.sleep(0.1)

    def shows(self, unit: str, name: str) -> str:
        """A property of a unit."""
        command = ("systemctl", "show", "--value", f"--property={name}", unit)
        return self.machine.run(*command).stdout.strip()

    def scopes(self) -> list[str]:
        """Scopes of supervisors."""
        command = ("systemctl", "list-units", "--plain", "--no-legend", "muster-*.scope")
        return [line.split()[0] for line in self.machine.run(*command).stdout.splitlines() if line]

    def pid_of(self, words: str) -> str:
        """The oldest process in there with these words in its command line."""
        return self.machine.run("pgrep", "--oldest", "--full", words).stdout.strip()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    try:
        made.machine.start()
        assert made.machine.run("systemctl", "start", UNIT).returncode == 0
        yield made
    finally:
        made.machine.stop()
        made.controller.close()


def test_tasks_outlive_a_restart_and_a_stop_of_the_unit(scene: Scene) -> None:
    controller = scene.controller
    controller.assign("a.1", "sh", "-c", WAITS)
    controller.running("a.1")
    (scope,) = scene.scopes()
    assert scene.shows(scope, "Delegate") == "yes"
    assert scene.shows(UNIT, "Delegate") == "yes"
    agent, task = scene.shows(UNIT, "MainPID"), scene.pid_of("while ! test -e /mnt/go")
    assert task
    lives = len(controller.lives)

    assert scene.machine.run("systemctl", "restart", UNIT).returncode == 0
    controller.wait(lambda: len(controller.lives) > lives, "another life of the agent")
    assert scene.shows(UNIT, "MainPID") not in {agent, "0"}
    assert scene.pid_of("while ! test -e /mnt/go") == task
    assert scene.scopes() == [scope]

    assert scene.machine.run("systemctl", "stop", UNIT).returncode == 0
    assert scene.pid_of("while ! test -e /mnt/go") == task
    (scene.mnt / "go").touch()
    scene.until(lambda: not scene.pid_of("while ! test -e /mnt/go"), "end of the task")
    assert scene.machine.run("systemctl", "start", UNIT).returncode == 0
    ended = controller.ended("a.1")
    assert (ended.end_reason, ended.exit_code) == (EndReason.EXITED, 7)


def test_a_task_in_the_scope_is_held_to_its_memory_and_the_unit_goes_on(scene: Scene) -> None:
    controller = scene.controller
    template = TaskTemplate("j", 1, "g", ("sh", "-c", "tail /dev/zero"), memory_bytes=32 * 2**20)
    controller.assign("a.1", template=template)
    assert controller.ended("a.1").end_reason is EndReason.OUT_OF_MEMORY
    controller.assign("a.2", "true")
    assert controller.ended("a.2").exit_code == 0
    assert scene.shows(UNIT, "NRestarts") == "0"
    assert controller.inventory is not None
    assert controller.inventory.isolation is not None


def test_an_agent_that_is_killed_is_started_again(scene: Scene) -> None:
    controller = scene.controller
    controller.wait(lambda: bool(controller.lives), "the agent")
    agent = scene.shows(UNIT, "MainPID")
    assert scene.machine.run("kill", "-KILL", agent).returncode == 0
    controller.wait(lambda: len(controller.lives) == 2, "another life of the agent")
    assert scene.shows(UNIT, "ActiveState") == "active"
