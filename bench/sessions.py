"""Measures sessions of people in tasks: many at once, much data, what others feel, what is left.

Controller, relay, agents and tasks are real. 200 commands are joined at once, echo a line, and end.
Then 1 GiB goes through a forward, beside bare loopback from the same server in the same run;
meanwhile a played node syncs, and a key is typed at a terminal and comes back. At last each who
takes part is killed while a command runs, and the time until nothing of it is left is told.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import cluster, played_nodes
from bench.latency import percentile
from bench.options import count
from reconciler.model.protocol import session_messages
from reconciler.operations.client import session_connection
from reconciler.operations.local import free_ports

_SESSIONS_GOAL, _RATE_GOAL, _RATIO_GOAL = 200, 100.0, 0.08
_SYNC_GOAL_MS, _KEY_GOAL_MS = 50.0, 50.0
_PROBE_EVERY_S, _WAIT_S, _BARE_RUNS = 0.02, 120.0, 3
_MIB = 2**20
_MUSTER = (sys.executable, "-m", "reconciler.cli.entry")
_STRUCTURE = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: played}
spec: {hosts: "played[1-1]", nodes: {cpu: 1, memory: 1Gi}}
"""
_JOB = """\
apiVersion: muster/v1
kind: Job
metadata: {{name: {name}}}
spec:
  owner: bench@localhost
  pools: [virtual]
  resources: {{cpu: 1, memory: 1Gi}}
  command: {command}
"""
#: Who is killed, by a word of its command line; the client is known.
_KILLED = {
    "client": "",
    "relay": "reconciler.server.relay",
    "session_process": "agents.interactive.session_server",
    "agent": "agents",
}
#: Sends so many MiB to whoever connects.
_SOURCE = """\
import socket, sys, threading
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
def send(link):
    with link:
        piece = bytes(2**20)
        for _ in range(int(sys.argv[2])):
            link.sendall(piece)
while True:
    threading.Thread(target=send, args=server.accept()[:1]).start()
"""


def _place(bed: cluster.Bed, name: str) -> session_connection.SessionPlace:
    """The task of a job, once it runs."""

    def runs() -> bool:
        jobs = bed.api.get("/v1/jobs")["items"]
        return any(job["name"] == name and job["state"] == "Running" for job in jobs)

    cluster.wait_until(runs, _WAIT_S)
    return session_connection.SessionPlace(name)


def _marked(mark: str) -> int:
    """How many processes have a word in their command lines."""
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found += mark.encode() in (entry / "cmdline").read_bytes().split(b"\0")
    return found


async def _echo(
    bed: cluster.Bed, place: session_connection.SessionPlace, mark: str, all_in: asyncio.Barrier
) -> int:
    """Join one command, echo a line once all are in, and end it. Return its exit code."""
    argv = ["sh", "-c", "cat; exit 0", mark]
    granted = await asyncio.to_thread(
        session_connection.ticket, bed.api, place, kind="exec", argv=argv
    )
    async with session_connection.dialled(bed.cluster.endpoint, granted, None) as relay:
        await all_in.wait()
        await relay.send(b"line\n")
        if await relay.recv() != session_messages.STDOUT + b"line\n":
            raise RuntimeError("another line came back")
        await all_in.wait()
        await relay.send(session_connection.saying(session_messages.InputEnded()))
        async for message in relay:
            if isinstance(message, str):
                word = session_connection.said(message)
                if isinstance(word, session_messages.SessionExited):
                    return word.status
    raise RuntimeError("a session broke off")


async def _many(bed: cluster.Bed, number: int) -> dict[str, float]:
    """Hold so many sessions at once."""
    place, mark = _place(bed, "sleeper"), f"bench-{os.getpid()}"
    all_in = asyncio.Barrier(number + 1)
    began = time.monotonic()
    tasks = [asyncio.create_task(_echo(bed, place, mark, all_in)) for _ in range(number)]
    async with asyncio.timeout(_WAIT_S):
        await all_in.wait()
        joined_s = time.monotonic() - began
        at_once = await asyncio.to_thread(_marked, mark)
        await all_in.wait()
        await asyncio.gather(*tasks)
    codes = [task.result() for task in tasks]
    taken_s = time.monotonic() - began
    cluster.wait_until(lambda: not _marked(mark), _WAIT_S)
    return {
        "at_once": at_once,
        "well": codes.count(0),
        "joined_s": joined_s,
        "taken_s": taken_s,
        "left": _marked(mark),
    }


