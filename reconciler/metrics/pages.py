"""The cluster's page and a node's page, in Prometheus' text format."""

import math
import resource
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from reconciler import __version__
from reconciler.metrics import gpupages
from reconciler.metrics.counting import ClusterState, Counters, Histogram, Sums
from reconciler.metrics.table import TABLE, Page
from reconciler.model import desired, devices, records
from reconciler.model.resources import Resources
from reconciler.model.states import AttemptState, JobState, NodeState

SYNC_STATES = ("Synced", "OutOfSync", "Unknown")
#: Ends of queues' series, in the order of ``resources.RESOURCE_NAMES``, and what to divide by.
QUEUE_UNITS = (("cpus", 1000), ("memory_bytes", 1), ("gpus", 1000))


class _Text:
    """A page as it grows: series in the order of the table, samples in the order put."""

    def __init__(self, page: Page) -> None:
        self._samples: dict[str, list[str]] = {
            name: [] for name, series in TABLE.items() if series.page == page
        }

    def put(self, name: str, value: float, *labels: str) -> None:
        """A sample, with the values of the series' labels in order."""
        series = TABLE[name]
        shown = _labels(zip(series.labels, labels, strict=True))
        self._samples[name].append(f"{name}{shown} {_number(value)}")

    def put_histogram(self, name: str, histogram: Histogram) -> None:
        """A histogram's buckets, sum and count."""
        lines = self._samples[name]
        seen = 0
        for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
            seen += count
            lines.append(f'{name}_bucket{{le="{_number(bound)}"}} {seen}')
        lines.append(f"{name}_sum {_number(histogram.total)}")
        lines.append(f"{name}_count {seen}")

    def render(self) -> bytes:
        """The page in Prometheus' text format."""
        lines = []
        for name, samples in self._samples.items():
            if samples:
                series = TABLE[name]
                lines += [f"# HELP {name} {series.help}", f"# TYPE {name} {series.kind}", *samples]
        return ("\n".join(lines) + "\n").encode()


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    parts = []
    for name, value in pairs:
        safe = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
        parts.append(f'{name}="{safe}"')
    return "{" + ",".join(parts) + "}" if parts else ""


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def render_cluster(
    *,
    counters: Counters,
    memory: ClusterState,
    wanted: desired.Desired,
    epoch: int,
    now: float,
) -> bytes:
    """The cluster's page. What changes only with cycles is exact; it costs no more than they."""
    page = _Text("cluster")
    page.put("muster_build_info", 1, __version__)
    page.put("muster_leader_epoch", epoch)
    page.put("muster_page_timestamp_seconds", now)
    _put_counters(page, counters)
    _put_sync(page, wanted.status)
    sums = counters.sums(memory)
    _put_jobs(page, sums, memory, wanted)
    _put_pools(page, sums, memory, wanted)
    _put_queues(page, counters, sums)
    found = Counter((one.kind, one.severity) for one in memory.drift)
    for (kind, severity), count in sorted(found.items()):
        page.put("muster_drift", count, kind, severity)
    page.put("muster_process_cpu_seconds_total", time.process_time())
    page.put("muster_process_resident_memory_bytes", _resident_bytes())
    return page.render()


def _put_counters(page: _Text, counters: Counters) -> None:
    page.put("muster_cycles_total", counters.cycles)
    page.put("muster_cycle_failures_total", counters.cycle_failures)
    page.put_histogram("muster_cycle_duration_seconds", counters.cycle_duration)
    page.put_histogram("muster_store_commit_duration_seconds", counters.commit_duration)
    page.put_histogram("muster_job_wait_seconds", counters.job_wait)
    counted: tuple[tuple[str, Mapping[str, float]], ...] = (
        ("muster_cycle_phase_seconds_total", counters.phases.seconds),
        ("muster_actions_total", counters.actions),
        ("muster_attempts_ended_total", counters.ended),
        ("muster_evictions_total", counters.evictions),
        ("muster_jobs_finished_total", counters.finished),
        ("muster_syncs_total", counters.syncs),
    )
    for name, values in counted:
        for label, value in sorted(values.items()):
            page.put(name, value, label)


def _put_sync(page: _Text, status: desired.SyncStatus) -> None:
    page.put(
        "muster_sync_revision_info",
        1,
        status.attempted_revision or "",
        status.structure_revision or "",
        status.jobs_revision or "",
    )
    for state in SYNC_STATES:
        page.put("muster_sync_state", int(status.sync == state), state)
    if status.checked_at is not None and status.sync != "Unknown":
        page.put("muster_sync_last_success_timestamp_seconds", status.checked_at)
    problems = Counter(problem.severity for problem in status.problems)
    for severity in ("error", "warning"):
        page.put("muster_sync_problems", problems[severity], severity)


def _put_jobs(page: _Text, sums: Sums, memory: ClusterState, wanted: desired.Desired) -> None:
    counts = sums.by_state
    queues = {queue for queue, _ in counts} | wanted.structure.queues.keys()
    for queue in sorted(queues):
        for state in JobState:
            page.put("muster_jobs", counts.get((queue, state.value), 0), queue, state.value)
    first: Counter[tuple[str, str]] = Counter()
    for (queue, key), count in sums.by_reason.items():
        why = memory.reasons.get(key)
        if why:
            first[queue, why[0].code.value] += count
    for (queue, code), count in sorted(first.items()):
        page.put("muster_pending_jobs", count, queue, code)


