"""What being watched costs: 1,000 simulated nodes of eight GPUs behind one controller.

Real controller, server and store; the nodes are simulated by this process, which reports inventory,
attempts and everything that a driver tells of eight GPUs, over HTTP as agents do. An array of
one-GPU tasks fills them. Measured are time and size of a scrape of the cluster's page and of a
node's, and what a cycle takes while nobody scrapes and while somebody does: the cluster's page each
second, and a node's page 67 times a second, as Prometheus would with 1,000 nodes every 15 s.
"""

import argparse
import concurrent.futures
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from agents.link import http_client
from bench import cluster, situations
from bench.options import count
from reconciler.model.observed import devices
from reconciler.model.protocol import agent_messages
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState
from reconciler.model.values.resources import Resources

_GPUS, _GI = 8, 2**30
#: Nodes that report at the same time while they are filled: a cycle answers all that wait for it.
_AT_ONCE = 50
#: How often a report is tried while the loop is too busy to confirm it in time.
_TRIES = 10
_POOL = """\
apiVersion: muster/v1
kind: Cluster
metadata: {{name: main}}
spec: {{nodeSilence: 30m, lease: 1h}}
---
apiVersion: muster/v1
kind: NodePool
metadata: {{name: gpus}}
spec:
  hosts: gpu[0001-{nodes:04d}]
  nodes: {{cpu: 64, memory: 256Gi, gpus: {{count: 8, model: NVIDIA H200}}}}
---
apiVersion: muster/v1
kind: Queue
metadata: {{name: bench}}
spec: {{guaranteed: {{gpu: 8}}}}
"""
_FILL = """\
apiVersion: muster/v1
kind: Job
metadata: {{name: fill}}
spec:
  queue: bench
  pools: [gpus]
  array: {{count: {tasks}}}
  resources: {{cpu: 1, memory: 1Gi, gpu: 1}}
  command: [train]
"""
_SCRAPE_EVERY_S = 15.0
_GOAL_S = 0.5


class Node:
    """One simulated node of eight GPUs: keeps what it was told, and says that it runs."""

    def __init__(
        self,
        bed: cluster.Bed,
        number: int,
        *,
        cpus: int = 64,
        memory_gib: int = 256,
        model: str = "NVIDIA H200",
    ) -> None:
        self.name = f"gpu{number:04d}"
        token = bed.cluster.state / "node-token"
        self.connection = http_client.Connection(
            http_client.ControllerTarget(bed.cluster.url, token)
        )
        self.sequence = 0
        self.have = (0, 0)
        self.attempts: tuple[records.AttemptReport, ...] = ()
        uuids = [f"GPU-{number:04d}-{index}" for index in range(_GPUS)]
        self.inventory = records.Inventory(
            hostname=self.name,
            capacity=Resources(cpus * 1000, memory_gib * _GI, _GPUS * 1000),
            gpus=tuple(
                records.Gpu(index, uuid, model, 141 * _GI, pcie_width_max=16)
                for index, uuid in enumerate(uuids)
            ),
        )
        self.uuids = uuids

    def report(self) -> None:
        """One exchange.

        Raises:
            RuntimeError: it was not answered.
        """
        self.sequence += 1
        now = time.time()
        request = agent_messages.SyncRequest(
            node=self.name,
            boot_id=f"boot-{self.name}",
            incarnation="bench",
            have=self.have,
            sequence=self.sequence,
            attempts=self.attempts,
            inventory=self.inventory if self.sequence == 1 else None,
            usage=records.NodeUsage(now, 50.0, 10 * _GI, 10 * _GI, 100 * _GI, 4.0, 1.0, 2**26),
            gpu_usage=tuple(usage(index, uuid, now) for index, uuid in enumerate(self.uuids)),
        )
        body = msgspec.msgpack.encode(request)
        status, answer = 503, b""
        for _ in range(_TRIES):
            status, answer = self.connection.post(f"/v1/nodes/{self.name}/sync", body, 60.0)
            if status != 503:  # else the loop is busy: agents come again too
                break
            time.sleep(1.0)
        if status != 200:
            raise RuntimeError(f"node {self.name}: {status} {answer[:200]!r}")
        told = msgspec.msgpack.decode(answer, type=agent_messages.SyncResponse)
        if told.set is not None:
            self.have = (told.epoch, told.version)
            self.attempts = tuple(
                records.AttemptReport(one.attempt, AttemptState.RUNNING, started_at=now)
                for one in told.set.assignments
            )


