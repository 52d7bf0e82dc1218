"""A node: a real agent, a real supervisor, and the proof that a test left no process behind."""

import contextlib
import os
import pwd
import shutil
import signal
import site
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import agents
from agents.host import processes
from agents.supervisor import task_isolation
from tests import started
from tests.integration.agents.controller import Controller


class Node:
    """One node's root, and the agents started in it."""

    def __init__(self, root: Path, controller: Controller) -> None:
        self.root = root
        self.controller = controller
        self.agent: subprocess.Popen[bytes] | None = None
        self.python = sys.executable
        self.environment = {**os.environ, "MUSTER_CRASH_POINTS": str(root / "crash")}
        (root / "crash").mkdir(parents=True)
        self.log = root.parent / "agent.log"

    def command(self, *arguments: str) -> list[str]:
        """The command line of an agent of this node."""
        fixed = ["--server", self.controller.url, "--name", "n1", "--root", str(self.root)]
        return [self.python, "-m", "agents", *fixed, *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the agent."""
        with self.log.open("ab") as stream:
            self.agent = subprocess.Popen(
                self.command(*arguments), stderr=stream, env=self.environment
            )
        return self.agent

    def start_as(self, user: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the agent as another user, which only root can."""
        entry = pwd.getpwnam(user)
        # a cache of compiled modules that it may not write to would be no matter of the agent's
        environment = {**self.environment, "HOME": entry.pw_dir, "PYTHONDONTWRITEBYTECODE": "1"}
        with self.log.open("ab") as stream:
            self.agent = subprocess.Popen(
                self.command(*arguments), stderr=stream, env=environment,
                user=entry.pw_uid, group=entry.pw_gid, extra_groups=[],
            )  # fmt: skip
        return self.agent

    def kill_agent(self) -> None:
        """The agent dies; everything else goes on."""
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()

    def crash_at(self, point: str) -> None:
        """Have the next process that reaches the point die there."""
        (self.root / "crash" / point).touch()

    def reached(self, point: str) -> bool:
        """Whether a process died at the point."""
        return not (self.root / "crash" / point).exists()

    def supervisor(self) -> int:
        """Pid of the supervisor; 0 for none."""
        return next(iter(processes.supervisors_of(str(self.root))), 0)

    def kill_supervisor(self) -> None:
        """The supervisor dies, where one lives: no pid is 0, which would be all of one's own."""
        supervisor = self.supervisor()
        if supervisor:
            with contextlib.suppress(ProcessLookupError):
                os.kill(supervisor, signal.SIGKILL)

    def tasks(self) -> set[int]:
        """Pids of all live processes of this node's attempts."""
        return {p for p in processes.processes() if started.attempt_of(p, str(self.root))}

    def tear_down(self) -> None:
        """End whatever there is."""
        if self.agent is not None and self.agent.poll() is None:
            self.kill_agent()
        self.kill_supervisor()
        assert processes.kill_leftovers(str(self.root), [])
        assert task_isolation.clean_up(str(self.root))


@pytest.fixture
def controller() -> Iterator[Controller]:
    """A controller."""
    made = Controller()
    yield made
    made.close()


@pytest.fixture
def node(tmp_path: Path, controller: Controller) -> Iterator[Node]:
    """A node whose agent is not started yet."""
    made = Node(Path(os.path.realpath(tmp_path)) / "root", controller)
    yield made
    made.tear_down()


@pytest.fixture
def agent(node: Node) -> Node:
    """A node whose agent runs."""
    node.start()
    return node


def runs_for_nobody(program: str) -> bool:
    """Whether a user without rights may run a program."""
    nobody = pwd.getpwnam("nobody")
    try:
        done = subprocess.run(
            [program, "-c", ""], cwd="/", check=False, capture_output=True, timeout=60,
            user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[],
        )  # fmt: skip
    except PermissionError:
        return False
    return done.returncode == 0


@pytest.fixture
def everybodys(node: Node, tmp_path: Path) -> Node:
    """A node whose agent is installed where every user can reach it, as it should be.

    Where these tests run with an interpreter in root's own home, that of the system takes its
    place, with the same libraries.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can change users")
    for folder in [tmp_path, *tmp_path.parents]:
        if str(folder).startswith("/tmp/") and folder.stat().st_uid == 0:
            folder.chmod(0o755)
    if not runs_for_nobody(sys.executable):
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        base = shutil.which(version, path="/usr/bin:/usr/local/bin")
        if base is None:
            pytest.skip(f"no {version} that every user can run")
        made = tmp_path / "venv"
        subprocess.run([base, "-m", "venv", "--without-pip", str(made)], check=True, timeout=120)
        (packages,) = made.glob("lib/python*/site-packages")
        paths = [*site.getsitepackages(), str(Path(agents.__file__).parents[1])]
        (packages / "these.pth").write_text("\n".join(paths) + "\n")
        node.python = str(made / "bin" / "python")
        assert runs_for_nobody(node.python)
    return node
