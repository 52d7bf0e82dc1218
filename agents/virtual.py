"""Runs many nodes on one machine: an agent and a supervisor each, with real tasks.

``muster up`` runs its nodes with this, and tests kill them with it. A virtual node can lose what a
machine can lose: its agent, or everything at once, followed by a new boot.
"""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from agents import shutdown
from reconciler import interpreter

BACKOFF_S_MIN = 0.5
BACKOFF_S_MAX = 30.0
#: An agent that has lived this long is restarted quickly again.
STEADY_S = 60.0
STOP_S = 40.0
#: How often an agent reads the file that describes its simulated GPUs.
SIMULATED_EVERY_S = 0.5
LOG_BYTES_MAX = 2**20


class VirtualNode(msgspec.Struct, frozen=True):
    """The properties of a virtual node, as options of its agent.

    Attributes:
        address: address in a network of its own; empty without one.
        interface: the interface there that has the address.
        enter: prefix of commands that run in that network.
    """

    name: str
    cpus: str = ""
    memory: str = ""
    gpus: int = 0
    gpu_model: str = "simulated"
    gpu_memory: str = "16Gi"
    labels: dict[str, str] = {}
    token_file: Path | None = None
    address: str = ""
    interface: str = ""
    enter: tuple[str, ...] = ()


class AgentOptions(msgspec.Struct, frozen=True):
    """Options that the agents of all virtual nodes have in common.

    Attributes:
        token_file: of the nodes that have none of their own.
        shared: the folder that all nodes share.
        more: further options, as on a command line.
    """

    token_file: Path | None = None
    shared: Path | None = None
    die_with_parent: bool = True
    isolation: str = "auto"
    more: tuple[str, ...] = ()


class _Running:
    """The state of one node's agent."""

    def __init__(self, node: VirtualNode) -> None:
        self.node = node
        self.agent: subprocess.Popen[bytes] | None = None
        self.wanted = False
        self.failures = 0
        self.started_at = 0.0
        self.restart_at = 0.0

    @property
    def alive(self) -> bool:
        """True if the agent's process runs."""
        return self.agent is not None and self.agent.poll() is None


_NO_OPTIONS = AgentOptions()


class VirtualNodes:
    """Starts and ends the agents of virtual nodes. ``poll`` restarts those that must run.

    A node's root is ``folder/NAME``, its agent's log ``folder/NAME.log``.

    Args:
        options: of every agent.
    """

    def __init__(
        self,
        server: str,
        folder: Path,
        nodes: Iterable[VirtualNode] = (),
        options: AgentOptions = _NO_OPTIONS,
    ) -> None:
        self.server = server
        self.folder = folder
        self.options = options
        self._nodes: dict[str, _Running] = {}
        for node in nodes:
            self.add(node)

    def add(self, node: VirtualNode) -> None:
        """Add a node without starting it. Changes take effect at its next start."""
        known = self._nodes.setdefault(node.name, _Running(node))
        known.node = node

    def names(self) -> list[str]:
        """Return the names of all nodes."""
        return list(self._nodes)

    def alive(self, name: str) -> bool:
        """Return True if the node's agent runs."""
        return self._nodes[name].alive

    def root(self, name: str) -> Path:
        """Return the node's folder."""
        return Path(os.path.realpath(self.folder)) / name

    def start(self, name: str) -> None:
        """Start the node's agent, unless it runs."""
        known = self._nodes[name]
        known.wanted = True
        if known.alive:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o711)  # whatever the umask: users of tasks pass through it
        log = self.folder / f"{name}.log"
        if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
            log.replace(log.with_suffix(".log.1"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with os.fdopen(os.open(log, flags, 0o600), "ab") as stream:
            known.agent = subprocess.Popen(
                self.command(name),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        known.started_at = time.monotonic()

    def command(self, name: str) -> list[str]:
        """Return the command line of the node's agent."""
        node, options = self._nodes[name].node, self.options
        command = interpreter.module_command("agents", "--virtual", "--stop-tasks-on-exit")
        command += ["--server", self.server, "--name", name, "--root", str(self.root(name))]
        command += ["--isolation", options.isolation]
        token_file = node.token_file or options.token_file
        pairs = {
            "--token-file": str(token_file) if token_file else "",
            "--shared": str(options.shared) if options.shared else "",
            "--cpus": node.cpus,
            "--memory": node.memory,
            "--address": node.address,
            "--interface": node.interface,
            "--enter": shlex.join(node.enter),
            "--die-with-parent": str(os.getpid()) if options.die_with_parent else "",
        }
        for option, value in pairs.items():
            if value:
                command += [option, value]
        if node.gpus:
            command += ["--simulated-gpus", str(node.gpus), "--gpu-model", node.gpu_model]
            command += ["--gpu-memory", node.gpu_memory, "--gpu-interval", str(SIMULATED_EVERY_S)]
        for key, value in node.labels.items():
            command += ["--label", f"{key}={value}"]
        return [*command, *options.more]

    def stop(self, name: str) -> None:
        """Stop the node's agent and its tasks; nothing is left running."""
        self._ask_to_leave(name)
        self._see_off(name, time.monotonic() + STOP_S)

    def remove(self, name: str) -> None:
        """Stop a node and forget it. Its folder stays, for a new node of the same name."""
        self.stop(name)
        del self._nodes[name]

    def stop_all(self) -> None:
        """Stop every node at the same time."""
        for name in self._nodes:
            self._ask_to_leave(name)
        deadline = time.monotonic() + STOP_S
        for name in self._nodes:
            self._see_off(name, deadline)

    def kill_agent(self, name: str) -> None:
        """Kill the agent but not its tasks; only :meth:`start` restarts it."""
        known = self._nodes[name]
        known.wanted = False
        if known.agent is not None:
            known.agent.kill()
            known.agent.wait()

    def kill_node(self, name: str) -> None:
        """Kill agent, supervisor and tasks at once, like a crash of the machine. The next start is
        a new boot.
        """
        self.kill_agent(name)
        self._kill_rest(name)
        (self.root(name) / "boot").unlink(missing_ok=True)

    def restart(self, name: str) -> None:
        """Kill the agent if it runs, and start it again; tasks keep running."""
        self.kill_agent(name)
        self.start(name)

    def poll(self) -> list[str]:
        """Restart agents that have died without being stopped. Return their names. Call it
        regularly.
        """
        restarted = []
        now = time.monotonic()
        for name, known in self._nodes.items():
            if not known.wanted or known.alive:
                continue
            if not known.restart_at:
                steady = now - known.started_at > STEADY_S
                known.failures = 1 if steady else known.failures + 1
                delay_s = BACKOFF_S_MIN * 2.0 ** min(known.failures - 1, 16)
                known.restart_at = now + min(BACKOFF_S_MAX, delay_s)
            if now >= known.restart_at:
                known.restart_at = 0.0
                self.start(name)
                restarted.append(name)
        return restarted

    def _ask_to_leave(self, name: str) -> None:
        known = self._nodes[name]
        known.wanted = False
        if known.agent is not None and known.alive:
            known.agent.send_signal(signal.SIGTERM)

    def _see_off(self, name: str, deadline: float) -> None:
        known = self._nodes[name]
        if known.agent is not None:
            try:
                known.agent.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                known.agent.kill()
                known.agent.wait()
        self._kill_rest(name)

    def _kill_rest(self, name: str) -> None:
        """End the supervisor, if one lives, and whatever its tasks have left."""
        root = self.root(name)
        if root.exists():
            shutdown.end_everything(root)
