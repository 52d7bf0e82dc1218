"""The units under a real systemd: tasks outlive the agent's, the controller works behind walls."""

import contextlib
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.states import EndReason
from reconciler.operations.local import free_ports
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


CONTROLLER = "muster-controller"
POOL = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: pool}
spec: {hosts: gpu1, nodes: {cpu: 1, memory: 1Gi}}
"""
#: Of a system user that no other has.
USER = 64_321


@pytest.fixture
def controlled(tmp_path: Path) -> Iterator[tuple[machine.Machine, str]]:
    """A machine that knows the controller's unit and a repository, and where its API is to be."""
    repository = tmp_path / "repository"
    for command in (
        ["init", "--quiet", "--initial-branch", "main", str(repository)],
        ["-C", str(repository), "add", "--all"],
        ["-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.org",
         "commit", "--quiet", "--message", "a pool"],
    ):  # fmt: skip
        subprocess.run(["git", *command], check=True, capture_output=True)
        (repository / "pool.yaml").write_text(POOL)
    for path in (repository, *repository.rglob("*")):
        os.chown(path, USER, USER)
    (path,) = [one for one in test_units.UNITS if one.stem == CONTROLLER]
    # This environment stands where the unit's walls hide it: its parts are shown at /mnt. Devices
    # of its own can't be made for a unit on a machine that is in a container itself.
    text = (
        path.read_text(encoding="utf-8")
        .replace("PrivateDevices=yes\n", "")
        .replace(
            "ExecStart=/opt/muster/bin/muster controller",
            "Environment=PYTHONPATH=/mnt/source:/mnt/packages LD_LIBRARY_PATH=/mnt/python/lib\n"
            f"ExecStart=/mnt/python/bin/{Path(sys.executable).resolve().name}"
            " -m reconciler.controller.process",
        )
    )
    address = f"127.0.0.1:{free_ports.free_port()}"
    made = machine.Machine(
        tmp_path / "machine",
        {path.name: text},
        {
            "muster/controller.env": "MUSTER_CONTROLLER_OPTIONS=--repo /mnt/repository "
            f"--listen {address}\n",
            "passwd": Path("/etc/passwd").read_text(encoding="utf-8")
            + f"muster:x:{USER}:{USER}::/var/lib/muster:/usr/sbin/nologin\n",
            "group": Path("/etc/group").read_text(encoding="utf-8") + f"muster:x:{USER}:\n",
        },
        {
            "repository": repository,
            "python": Path(sys.base_prefix),
            "packages": Path(sysconfig.get_path("purelib")),
            "source": test_units.ROOT,
        },
    )
    try:
        made.start()
        yield made, f"http://{address}"
    finally:
        made.stop()


def test_the_controller_works_behind_its_walls(controlled: tuple[machine.Machine, str]) -> None:
    site, url = controlled
    began = site.run("systemctl", "start", CONTROLLER)
    status = ("systemctl", "status", "--no-pager", "--full", CONTROLLER)
    assert began.returncode == 0, began.stderr + site.run(*status).stdout

    def asked(path: str) -> httpx.Response:
        """Ask with the token that the controller made for itself."""
        token = site.run("cat", "/var/lib/muster/token").stdout.strip()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.get(f"{url}{path}", timeout=60, headers=headers)

    def synced() -> bool:
        with contextlib.suppress(httpx.HTTPError, KeyError, ValueError):
            return bool(asked("/v1/sync").json()["sync"]["sync"] == "Synced")
        return False

    def shows(name: str) -> str:
        command = ("systemctl", "show", "--value", f"--property={name}", CONTROLLER)
        return site.run(*command).stdout.strip()

    def until_synced(killed: str = "0") -> None:
        """Until a controller that is another than ``killed`` has synced."""
        ends_at = time.monotonic() + machine.DEADLINE_S
        while shows("MainPID") in {killed, "0"} or not synced():
            assert time.monotonic() < ends_at, site.run(*status).stdout
            time.sleep(0.2)

    until_synced()
    assert [one["name"] for one in asked("/v1/pools").json()["items"]] == ["pool"]
    assert httpx.get(f"{url}/v1/pools", timeout=60).status_code == 401
    first = shows("MainPID")
    process = site.run("cat", f"/proc/{first}/status").stdout
    assert f"Uid:\t{USER}\t{USER}" in process
    assert "NoNewPrivs:\t1" in process
    assert "CapEff:\t0000000000000000" in process
    assert "Seccomp:\t2" in process
    assert site.run("kill", "-KILL", first).returncode == 0
    until_synced(killed=first)
    assert site.run("systemctl", "stop", CONTROLLER).returncode == 0
    assert shows("Result") == "success"
    assert not synced()
