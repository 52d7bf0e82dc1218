"""The agent's handle on the process that serves sessions, which is started with the first one.

Requests are passed on as lines; the agent never waits for that process.
"""

import os
import subprocess
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import msgspec

from agents.link.http_client import ControllerTarget
from agents.settings import AgentSettings
from reconciler import interpreter
from reconciler.model.protocol.session_messages import SessionRequest

#: Requests that are remembered, because a controller repeats one until it was answered.
REMEMBERED_MAX = 4096
REFUSAL = (
    "this node runs no commands of people: its agent was started with --no-exec. To fix: run the "
    "job on another node"
)


def of_agent(
    settings: AgentSettings, target: ControllerTarget, say: Callable[[str], None]
) -> Callable[[SessionRequest], None]:
    """Return what has sessions of an agent served."""
    return SessionProcess(settings.root, target, say, refuses=settings.no_exec).add


class SessionProcess:
    """The process of one agent that serves sessions.

    Args:
        root: the agent's folder; what the process says of itself goes to a log there.
        target: the controller.
        refuses: True if this node serves none.
        say: shows a message to the operator.
    """

    def __init__(
        self, root: Path, target: ControllerTarget, say: Callable[[str], None], *, refuses: bool
    ) -> None:
        self._root = root
        self._target = target
        self._say = say
        self._refuses = refuses
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: OrderedDict[str, None] = OrderedDict()

    def add(self, request: SessionRequest) -> None:
        """Have a session served. Repeated requests are served once."""
        if request.id in self._seen:
            return
        self._seen[request.id] = None
        while len(self._seen) > REMEMBERED_MAX:
            self._seen.popitem(last=False)
        line = msgspec.json.encode(request) + b"\n"
        for _ in range(2):  # one that has died is started again
            process = self._running()
            if process is None or process.stdin is None:
                return
            try:
                os.write(process.stdin.fileno(), line)
            except BlockingIOError:
                self._say("the process for sessions takes no more requests")
                return
            except BrokenPipeError:
                self._end(process)
            else:
                return

    def _running(self) -> subprocess.Popen[bytes] | None:
        """Return the process, started if there is none; None if it can't be."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        command = interpreter.module_command(
            "agents.interactive.session_server",
            *("--root", str(self._root), "--server", self._target.url),
            *(("--ca", self._target.ca_file) if self._target.ca_file else ()),
            *(("--refusal", REFUSAL) if self._refuses else ()),
        )
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(self._root / "sessions.log", flags, 0o600), "wb") as log:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=log, stderr=log, bufsize=0,
                    cwd="/", start_new_session=True,
                )  # fmt: skip
        except OSError as problem:
            self._say(f"the process for sessions can't be started: {problem}")
            return None
        assert process.stdin is not None  # noqa: S101 - asked for
        os.set_blocking(process.stdin.fileno(), False)
        self._process = process
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._process = None
