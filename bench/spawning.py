"""What it costs a node to run one short task: the supervisor alone, driven through its socket.

Tasks are ``/bin/true``, started in bursts as an agent would; the clock runs from the first order to
the report of the last end, each of which is on disk by then (grouped fdatasync). CPU is the
supervisor's own, read from the kernel's run time of its thread. Measured once for every way of
isolation that this host offers, so that the price of each is seen beside a bare process group; as
root the dearest once more with tasks of another Unix user, restricted, as people's jobs run on a
cluster.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from agents.supervisor import client

_TASKS, _BURST = 3000, 64
_READY_S = 60.0
#: A user that every system has.
_OTHER = {"name": "nobody", "uid": 65534, "gid": 65534, "groups": []}


class Way(NamedTuple):
    """How tasks are held: isolation asked for, folders of their own, whose they are, and what is
    taken from them.
    """

    isolation: str
    views: bool = False
    user: dict[str, Any] | None = None
    privileges: str = ""


_WAYS = {
    "bare": Way("process-group"),
    "held": Way("auto"),
    "held_own_folders": Way("auto", views=True),
}
if not os.geteuid():
    _WAYS["held_other_user"] = Way("auto", views=True, user=_OTHER, privileges="restricted")


def _order(root: str, name: str, way: Way) -> dict[str, Any]:
    own = f"{root}/attempts/{name}/tmp"  # noqa: S108 - nobody else's
    view: dict[str, Any] = {"binds": [(own, "/tmp"), (own, "/var/tmp")], "shm_bytes": 64 * 2**20}  # noqa: S108
    if way.user is not None:
        view["own_processes"] = True
    if way.privileges:
        view["hides"] = ["/run/user"]
    return {
        "op": "start",
        "id": name,
        "argv": ["/bin/true"],
        "script": None,
        "env": {"PATH": "/usr/bin:/bin", "MUSTER_ATTEMPT": name, "MUSTER_NODE_ROOT": root},
        "cwd": f"{root}/attempts/{name}/work",
        "user": way.user,
        "lease_s": None,
        "checkpoint_signal": "SIGTERM",
        "grace_s": 5,
        "limits": {"cpu_milli": 1000, "memory_bytes": 64 * 2**20, "pids": 512},
        "private": view if way.views else {},
        "privileges": way.privileges,
    }


def _dial(root: str) -> socket.socket:
    until = time.monotonic() + _READY_S
    while True:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.connect(f"{root}/supervisor.sock")
        except OSError:
            link.close()
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return link


def _cpu_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _drive(root: str, pid: int, tasks: int, way: Way) -> tuple[float, float, str]:
    """(seconds, CPU seconds of the supervisor, how it isolates) for so many tasks."""
    with _dial(root) as link:
        # one file for both would forget what it has read ahead whenever it writes
        heard = link.makefile("r")
        link.sendall(b'{"op":"hello"}\n')
        kind = json.loads(heard.readline()).get("isolation", {}).get("kind", "process-group")
        began, cpu_s = time.monotonic(), _cpu_s(pid)
        asked = ended = 0
        while ended < tasks:
            while asked < tasks and asked - ended < 2 * _BURST:
                orders = [_order(root, f"t.{asked + i}", way) for i in range(_BURST)]
                link.sendall("".join(json.dumps(order) + "\n" for order in orders).encode())
                asked += _BURST
            records = json.loads(heard.readline())["records"]
            over = [r["id"] for r in records if r["state"] == "Ended"]
            if any(r["end_reason"] != "Exited" for r in records if r["state"] == "Ended"):
                raise RuntimeError(f"a task did not run: {records[0]}")
            ended += len(over)
            link.sendall(json.dumps({"op": "forget", "ids": over}).encode() + b"\n")
        return time.monotonic() - began, _cpu_s(pid) - cpu_s, kind


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench spawning", description=__doc__)
    parser.add_argument("--tasks", type=int, default=_TASKS, help="tasks of each measurement")
    tasks: int = -(-parser.parse_args(arguments).tasks // _BURST) * _BURST
    rows = []
    # Deleted at the end: files cost more where others were deleted a moment before.
    with tempfile.TemporaryDirectory(prefix="muster-bench-", dir=_place()) as folder:
        Path(folder).chmod(0o755)
        for number, (label, way) in enumerate(_WAYS.items()):
            root = os.path.realpath(f"{folder}/{number}")
            supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", str(client.SCRIPT), root],
                env={**os.environ, "MUSTER_ISOLATION": way.isolation},
            )
            try:
                seconds, cpu_s, kind = _drive(root, supervisor.pid, tasks, way)
            finally:
                with _dial(root) as link:
                    link.sendall(b'{"op":"shutdown","reason":"Drained","grace_s":0}\n')
                    supervisor.wait()
            rows += _rows(f"{label}_{kind}".replace("-", "_"), tasks, seconds, cpu_s)
    return rows


def _place() -> str | None:
    """A folder that the tasks' own views do not hide, and that other users may go through."""
    return None if os.geteuid() else "/var/lib"


def _rows(label: str, tasks: int, seconds: float, cpu_s: float) -> list[dict[str, Any]]:
    empty = {"peer": None, "peer_value": None, "ratio": None, "goal": None, "met": None}
    return [
        {"name": f"spawns_{label}", "value": round(tasks / seconds), "unit": "tasks/s"} | empty,
        {"name": f"cpu_{label}", "value": round(cpu_s / tasks * 1e3, 3), "unit": "ms/task"} | empty,
    ]
