"""What a node agent costs its node: CPU at rest and with 100 sleeping tasks, and memory.

Agent and supervisor are real and counted together; the controller is a stand-in in this process
whose cost is not counted. It answers polls as late as the real one does, so that the rhythm is the
real one. Once more it has 100 tasks, eight simulated GPUs and a port of its own, which is read
every 15 s. CPU is read from the kernel's own run time of every thread, in nanoseconds. The peer is
one ``slurmd`` with the ``slurmstepd`` of each of its tasks, where Slurm is installed.
"""

import argparse
import contextlib
import http.client
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from agents.host import processes
from bench.peers import slurm
from reconciler.model.protocol.agent_messages import (
    Assignment,
    AssignmentSet,
    SyncRequest,
    SyncResponse,
    TaskTemplate,
)
from reconciler.model.state.states import AttemptState
from reconciler.operations.local import free_ports

_TASKS, _POLL_S, _MEASURE_S, _READY_S = 100, 30.0, 90.0, 60.0
_GOAL_PERCENT = 0.5
#: How often Prometheus reads a page by the guide's configuration.
_READ_EVERY_S = 15.0
_SLEEP = TaskTemplate("rest", 1, "g", command=("sleep", "86400"), allow_root=True)


class StandIn:
    """Holds one node's assignments and answers its polls."""

    def __init__(self) -> None:
        self.news = threading.Condition()
        self.version = 1
        self.assignments: tuple[Assignment, ...] = ()
        self.running: set[str] = set()
        self.boot_id = ""
        self.leaving = False
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = stand_in.answer(msgspec.msgpack.decode(body, type=SyncRequest))
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: Any) -> None:
                """The agent leaves in the middle of a poll."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request: SyncRequest) -> bytes:
        """One exchange."""
        with self.news:
            self.boot_id = request.boot_id
            self.running |= {r.id for r in request.attempts if r.state is AttemptState.RUNNING}
            self.news.notify_all()
            current = (1, self.version)
            self.news.wait_for(
                lambda: self.leaving or request.have != (1, self.version), request.wait_s
            )
            current = (1, self.version)
            made = AssignmentSet({"t": _SLEEP}, self.assignments)
            chosen = made if request.have != current else None
            return msgspec.msgpack.encode(SyncResponse(*current, set=chosen, poll_s=_POLL_S))

    def wait(self, condition: Any, what: str) -> None:
        """Wait for the agent."""
        with self.news:
            if not self.news.wait_for(condition, _READY_S):
                raise TimeoutError(f"the agent did not report {what} in {_READY_S:g} s")

    def assign(self, count: int) -> None:
        """Have the node run so many sleeping tasks."""
        with self.news:
            self.assignments = tuple(
                Assignment(f"rest.1.0.{i}.g.0.1", "t", self.boot_id, element=i, array_count=count)
                for i in range(count)
            )
            self.version += 1
            self.news.notify_all()
        self.wait(lambda: len(self.running) == count, f"{count} running tasks")

    def close(self) -> None:
        """Stop serving."""
        with self.news:
            self.leaving = True
            self.news.notify_all()
        self.server.shutdown()
        self.server.server_close()


def cpu_s(pids: list[int]) -> float:
    """CPU time of all threads of some processes so far."""
    total = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            total += int(path.read_text().split()[0])
    return total / 1e9


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def measure(pids: list[int], seconds: float) -> float:
    """CPU seconds per hour."""
    before, began = cpu_s(pids), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pids) - before) / (time.monotonic() - began) * 3600


def _row(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    row = {"name": name, "value": round(value, 3), "unit": unit}
    row.update({"peer": None, "peer_value": None, "ratio": None, "goal": None, "met": None})
    return row | more


def _situation(name: str, pids: list[int], seconds: float) -> list[dict[str, Any]]:
    hourly = measure(pids, seconds)
    percent = hourly / 36
    goal = {"goal": f"value < {_GOAL_PERCENT}", "met": percent < _GOAL_PERCENT}
    memory = [memory_mib(pid) for pid in pids]
    return [
        _row(f"cpu_{name}_s_per_h", hourly, "s/h"),
        _row(f"cpu_{name}_percent", percent, "% of a core", **(goal if name == "rest" else {})),
        _row(f"memory_{name}_mib", sum(memory), "MiB"),
        _row(f"memory_{name}_agent_mib", memory[0], "MiB"),
        _row(f"memory_{name}_supervisor_mib", memory[1], "MiB"),
    ]


def _beside_slurmd(rows: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """The rows with one ``slurmd``, at rest and with as many tasks, in the peer's columns."""
    theirs: dict[str, float] = {}
    with slurm.running(nodes=1, cpus=_TASKS) as peer:
        for situation, tasks in (("rest", 0), (f"{_TASKS}_tasks", _TASKS)):
            pids = peer.sleepers(tasks) if tasks else peer.daemons()
            time.sleep(min(3.0, seconds))
            hourly = measure(pids, seconds)
            theirs[f"cpu_{situation}_s_per_h"] = hourly
            theirs[f"cpu_{situation}_percent"] = hourly / 36
            theirs[f"memory_{situation}_mib"] = sum(memory_mib(pid) for pid in pids)
        name = f"slurmd {peer.version}"
    return [
        row
        | {
            "peer": name,
            "peer_value": round(theirs[row["name"]], 3),
            "ratio": round(row["value"] / theirs[row["name"]], 3) if theirs[row["name"]] else None,
        }
        if row["name"] in theirs
        else row
        for row in rows
    ]


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench agent_cost", description=__doc__)
    parser.add_argument("--seconds", type=float, default=_MEASURE_S, help="of each measurement")
    seconds: float = parser.parse_args(arguments).seconds
    rows = [*_ours(seconds), *_read(seconds)]
    problem = slurm.missing()
    if problem:
        return [*rows, {"not_measured": f"slurmd beside the agent: {problem}"}]
    return _beside_slurmd(rows, seconds)


