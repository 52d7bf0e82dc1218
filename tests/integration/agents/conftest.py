"""A node: a real agent, a real supervisor, and the proof that a test left no process behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents import confinement, processes
from tests.integration.agents.controller import Controller


class Node:
    """One node's root, and the agents started in it."""

    def __init__(self, root: Path, controller: Controller) -> None:
        self.root = root
        self.controller = controller
        self.agent: subprocess.Popen[bytes] | None = None
        self.environment = {**os.environ, "MUSTER_CRASH_POINTS": str(root / "crash")}
        (root / "crash").mkdir(parents=True)
        self.log = root.parent / "agent.log"

    def command(self, *arguments: str) -> list[str]:
        """The command line of an agent of this node."""
        fixed = ["--server", self.controller.url, "--name", "n1", "--root", str(self.root)]
        return [sys.executable, "-m", "agents", *fixed, *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the agent."""
        with self.log.open("ab") as stream:
            self.agent = subprocess.Popen(
                self.command(*arguments), stderr=stream, env=self.environment
            )
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

    def tasks(self) -> set[int]:
        """Pids of all live processes of this node's attempts."""
        return {p for p in processes.processes() if processes.attempt_of(p, str(self.root))}

    def tear_down(self) -> None:
        """End whatever there is."""
        if self.agent is not None and self.agent.poll() is None:
            self.kill_agent()
        supervisor = self.supervisor()
        if supervisor:
            os.kill(supervisor, signal.SIGKILL)
        assert processes.kill_leftovers(str(self.root), [])
        assert confinement.clean_up(str(self.root))


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
