"""How fast agents are answered while the loop goes through 100,000 pending jobs.

Every job is a job of its own, none has room. One made-up node reports its usage over and over, so
that cycle follows cycle; another one asks (``wait_s`` 0) at a steady pace, and its round trips
are the figure. Cycle times come from the controller's own histogram; its resident memory is read
with as many jobs, and on a fresh cluster with 20,000.
"""

import argparse
import os
import statistics
import threading
import time
from typing import Any

import msgspec

from agents.link.http_client import Connection, ControllerTarget, LinkError
from bench import agent_cost, cluster, idle
from bench.latency import percentile
from bench.throughput import QUEUE
from reconciler.model.protocol.agent_messages import SyncRequest
from reconciler.model.state.records import NodeUsage

_JOBS_A_FILE = 5_000
_MEMORY_JOBS = 20_000
_LOAD_S = 900.0
_ASK_EVERY_S, _REPORT_EVERY_S = 0.01, 0.02
_P99_GOAL_MS, _MEMORY_GOAL_MIB = 50.0, 1024.0

_FILLER = """\
apiVersion: muster/v1
kind: Job
metadata: {name: filler}
spec:
  queue: bench
  owner: bench@localhost
  array: {count: 4}
  resources: {cpu: 2, memory: 16Mi}
  command: [sleep, "86400"]
"""

_JOB = """\
apiVersion: muster/v1
kind: Job
metadata: {{name: wait-{number:06d}}}
spec: {{queue: bench, owner: bench@localhost, resources: {{cpu: 1, memory: 16Mi}}, command: [date]}}
"""


class Node:
    """A node that only talks."""

    def __init__(self, bed: cluster.Bed, name: str) -> None:
        token = bed.cluster.state / "node-token"
        self.name, self.incarnation, self.sequence = name, os.urandom(8).hex(), 0
        self.connection = Connection(ControllerTarget(bed.cluster.url, token))

    def ask(self, usage: NodeUsage | None = None) -> float:
        """One exchange; how many milliseconds it took.

        Raises:
            RuntimeError: it was not answered.
        """
        self.sequence += 1
        request = SyncRequest(
            node=self.name,
            boot_id=f"boot-{self.name}",
            incarnation=self.incarnation,
            sequence=self.sequence,
            usage=usage,
            accepts_unrenewed=True,
        )
        began = time.monotonic()
        try:
            status, answer = self.connection.post(
                f"/v1/nodes/{self.name}/sync", msgspec.msgpack.encode(request), 60.0
            )
        except LinkError as problem:
            raise RuntimeError(str(problem)) from problem
        if status != 200:
            raise RuntimeError(f"node {self.name}: {status} {answer[:200]!r}")
        return 1e3 * (time.monotonic() - began)


def _files(jobs: int) -> dict[str, str]:
    return {
        f"jobs-{first:06d}.yaml": "---\n".join(
            _JOB.format(number=number) for number in range(first, min(jobs, first + _JOBS_A_FILE))
        )
        for first in range(0, jobs, _JOBS_A_FILE)
    }


def _load(bed: cluster.Bed, jobs: int) -> float:
    """Fill the nodes, commit the jobs, and wait until all are known; the seconds it took."""
    database = bed.cluster.state / "store.db"
    bed.commit({"queue.yaml": QUEUE, "filler.yaml": _FILLER}, "a queue and what fills the nodes")
    cluster.wait_until(lambda: cluster.one(database, _RUNNING) == 4, 60.0)
    bed.stage(_files(jobs))
    began = time.monotonic()
    bed.publish(f"{jobs} jobs")
    count = "SELECT count(*) FROM jobs WHERE state = 'Pending'"
    cluster.wait_until(lambda: cluster.one(database, count) == jobs, _LOAD_S, look_s=0.5)
    return time.monotonic() - began


_RUNNING = "SELECT count(*) FROM attempts WHERE state = 'Running'"


def _cycles(bed: cluster.Bed) -> tuple[float, float]:
    """How many cycles there were, and the seconds that they took together."""
    values = {}
    for line in b"".join(bed.api.stream("/metrics", {})).decode().splitlines():
        name, _, value = line.rpartition(" ")
        if name in {"muster_cycle_duration_seconds_count", "muster_cycle_duration_seconds_sum"}:
            values[name.rpartition("_")[2]] = float(value)
    return values["count"], values["sum"]


def _memory(bed: cluster.Bed) -> tuple[float, float]:
    """Resident memory of loop and server, in MiB."""
    pids = idle.parts(bed.folder.resolve())
    return agent_cost.memory_mib(pids["loop"][0]), agent_cost.memory_mib(pids["server"][0])


def _round_trips(bed: cluster.Bed, seconds: float) -> list[float]:
    """Milliseconds of each answer, while another node has cycle follow cycle."""
    ended = threading.Event()

    def report() -> None:
        node = Node(bed, "busy-1")
        while not ended.wait(_REPORT_EVERY_S):
            node.ask(NodeUsage(at=time.time()))

    busy = threading.Thread(target=report, daemon=True)
    node = Node(bed, "asking-1")
    node.ask()
    busy.start()
    time.sleep(2.0)
    taken = []
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        taken.append(node.ask())
        time.sleep(_ASK_EVERY_S)
    ended.set()
    busy.join()
    return taken


def _row(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    row = {"name": name, "value": round(value, 3), "unit": unit}
    row.update({"peer": None, "peer_value": None, "ratio": None, "goal": None, "met": None})
    return row | more


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench answers", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="pending jobs")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to ask")
    options = parser.parse_args(arguments)
    with cluster.running(nodes=4, cpus=2) as bed:
        load_s = _load(bed, options.jobs)
        before = _cycles(bed)
        taken = _round_trips(bed, options.seconds)
        cycles, spent_s = (after - was for was, after in zip(before, _cycles(bed), strict=True))
        loop_mib, server_mib = _memory(bed)
    with cluster.running(nodes=4, cpus=2) as bed:
        _load(bed, _MEMORY_JOBS)
        small_mib = sum(_memory(bed))
    p99 = percentile(taken, 0.99)
    return [
        _row("load_s", load_s, "s"),
        _row("answer_p50_ms", statistics.median(taken), "ms"),
        _row("answer_p99_ms", p99, "ms", goal=f"value < {_P99_GOAL_MS:g}", met=p99 < _P99_GOAL_MS),
        _row("answer_max_ms", max(taken), "ms"),
        _row("answers", len(taken), "count"),
        _row("cycles", cycles, "count"),
        _row("cycle_mean_s", spent_s / cycles if cycles else 0.0, "s"),
        _row(f"loop_memory_{options.jobs}_jobs_mib", loop_mib, "MiB"),
        _row(f"server_memory_{options.jobs}_jobs_mib", server_mib, "MiB"),
        _row(
            f"controller_memory_{_MEMORY_JOBS}_jobs_mib",
            small_mib,
            "MiB",
            goal=f"value < {_MEMORY_GOAL_MIB:g}",
            met=small_mib < _MEMORY_GOAL_MIB,
        ),
    ]