def usage(index: int, uuid: str, now: float) -> devices.GpuUsage:
    """Everything that a driver tells of a GPU."""
    return devices.GpuUsage(
        index=index, uuid=uuid, at=now, utilization_ratio=0.9, memory_copy_ratio=0.4,
        memory_used_bytes=100 * _GI, memory_free_bytes=40 * _GI, memory_reserved_bytes=_GI,
        power_watts=600.5, power_limit_watts=700.0, energy_joules=1e9, temperature_celsius=60.0,
        memory_temperature_celsius=70.0, sm_clock_hertz=1980 * 10**6,
        memory_clock_hertz=3201 * 10**6, clock_event_reasons=(), pcie_generation=5, pcie_width=16,
        pcie_transmitted_bytes_per_s=10**9, pcie_received_bytes_per_s=10**9, pcie_replays=0,
        nvlinks_active=18, nvlink_transmitted_bytes=10**15, nvlink_received_bytes=10**15,
        ecc_volatile=(0, 0), ecc_aggregate=(0, 0), remapped_rows=(0, 0), row_remap_pending=False,
        row_remap_failed=False, task_processes=1,
    )  # fmt: skip


def _fill(bed: cluster.Bed, nodes: list[Node]) -> None:
    """Declare the nodes, fill them, and have every task run."""
    database = bed.cluster.state / "store.db"
    bed.commit({"gpus.yaml": _POOL.format(nodes=len(nodes))}, "many nodes")
    each(nodes, Node.report)
    ready = "SELECT count(*) FROM nodes WHERE state = 'Ready' AND pool = 'gpus'"
    cluster.wait_until(lambda: cluster.one(database, ready) == len(nodes), 300.0)
    tasks = len(nodes) * _GPUS
    bed.commit({"fill.yaml": _FILL.format(tasks=tasks)}, "fill them")
    running = "SELECT count(*) FROM attempts WHERE state = 'Running'"
    ends_at = time.monotonic() + 600.0
    while cluster.one(database, running) != tasks:
        if time.monotonic() > ends_at:
            raise RuntimeError(f"{cluster.one(database, running)} of {tasks} tasks run")
        each(nodes, Node.report)


def each(nodes: list[Node], do: Callable[[Node], None]) -> None:
    """Do something for many nodes, many at a time."""
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(do, nodes))


def _scrape(bed: cluster.Bed, path: str) -> tuple[float, int]:
    """Seconds and bytes of a page."""
    began = time.perf_counter()
    page = b"".join(bed.api.stream(path, {}))
    return time.perf_counter() - began, len(page)


def _cycle_s(bed: cluster.Bed, nodes: list[Node], seconds: float, *, scraped: bool) -> float:
    """The mean time of a cycle, publishing included, while nodes report one after the other."""
    ended = threading.Event()

    def pages() -> Iterator[str]:
        a_second = max(1, round(len(nodes) / _SCRAPE_EVERY_S))
        while True:
            yield "/metrics"
            for node in nodes[:a_second]:
                yield f"/metrics/nodes/{node.name}"

    def watch() -> None:
        pause_s = 1.0 / (1 + len(nodes) / _SCRAPE_EVERY_S)
        for path in pages():
            if ended.wait(pause_s):
                return
            _scrape(bed, path)

    watching = threading.Thread(target=watch, daemon=True)
    if scraped:
        watching.start()
    before = _spent(bed)
    ends_at = time.monotonic() + seconds
    position = 0
    while time.monotonic() < ends_at:
        nodes[position % len(nodes)].report()
        position += 1
        time.sleep(0.06)  # past the time in which input is gathered: one report, one cycle
    ended.set()
    if scraped:
        watching.join()
    count, spent_s = (after - was for was, after in zip(before, _spent(bed), strict=True))
    return spent_s / count