def _rate(port: int, size_mib: int) -> float:
    """MiB a second from a port of this machine."""
    began, came, piece = time.monotonic(), 0, bytearray(2**20)
    with socket.create_connection(("127.0.0.1", port), 30) as link:
        while size := link.recv_into(piece):
            came += size
    if came != size_mib * _MIB:
        raise RuntimeError(f"{came} bytes came instead of {size_mib} MiB")
    return size_mib / (time.monotonic() - began)


@contextlib.contextmanager
def _forwarded(bed: cluster.Bed, port: int) -> Iterator[int]:
    """A port here, by a command of its own as people have it."""
    here = free_ports.free_port()
    process = subprocess.Popen(
        [*_MUSTER, "forward", "source", f"{here}:{port}"], env=_environment(bed),
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        if process.stderr is None or "reaches port" not in process.stderr.readline():
            raise RuntimeError("the forward does not listen")
        yield here
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(_WAIT_S)


def _environment(bed: cluster.Bed) -> dict[str, str]:
    endpoint = bed.cluster.endpoint
    token = {} if endpoint.token_file is None else {"MUSTER_TOKEN_FILE": str(endpoint.token_file)}
    return {**os.environ, "MUSTER_SERVER": endpoint.url, **token}


class _Typist(threading.Thread):
    """Presses keys at a terminal of a task, each once the one before came back."""

    def __init__(self, bed: cluster.Bed, place: session_connection.SessionPlace) -> None:
        super().__init__(daemon=True)
        self._bed, self._place = bed, place
        self.over, self.typing = threading.Event(), threading.Event()
        self.taken_ms: list[float] = []

    def run(self) -> None:
        """Type until told to stop."""
        asyncio.run(self._type())

    async def _type(self) -> None:
        wanted = {
            "kind": "exec",
            "argv": ["sh", "-c", "stty raw -echo; printf @; exec cat"],
            "term": "xterm",
        }
        granted = session_connection.ticket(self._bed.api, self._place, **wanted)
        async with session_connection.dialled(self._bed.cluster.endpoint, granted, None) as relay:
            while b"@" not in bytes(await relay.recv(decode=False)):
                pass  # the terminal is raw from then on
            self.typing.set()
            while not self.over.is_set():
                began = time.monotonic()
                await relay.send(b"x")
                await relay.recv()
                self.taken_ms.append(1e3 * (time.monotonic() - began))
                await asyncio.sleep(_PROBE_EVERY_S)


def _much(bed: cluster.Bed, port: int, size_mib: int) -> dict[str, Any]:
    """Send much through a forward, with a node that syncs and a person who types beside it."""
    node, place = played_nodes.Node(bed, "played1"), _place(bed, "sleeper")
    _place(bed, "source")
    cluster.wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, _WAIT_S)
    bare = [_rate(port, size_mib) for _ in range(_BARE_RUNS)]
    syncs: list[float] = []
    over = threading.Event()

    def sync() -> None:
        while not over.wait(_PROBE_EVERY_S):
            syncs.append(node.sync(0.0))

    node.sync(0.0)
    typist, syncing = _Typist(bed, place), threading.Thread(target=sync, daemon=True)
    with _forwarded(bed, port) as here:
        typist.start()
        typist.typing.wait(_WAIT_S)
        syncing.start()
        rate = _rate(here, size_mib)
        over.set()
        typist.over.set()
        syncing.join()
        typist.join()
    return {"bare": statistics.median(bare), "rate": rate, "syncs": syncs, "keys": typist.taken_ms}


