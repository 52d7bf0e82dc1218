"""The agent's connection to the supervisor: finds or starts it, sends commands, reads records.

The supervisor is started from its file, isolated and in a session of its own, so that neither the
agent's end nor an upgrade affects it. A lock ensures that each root has exactly one.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agents.host import disk_space, processes
from agents.isolation import cgroups
from agents.supervisor import source_hash, task_isolation
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason

#: Run as a script: importing it here would cost every agent memory for nothing.
SCRIPT = Path(__file__).resolve().with_name("__main__.py")
LOG_BYTES_MAX, LAST_BYTES = 2**20, 4096
CONNECT_S = 60.0
SEND_TIMEOUT_S = 30.0
#: Time for a supervisor to end tasks, beyond their own.
SHUTDOWN_S = 15.0
#: Supervisors that end right after their start before this is reported.
FAILED_MAX = 3
#: Exit status of a supervisor that finds another one, which is no failure.
_ANOTHER = 3
LINE_BYTES_MAX = 64 * 2**20
_DECODER = msgspec.json.Decoder(dict[str, Any])


class SupervisorError(Exception):
    """A supervisor that neither answers nor can be started."""


class SupervisorClient:
    """A connection to the supervisor of one root.

    Attributes:
        hello: what the supervisor reported about itself and all its attempts.
        outdated: True if an earlier agent started it from other source files, which a very old
            supervisor cannot report.
        dismissed: True if it was asked to end, so that another one starts.
        pids: main processes by attempt.
        cleanups: commands that remove containers, by attempt.
        node_faults: attempts that could not start because of this node.
    """

    def __init__(self, root: Path, isolation: str = "auto", enter: tuple[str, ...] = ()) -> None:
        self.root = root
        self._isolation = isolation
        self._enter = enter
        self.link: socket.socket | None = None
        self.pid = 0
        self.hello: dict[str, Any] = {}
        self.outdated = False
        self.dismissed = False
        self.pids: dict[str, int] = {}
        self.cleanups: dict[str, dict[str, Any]] = {}
        self.node_faults: set[str] = set()
        self._started: subprocess.Popen[bytes] | None = None
        self._failed = 0
        self._inbox = b""
        self._encoder = msgspec.json.Encoder()

    def connect(self, leaving: threading.Event) -> list[AttemptReport]:
        """Connect to the supervisor, starting one if there is none. Return all attempts that it
        knows.

        Raises:
            SupervisorError: it does not answer in time, or cannot be started.
        """
        deadline = time.monotonic() + CONNECT_S
        delay_s = 0.01
        self._failed = 0
        while True:
            link = self._dial()
            if link is not None:
                records = self._greet(link)
                if records is not None:
                    return records
            elif not processes.is_locked(f"{self.root}/supervisor.lock"):
                self._start()
            if leaving.wait(delay_s) or time.monotonic() > deadline:
                raise SupervisorError(
                    f"no supervisor answers at {self.root}/supervisor.sock after {CONNECT_S:g} s; "
                    f"{self._last_words()}"
                )
            delay_s = min(0.5, delay_s * 1.5)

    def send(self, commands: Sequence[Mapping[str, object]]) -> bool:
        """Send commands in their order. Return False if the supervisor is gone."""
        if self.link is None:
            return False
        try:
            lines = (self._encoder.encode(command) + b"\n" for command in commands)
            self.link.sendall(b"".join(lines))
        except OSError:
            # Part of a command may have been sent: nothing after it would be understood.
            with contextlib.suppress(OSError):
                self.link.shutdown(socket.SHUT_RDWR)
            return False
        return True

    def dismiss(self) -> None:
        """Ask an outdated supervisor to end. Nothing may run or be about to start."""
        self.outdated = False
        self.dismissed = self.send([
            {"op": "shutdown", "reason": EndReason.NODE_STOPPED.value, "grace_s": 0}
        ])  # fmt: skip

    def end_all(self, grace_s: float, heard: Callable[[list[AttemptReport]], None]) -> None:
        """Make the supervisor end all tasks, by force after ``grace_s``, and end itself."""
        command = {"op": "shutdown", "reason": EndReason.NODE_STOPPED.value, "grace_s": grace_s}
        deadline = time.monotonic() + grace_s + SHUTDOWN_S
        if self.send([command]):
            while time.monotonic() < deadline:
                reports = self.receive()
                if reports is None:
                    break
                heard(reports)

    def receive(self) -> list[AttemptReport] | None:
        """Return reports, once the connection is readable; None if it is closed."""
        if self.link is None:
            return None
        try:
            data = self.link.recv(2**20)
        except OSError:
            return None
        if not data or len(self._inbox) > LINE_BYTES_MAX:
            return None
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        try:
            return [r for line in lines for r in self._reports(decoded(line))]
        except ValueError:
            return None

    def close(self) -> None:
        """Close the connection; the supervisor keeps running."""
        if self.link is not None:
            self.link.close()
        self.link, self._inbox = None, b""
        if self._started is not None:
            self._started.poll()

    def _dial(self) -> socket.socket | None:
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(SEND_TIMEOUT_S)
        try:
            link.connect(f"/proc/self/fd/{folder}/supervisor.sock")
        except OSError:
            link.close()
            return None
        finally:
            os.close(folder)
        return link

    def _greet(self, link: socket.socket) -> list[AttemptReport] | None:
        try:
            link.sendall(b'{"op":"hello"}\n')
            parts: list[bytes] = []
            while not parts or b"\n" not in parts[-1]:
                data = link.recv(2**20)
                if not data or sum(map(len, parts)) > LINE_BYTES_MAX:
                    link.close()
                    return None
                parts.append(data)
        except OSError:
            link.close()
            return None
        # Changes of the same moment may have come along: nothing else would wake a reader.
        line, *news, self._inbox = b"".join(parts).split(b"\n")
        try:
            messages = [decoded(message) for message in (line, *news)]
        except ValueError:
            link.close()
            return None
        self.hello = messages[0]
        self.link, self.pid = link, int(self.hello["hello"])
        said, here = self.hello.get("edition", "none"), source_hash.on_disk()
        # one started by this agent could not be replaced by a newer one
        self.outdated = self._started is None and bool(said and here) and said != here
        latest: dict[str, AttemptReport] = {}
        for message in messages:
            latest |= {report.id: report for report in self._reports(message)}
        return list(latest.values())

    def _start(self) -> None:
        code = None if self._started is None else self._started.poll()
        if self._started is not None and code is None:
            return
        if code is not None and code > 0 and code != _ANOTHER:
            self._started = None
            self._failed += 1
            if self._failed >= FAILED_MAX:
                raise SupervisorError(
                    f"the supervisor ends with status {code} as soon as it is started; "
                    f"{self._last_words()}"
                )
        log = self.root / "supervisor.log"
        if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
            log.replace(log.with_suffix(".log.1"))
        command = [*scope(self._isolation, str(self.root)), *self._enter]
        command += [sys.executable, "-I", "-S", str(SCRIPT), str(self.root)]
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            with os.fdopen(os.open(log, flags, 0o600), "ab") as stream:
                self._started = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    cwd="/",
                    env={**os.environ, task_isolation.VARIABLE: self._isolation},
                    start_new_session=True,
                )
        except OSError as problem:
            why = disk_space.explained(problem, self.root)
            raise SupervisorError(f"the supervisor can't be started: {why}") from problem

    def _last_words(self) -> str:
        """Return the last line of the supervisors' log, and what the disk lacks, if anything."""
        log = self.root / "supervisor.log"
        try:
            with log.open("rb") as stream:
                stream.seek(max(0, log.stat().st_size - LAST_BYTES))
                lines = stream.read().decode(errors="replace").split("\n")
        except OSError:
            lines = []
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        words = f"{log} ends with: {said}" if said else f"see {log}"
        return (
            f"{words}; {disk_space.lacking(self.root)}" if disk_space.is_short(self.root) else words
        )

    def _reports(self, message: dict[str, Any]) -> list[AttemptReport]:
        reports = []
        for record in message.get("records", ()):
            if record.get("cleanup"):
                self.cleanups[record["id"]] = record["cleanup"]
            if record.get("node_fault"):
                self.node_faults.add(record["id"])
            if record["state"] == AttemptState.ENDED:
                self.pids.pop(record["id"], None)
            elif record["pid"]:
                self.pids[record["id"]] = int(record["pid"])
            reports.append(report_of(record))
        return reports