def _put_pools(page: _Text, sums: Sums, memory: ClusterState, wanted: desired.Desired) -> None:
    states: Counter[tuple[str, str]] = Counter()
    capacity: dict[str, Resources] = dict.fromkeys(wanted.structure.pools, Resources())
    allocated = dict(capacity)
    unavailable: Counter[str] = Counter()
    for node in memory.nodes.values():
        has, given = node.inventory.capacity, Resources(*sums.held.get(node.name, ()))
        states[node.pool, node.state.value] += 1
        capacity[node.pool] = capacity.get(node.pool, Resources()) + has
        allocated[node.pool] = allocated.get(node.pool, Resources()) + given
        if node.state is not NodeState.READY:
            unavailable[node.pool] += max(0, has.gpu_milli - given.gpu_milli)
        if node.last_report_at:
            page.put(
                "muster_agent_last_report_timestamp_seconds",
                node.last_report_at,
                node.name,
                node.pool,
            )
    for pool in sorted(capacity):
        for state in NodeState:
            page.put("muster_nodes", states[pool, state.value], pool, state.value)
        has, given = capacity[pool], allocated[pool]
        page.put("muster_pool_capacity_cpus", has.cpu_milli / 1000, pool)
        page.put("muster_pool_capacity_memory_bytes", has.memory_bytes, pool)
        page.put("muster_pool_allocated_cpus", given.cpu_milli / 1000, pool)
        page.put("muster_pool_allocated_memory_bytes", given.memory_bytes, pool)
        away = unavailable[pool]
        free = max(0, has.gpu_milli - given.gpu_milli - away)
        page.put("muster_pool_gpus", given.gpu_milli / 1000, pool, "allocated")
        page.put("muster_pool_gpus", free / 1000, pool, "free")
        page.put("muster_pool_gpus", away / 1000, pool, "unavailable")


def _put_queues(page: _Text, counters: Counters, sums: Sums) -> None:
    for usage in counters.queues:
        wants = sums.wanted.get(usage.name, (0, 0, 0))
        for position, (unit, scale) in enumerate(QUEUE_UNITS):
            limit = usage.limit[position]
            values = {
                "allocated": usage.allocated[position],
                "requested": wants[position],
                "guaranteed": usage.guaranteed[position],
                "limit": math.inf if limit is None else limit,
            }
            for what, value in values.items():
                if value is not None:
                    page.put(f"muster_queue_{what}_{unit}", value / scale, usage.name)


def render_node(
    node: records.NodeRecord,
    attempts: Iterable[records.AttemptRecord],
    gpu_usage: Iterable[devices.GpuUsage] = (),
) -> bytes:
    """One node's page, of what it reported last and the attempts that are there."""
    alive = [attempt for attempt in attempts if attempt.state is not AttemptState.ENDED]
    who = (node.name, node.pool)
    page = _Text("node")
    for state in NodeState:
        page.put("muster_node_state", int(node.state is state), *who, state.value)
    if node.last_report_at:
        page.put("muster_node_last_report_timestamp_seconds", node.last_report_at, *who)
    states = Counter(attempt.state for attempt in alive)
    for attempt_state in AttemptState:
        if attempt_state is not AttemptState.ENDED:
            page.put("muster_node_attempts", states[attempt_state], *who, attempt_state.value)
    has = node.inventory.capacity
    given = sum((attempt.resources for attempt in alive), start=Resources())
    page.put("muster_node_capacity_cpus", has.cpu_milli / 1000, *who)
    page.put("muster_node_capacity_memory_bytes", has.memory_bytes, *who)
    page.put("muster_node_allocated_cpus", given.cpu_milli / 1000, *who)
    page.put("muster_node_allocated_memory_bytes", given.memory_bytes, *who)
    for model, count in sorted(Counter(gpu.model for gpu in node.inventory.gpus).items()):
        page.put("muster_node_gpus", count, *who, model)
    held = {device for attempt in alive for device in attempt.devices}
    for gpu in node.inventory.gpus:
        page.put("muster_node_gpu_allocated", int(gpu.index in held), *who, str(gpu.index))
    _put_usage(page, node.usage, who)
    gpupages.put(page.put, node.inventory, gpu_usage, who)
    return page.render()


def _put_usage(page: _Text, usage: records.NodeUsage, who: tuple[str, str]) -> None:
    if not usage.at:
        return
    page.put("muster_node_cpu_used_ratio", usage.cpu_percent / 100, *who)
    page.put("muster_node_memory_used_bytes", usage.memory_used_bytes, *who)
    page.put("muster_node_disk_used_bytes", usage.disk_used_bytes, *who)
    page.put("muster_node_disk_size_bytes", usage.disk_total_bytes, *who)
    page.put("muster_node_load1", usage.load_1m, *who)
    page.put("muster_agent_cpu_seconds_total", usage.agent_cpu_s, *who)
    page.put("muster_agent_resident_memory_bytes", usage.agent_memory_bytes, *who)


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * resource.getpagesize()