def _of(bed: cluster.Bed, word: str) -> int:
    """The process of this cluster whose command line has a word."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if word in words and any(one.startswith(str(bed.folder)) for one in words):
                    return int(entry.name)
    raise RuntimeError(f"there is no {word}")


def _killed(bed: cluster.Bed, who: str, mark: str) -> float:
    """Kill somebody while two sleeps run in a session. Return after how long they were gone.

    Args:
        bed: the cluster.
        who: is killed.
        mark: how long they sleep, as no others do.
    """
    script = f"trap '' HUP TERM; setsid sleep {mark} & sleep {mark}"
    client = subprocess.Popen(
        [*_MUSTER, "exec", "sleeper", "--no-pty", "--", "sh", "-c", script],
        env=_environment(bed), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    cluster.wait_until(lambda: _marked(mark) == 2, _WAIT_S)
    os.kill(_of(bed, _KILLED[who]) if _KILLED[who] else client.pid, signal.SIGKILL)
    began = time.monotonic()
    cluster.wait_until(lambda: not _marked(mark), _WAIT_S)
    taken_s = time.monotonic() - began
    client.kill()
    client.wait()
    return taken_s


def _row(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    row = {"name": name, "value": value, "unit": unit}
    row.update({"peer": None, "peer_value": None, "ratio": None, "goal": None, "met": None})
    return row | more


def _rows(many: dict[str, float], much: dict[str, Any], number: int) -> list[dict[str, Any]]:
    ratio = much["rate"] / much["bare"]
    sync, key = percentile(much["syncs"], 0.99), percentile(much["keys"], 0.95)
    return [
        _row("sessions_at_once", many["at_once"], "", goal=number, met=many["at_once"] >= number),
        _row("sessions_ended_well", many["well"], "", goal=number, met=many["well"] == number),
        _row("sessions_joined", many["joined_s"], "s"),
        _row("sessions_joined_and_ended", many["taken_s"], "s"),
        _row("processes_left", many["left"], "", goal=0, met=not many["left"]),
        _row(
            "forward", much["rate"], "MiB/s", peer="bare loopback", peer_value=much["bare"],
            ratio=ratio, goal=_RATE_GOAL,
            met=much["rate"] >= _RATE_GOAL and ratio >= _RATIO_GOAL,
        ),
        _row("sync_p99_meanwhile", sync, "ms", goal=_SYNC_GOAL_MS, met=sync < _SYNC_GOAL_MS),
        _row("key_p95_meanwhile", key, "ms", goal=_KEY_GOAL_MS, met=key < _KEY_GOAL_MS),
        _row("syncs", len(much["syncs"]), ""),
        _row("keys", len(much["keys"]), ""),
    ]  # fmt: skip


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench sessions", description=__doc__)
    parser.add_argument("--sessions", type=count, default=_SESSIONS_GOAL)
    parser.add_argument("--mib", type=count, default=1024)
    options = parser.parse_args(arguments)
    port, load = free_ports.free_port(), os.getloadavg()[0]
    with (
        cluster.running(nodes=2, cpus=8) as bed,
        tempfile.NamedTemporaryFile("w", suffix=".py") as file,
    ):
        file.write(_SOURCE)
        file.flush()
        source = f"[{sys.executable}, {file.name}, '{port}', '{options.mib}']"
        bed.commit(
            {
                "played.yaml": _STRUCTURE,
                "sleeper.yaml": _JOB.format(name="sleeper", command="[sleep, '36000']"),
                "source.yaml": _JOB.format(name="source", command=source),
            },
            "what sessions need",
        )
        many = asyncio.run(_many(bed, options.sessions))
        much = _much(bed, port, options.mib)
        rows = _rows(many, much, options.sessions)
        for number, who in enumerate(_KILLED, 1):
            taken_s = _killed(bed, who, f"600.{number}{os.getpid()}")
            rows.append(_row(f"nothing_left_after_kill_of_{who}", taken_s, "s"))
            bed.cluster.keep(lambda: _serves(bed), lambda _: None)
    return [*rows, _row("load_before", load, "")]


def _serves(bed: cluster.Bed) -> bool:
    done = subprocess.run(
        [*_MUSTER, "exec", "sleeper", "--", "true"], env=_environment(bed), check=False,
        stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode == 0