def decoded(line: bytes) -> dict[str, Any]:
    """Return a message of a supervisor.

    An older supervisor, which outlives an upgrade, may send names that are not valid text. They are
    shown with a ``?``, and the rest of the message counts.

    Raises:
        ValueError: it is not a message.
    """
    try:
        return _DECODER.decode(line)
    except ValueError:
        said = json.dumps(json.loads(line), ensure_ascii=False).encode(errors="replace")
        return _DECODER.decode(said)


def scope(isolation: str, root: str, top: Path = Path("/"), uid: int | None = None) -> list[str]:
    """Return the prefix of the supervisor's command that makes systemd give it its own scope.

    The scope's group is delegated: groups of tasks are created in it without systemd, and
    restarting the agent's unit does not affect them. The result is empty if systemd does not run
    this machine or is not wanted.
    """
    runs = (top / "run/systemd/system").is_dir() and shutil.which("systemd-run") is not None
    if isolation not in {"auto", "systemd"} or not runs:
        return []
    own = [] if (os.geteuid() if uid is None else uid) == 0 else ["--user"]
    name = cgroups.token_of(root)
    return [
        "systemd-run", *own, "--scope", "--quiet", "--collect", f"--unit={name}-{os.getpid()}",
        "--slice=muster.slice", "--property=Delegate=yes", "--",
    ]  # fmt: skip


def report_of(record: dict[str, Any]) -> AttemptReport:
    """Return a supervisor's record as it is reported to the controller."""
    reason = record.get("end_reason")
    return AttemptReport(
        id=record["id"],
        state=AttemptState(record["state"]),
        started_at=record.get("started_at"),
        ended_at=record.get("ended_at"),
        exit_code=record.get("exit_code"),
        signal=record.get("signal"),
        end_reason=EndReason(reason) if reason else None,
        message=record.get("message", ""),
        max_memory_bytes=record.get("max_memory_bytes", 0),
        cpu_s=record.get("cpu_s", 0.0),
        read_bytes=record.get("read_bytes", 0),
        written_bytes=record.get("written_bytes", 0),
    )