def _spent(bed: cluster.Bed) -> tuple[float, float]:
    """How many cycles there were, and the seconds of all their phases."""
    cycles = spent_s = 0.0
    for line in b"".join(bed.api.stream("/metrics", {})).decode().splitlines():
        name, _, value = line.rpartition(" ")
        if name == "muster_cycles_total":
            cycles = float(value)
        elif name.startswith("muster_cycle_phase_seconds_total{"):
            spent_s += float(value)
    return cycles, spent_s


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench scraping", description=__doc__)
    parser.add_argument("--nodes", type=count, default=1000)
    parser.add_argument("--times", type=count, default=30, help="scrapes of each page")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each state")
    parser.add_argument("--within", type=Path, metavar="FOLDER", help="where to put the cluster")
    options = parser.parse_args(arguments)
    with cluster.running(nodes=1, cpus=2, within=options.within) as bed:
        nodes = [Node(bed, number) for number in range(1, options.nodes + 1)]
        _fill(bed, nodes)
        whole = [_scrape(bed, "/metrics") for _ in range(options.times)]
        names = [nodes[number % len(nodes)].name for number in range(options.times)]
        first, part = ([_scrape(bed, f"/metrics/nodes/{one}") for one in names] for _ in range(2))
        bed.api.data("/v1/prometheus/targets")  # all pages are kept from here on
        alone: list[float] = []
        watched: list[float] = []
        busy: list[float] = []
        for _ in range(2):
            alone.append(_cycle_s(bed, nodes, options.seconds / 2, scraped=False))
            began, before_s = time.monotonic(), _server_cpu_s(bed)
            watched.append(_cycle_s(bed, nodes, options.seconds / 2, scraped=True))
            busy.append((_server_cpu_s(bed) - before_s) / (time.monotonic() - began))
        published_s = _phase_s(bed, "publish")
    row = situations.row
    return [
        row("cluster_page_s", statistics.median(s for s, _ in whole), "s", below=_GOAL_S),
        row("cluster_page_max_s", max(s for s, _ in whole), "s", below=_GOAL_S),
        row("cluster_page_kib", whole[-1][1] / 1024, "KiB"),
        row("node_page_first_s", statistics.median(s for s, _ in first), "s"),
        row("node_page_s", statistics.median(s for s, _ in part), "s"),
        row("node_page_kib", part[-1][1] / 1024, "KiB"),
        row("publish_s", published_s, "s"),
        row("cycle_unscraped_s", statistics.mean(alone), "s"),
        row("cycle_scraped_s", statistics.mean(watched), "s"),
        row("cycle_scraped_to_unscraped", statistics.mean(watched) / statistics.mean(alone), "x"),
        row("server_cores_scraped", statistics.mean(busy), "cores"),
    ]


def _phase_s(bed: cluster.Bed, phase: str) -> float:
    """The mean time of one phase of a cycle."""
    cycles, _ = _spent(bed)
    return _value(bed, f'muster_cycle_phase_seconds_total{{phase="{phase}"}}') / cycles


def _server_cpu_s(bed: cluster.Bed) -> float:
    """The CPU time of the server process up to now."""
    return _value(bed, "muster_api_process_cpu_seconds_total")


def _value(bed: cluster.Bed, series: str) -> float:
    """One value of the cluster's page."""
    text = b"".join(bed.api.stream("/metrics", {})).decode()
    return float(text.split(f"\n{series} ")[1].split("\n")[0])