@contextlib.contextmanager
def _agent(seconds: float, *options: str) -> Iterator[tuple[StandIn, list[int]]]:
    """An agent that has settled, with what stands in for its controller, and its processes."""
    stand_in = StandIn()
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        root = Path(os.path.realpath(name)) / "root"
        command = [sys.executable, "-m", "agents", "--server", stand_in.url, "--name", "bench"]
        command += ["--root", str(root), "--stop-tasks-on-exit", "--stop-grace", "1"]
        command += ["--log-level", "warning", *options]
        agent = subprocess.Popen(command)
        try:
            stand_in.wait(lambda: bool(stand_in.boot_id), "anything")
            # What a start costs is over when the agent has settled into its polls.
            time.sleep(min(3.0, seconds))
            yield stand_in, [agent.pid, *processes.supervisors_of(str(root))]
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait(_READY_S)
            stand_in.close()


def _ours(seconds: float) -> list[dict[str, Any]]:
    """Agent and supervisor, at rest and with tasks."""
    with _agent(seconds) as (stand_in, pids):
        rows = _situation("rest", pids, seconds)
        stand_in.assign(_TASKS)
        time.sleep(min(3.0, seconds))
        return rows + _situation(f"{_TASKS}_tasks", pids, seconds)


def _read(seconds: float) -> list[dict[str, Any]]:
    """The same with tasks, eight GPUs, and a port of its own that is read as Prometheus would."""
    port = free_ports.free_port()
    options = ("--metrics-listen", f"127.0.0.1:{port}", "--simulated-gpus", "8")
    with _agent(seconds, *options) as (stand_in, pids):
        stand_in.assign(_TASKS)
        time.sleep(min(3.0, seconds))
        waited, size = _page(port)
        took: list[float] = []
        over = threading.Event()

        def read() -> None:
            while not over.wait(_READ_EVERY_S):
                took.append(_page(port)[0])

        reader = threading.Thread(target=read)
        reader.start()
        try:
            rows = _situation(f"{_TASKS}_tasks_read", pids, seconds)
        finally:
            over.set()
            reader.join()
    took = took or [waited]
    return [
        *rows,
        _row("own_page_first_s", waited, "s"),
        _row("own_page_s", statistics.median(took), "s"),
        _row("own_page_kib", size / 1024, "KiB"),
    ]


def _page(port: int) -> tuple[float, int]:
    """How long the page of the agent's own port took, and how many bytes it has."""
    began = time.perf_counter()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as link:
        link.request("GET", "/metrics")
        answer = link.getresponse()
        body = answer.read()
    if answer.status != http.HTTPStatus.OK:
        raise RuntimeError(f"the agent's own port answered {answer.status}: {body[:200]!r}")
    return time.perf_counter() - began, len(body)
