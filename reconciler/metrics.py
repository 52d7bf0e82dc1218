"""Every series that Muster exports, in one table, and the two pages that are made of them.

The loop renders the cluster's page after a cycle from plain values, and counts in a ``Counters``
of its own; a node's page is rendered from its record. Nothing here takes a lock or keeps a
global, so a scrape never waits for a decision. Series without a bound (jobs, users) are not
exported; quota and use are separate series, so that any sum over labels means something.
"""

import bisect
import math
import resource
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from reconciler import __version__
from reconciler.model import desired, drift, outcome, records
from reconciler.model.reasons import Reason
from reconciler.model.resources import Resources
from reconciler.model.states import (
    ELEMENT_CODE,
    FINISHED_JOB_STATES,
    AttemptState,
    EndReason,
    JobState,
    NodeState,
)

Page = Literal["cluster", "node"]


class Series(msgspec.Struct, frozen=True):
    """One row of the table. ``unit`` is the base unit, empty for plain numbers."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    unit: str
    labels: tuple[str, ...]
    page: Page
    help: str


_ROWS: tuple[tuple[str, str, str, tuple[str, ...], str, str], ...] = (
    ("muster_build_info", "gauge", "", ("version",), "cluster", "Version of Muster; always 1."),
    ("muster_leader_epoch", "gauge", "", (), "cluster", "Epoch of the controller that leads."),
    ("muster_page_timestamp_seconds", "gauge", "seconds", (), "cluster",
     "When the loop rendered this page, after its last cycle."),
    ("muster_cycles_total", "counter", "", (), "cluster", "Cycles since the controller started."),
    ("muster_cycle_duration_seconds", "histogram", "seconds", (), "cluster",
     "Time from a cycle's input to its acts."),
    ("muster_cycle_phase_seconds_total", "counter", "seconds", ("phase",), "cluster",
     "Time spent in each phase of the cycle."),
    ("muster_cycle_failures_total", "counter", "", (), "cluster",
     "Cycles given up for an unexpected error."),
    ("muster_store_commit_duration_seconds", "histogram", "seconds", (), "cluster",
     "Time to make a cycle durable."),
    ("muster_actions_total", "counter", "", ("action",), "cluster",
     "Decisions carried out: attempts started, stopped and acknowledged."),
    ("muster_attempts_ended_total", "counter", "", ("reason",), "cluster",
     "Attempts that ended, by reason."),
    ("muster_evictions_total", "counter", "", ("reason",), "cluster",
     "Attempts asked to stop by Muster, by reason."),
    ("muster_jobs_finished_total", "counter", "", ("state",), "cluster",
     "Jobs that finished, by final state."),
    ("muster_job_wait_seconds", "histogram", "seconds", (), "cluster",
     "Time from submission of a job to its first start."),
    ("muster_sync_revision_info", "gauge", "", ("attempted", "structure", "jobs"), "cluster",
     "Revisions tried last and in force; always 1."),
    ("muster_sync_state", "gauge", "", ("state",), "cluster",
     "How the repository stands: 1 for exactly one state."),
    ("muster_sync_last_success_timestamp_seconds", "gauge", "seconds", (), "cluster",
     "When the repository was last read."),
    ("muster_sync_problems", "gauge", "", ("severity",), "cluster",
     "Problems in what is written."),
    ("muster_syncs_total", "counter", "", ("result",), "cluster",
     "Looks at the repository, by result."),
    ("muster_jobs", "gauge", "", ("queue", "state"), "cluster", "Jobs by queue and state."),
    ("muster_pending_jobs", "gauge", "", ("queue", "reason"), "cluster",
     "Pending jobs by their first reason."),
    ("muster_nodes", "gauge", "", ("pool", "state"), "cluster", "Nodes by pool and state."),
    ("muster_agent_last_report_timestamp_seconds", "gauge", "seconds", ("node", "pool"),
     "cluster", "When a node last reported."),
    ("muster_pool_capacity_cpus", "gauge", "cpus", ("pool",), "cluster", "CPUs of a pool."),
    ("muster_pool_capacity_memory_bytes", "gauge", "bytes", ("pool",), "cluster",
     "Memory of a pool."),
    ("muster_pool_gpus", "gauge", "gpus", ("pool", "state"), "cluster",
     "GPUs of a pool: allocated, free, or unavailable with their node."),
    ("muster_pool_allocated_cpus", "gauge", "cpus", ("pool",), "cluster",
     "CPUs given to attempts."),
    ("muster_pool_allocated_memory_bytes", "gauge", "bytes", ("pool",), "cluster",
     "Memory given to attempts."),
    ("muster_queue_allocated_cpus", "gauge", "cpus", ("queue",), "cluster",
     "CPUs given to a queue, children included."),
    ("muster_queue_allocated_memory_bytes", "gauge", "bytes", ("queue",), "cluster",
     "Memory given to a queue, children included."),
    ("muster_queue_allocated_gpus", "gauge", "gpus", ("queue",), "cluster",
     "GPUs given to a queue, children included."),
    ("muster_queue_requested_cpus", "gauge", "cpus", ("queue",), "cluster",
     "CPUs that pending work of a queue asks for."),
    ("muster_queue_requested_memory_bytes", "gauge", "bytes", ("queue",), "cluster",
     "Memory that pending work of a queue asks for."),
    ("muster_queue_requested_gpus", "gauge", "gpus", ("queue",), "cluster",
     "GPUs that pending work of a queue asks for."),
    ("muster_queue_guaranteed_cpus", "gauge", "cpus", ("queue",), "cluster",
     "CPUs guaranteed to a queue."),
    ("muster_queue_guaranteed_memory_bytes", "gauge", "bytes", ("queue",), "cluster",
     "Memory guaranteed to a queue."),
    ("muster_queue_guaranteed_gpus", "gauge", "gpus", ("queue",), "cluster",
     "GPUs guaranteed to a queue."),
    ("muster_queue_limit_cpus", "gauge", "cpus", ("queue",), "cluster",
     "CPUs that a queue may have; +Inf without a limit."),
    ("muster_queue_limit_memory_bytes", "gauge", "bytes", ("queue",), "cluster",
     "Memory that a queue may have; +Inf without a limit."),
    ("muster_queue_limit_gpus", "gauge", "gpus", ("queue",), "cluster",
     "GPUs that a queue may have; +Inf without a limit."),
    ("muster_drift", "gauge", "", ("kind", "severity"), "cluster",
     "Differences between git and what is."),
    ("muster_process_cpu_seconds_total", "counter", "seconds", (), "cluster",
     "CPU time of the controller's loop."),
    ("muster_process_resident_memory_bytes", "gauge", "bytes", (), "cluster",
     "Memory of the controller's loop."),
    ("muster_node_state", "gauge", "", ("node", "pool", "state"), "node",
     "State of the node: 1 for exactly one."),
    ("muster_node_last_report_timestamp_seconds", "gauge", "seconds", ("node", "pool"), "node",
     "When the node last reported."),
    ("muster_node_attempts", "gauge", "", ("node", "pool", "state"), "node",
     "Attempts on the node that have not ended."),
    ("muster_node_capacity_cpus", "gauge", "cpus", ("node", "pool"), "node", "CPUs."),
    ("muster_node_capacity_memory_bytes", "gauge", "bytes", ("node", "pool"), "node", "Memory."),
    ("muster_node_allocated_cpus", "gauge", "cpus", ("node", "pool"), "node",
     "CPUs given to attempts."),
    ("muster_node_allocated_memory_bytes", "gauge", "bytes", ("node", "pool"), "node",
     "Memory given to attempts."),
    ("muster_node_gpus", "gauge", "gpus", ("node", "pool", "model"), "node",
     "GPUs that the agent sees."),
    ("muster_node_gpu_allocated", "gauge", "", ("node", "pool", "gpu"), "node",
     "Whether a GPU is given to an attempt: 1 or 0."),
    ("muster_node_cpu_used_ratio", "gauge", "ratio", ("node", "pool"), "node",
     "Part of the CPUs that is busy."),
    ("muster_node_memory_used_bytes", "gauge", "bytes", ("node", "pool"), "node",
     "Memory in use."),
    ("muster_node_disk_used_bytes", "gauge", "bytes", ("node", "pool"), "node",
     "Space in use on the disk that tasks write to."),
    ("muster_node_disk_size_bytes", "gauge", "bytes", ("node", "pool"), "node",
     "Size of the disk that tasks write to."),
    ("muster_node_load1", "gauge", "", ("node", "pool"), "node", "Load over one minute."),
    ("muster_agent_cpu_seconds_total", "counter", "seconds", ("node", "pool"), "node",
     "CPU time of the agent."),
    ("muster_agent_resident_memory_bytes", "gauge", "bytes", ("node", "pool"), "node",
     "Memory of the agent."),
)  # fmt: skip

#: Name to definition; no other series is ever exported.
TABLE: dict[str, Series] = {
    row[0]: msgspec.convert(dict(zip(Series.__struct_fields__, row, strict=True)), Series)
    for row in _ROWS
}

#: Upper bounds of the buckets of durations, in seconds.
DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WAIT_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
SYNC_STATES = ("Synced", "OutOfSync", "Unknown")
ACTIONS: dict[type[outcome.Action], str] = {
    outcome.StartAttempt: "start",
    outcome.StopAttempt: "stop",
    outcome.Acknowledge: "acknowledge",
}
#: Ends of queues' series, in the order of ``resources.RESOURCE_NAMES``, and what to divide by.
QUEUE_UNITS = (("cpus", 1000), ("memory_bytes", 1), ("gpus", 1000))


class Histogram:
    """Counts observations into buckets."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class _Job(msgspec.Struct, frozen=True):
    """What is remembered of a job to tell a change of it."""

    queue: str
    state: JobState
    started: bool


class Counters:
    """What adds up over the life of a loop. Made by the loop, and passed where it is needed."""

    def __init__(self) -> None:
        self.cycles = 0
        self.cycle_failures = 0
        self.cycle_duration = Histogram(DURATION_BUCKETS)
        self.commit_duration = Histogram(DURATION_BUCKETS)
        self.job_wait = Histogram(WAIT_BUCKETS)
        self.phase_s: dict[str, float] = {"decide": 0.0, "commit": 0.0}
        self.actions: Counter[str] = Counter(dict.fromkeys(ACTIONS.values(), 0))
        self.ended: Counter[str] = Counter({reason.value: 0 for reason in EndReason})
        self.evictions: Counter[str] = Counter({reason.value: 0 for reason in EndReason})
        self.finished: Counter[str] = Counter({state.value: 0 for state in FINISHED_JOB_STATES})
        self.syncs: Counter[str] = Counter({"success": 0, "failure": 0})
        self.queues: tuple[outcome.QueueUsage, ...] = ()
        self._jobs: dict[str, _Job] | None = None
        self._job_counts: Counter[tuple[str, str]] = Counter()
        self._ended_open: set[str] = set()

    def failed(self) -> None:
        """Count a cycle that was given up."""
        self.cycle_failures += 1

    def sync(self, *, ok: bool) -> None:
        """Count a look at the repository."""
        self.syncs["success" if ok else "failure"] += 1

    def cycle(self, decided: outcome.Outcome, *, decide_s: float, commit_s: float) -> None:
        """Count a cycle that was carried out."""
        self.cycles += 1
        self.cycle_duration.observe(decide_s + commit_s)
        self.commit_duration.observe(commit_s)
        self.phase_s["decide"] += decide_s
        self.phase_s["commit"] += commit_s
        self.queues = decided.queues
        stopped = set()
        for action in decided.actions:
            self.actions[ACTIONS[type(action)]] += 1
            if isinstance(action, outcome.StopAttempt):
                stopped.add(action.attempt)
        for attempt in decided.attempts:
            if attempt.stop is not None and attempt.id in stopped:
                self.evictions[attempt.stop.reason.value] += 1
            if attempt.state is AttemptState.ENDED:
                self._count_end(attempt)
        for job in decided.jobs:
            self._count_job(job)

    def _count_end(self, attempt: records.AttemptRecord) -> None:
        # the record comes once more when the whole try is concluded
        if attempt.id not in self._ended_open:
            self.ended[(attempt.end_reason or EndReason.LOST).value] += 1
        if attempt.concluded:
            self._ended_open.discard(attempt.id)
        else:
            self._ended_open.add(attempt.id)

    def _count_job(self, job: records.JobRecord) -> None:
        if self._jobs is None:
            return  # all are counted when a page is first rendered
        before = self._jobs.get(job.name)
        now = _Job(job.spec.queue, job.state, started=job.started_at is not None)
        self._jobs[job.name] = now
        if before is not None:
            self._job_counts[before.queue, before.state.value] -= 1
        self._job_counts[now.queue, now.state.value] += 1
        if job.finished and (before is None or before.state is not job.state):
            self.finished[job.state.value] += 1
        if job.started_at is not None and not (before is not None and before.started):
            self.job_wait.observe(max(0.0, job.started_at - job.submitted_at))

    def job_counts(self, jobs: Mapping[str, records.JobRecord]) -> Mapping[tuple[str, str], int]:
        """(queue, state) to number of jobs; ``jobs`` are gone through the first time only."""
        if self._jobs is None:
            self._jobs = {
                job.name: _Job(job.spec.queue, job.state, started=job.started_at is not None)
                for job in jobs.values()
            }
            self._job_counts = Counter((job.queue, job.state.value) for job in self._jobs.values())
        return self._job_counts


class ClusterState(Protocol):
    """What the loop remembers, as far as it is shown."""

    @property
    def jobs(self) -> Mapping[str, records.JobRecord]:
        """Newest runs by name."""

    @property
    def active(self) -> AbstractSet[str]:
        """Names of those that are not finished."""

    @property
    def attempts(self) -> Mapping[str, records.AttemptRecord]:
        """Attempts of tries that are not concluded."""

    @property
    def nodes(self) -> Mapping[str, records.NodeRecord]:
        """Nodes by name."""

    @property
    def reasons(self) -> Mapping[str, tuple[Reason, ...]]:
        """Why work waits."""

    @property
    def drift(self) -> Sequence[drift.Drift]:
        """Differences between git and what is."""


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
    _put_jobs(page, counters, memory, wanted)
    _put_pools(page, memory, wanted)
    _put_queues(page, counters, memory)
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
        ("muster_cycle_phase_seconds_total", counters.phase_s),
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


def _put_jobs(
    page: _Text, counters: Counters, memory: ClusterState, wanted: desired.Desired
) -> None:
    counts = counters.job_counts(memory.jobs)
    queues = {queue for queue, _ in counts} | wanted.structure.queues.keys()
    for queue in sorted(queues):
        for state in JobState:
            page.put("muster_jobs", counts.get((queue, state.value), 0), queue, state.value)
    first: Counter[tuple[str, str]] = Counter()
    for name in memory.active:
        job = memory.jobs[name]
        if job.state is JobState.PENDING and job.reason_key:
            why = memory.reasons.get(job.reason_key)
            if why:
                first[job.spec.queue, why[0].code.value] += 1
    for (queue, code), count in sorted(first.items()):
        page.put("muster_pending_jobs", count, queue, code)


def _put_pools(page: _Text, memory: ClusterState, wanted: desired.Desired) -> None:
    on_node = allocated_by_node(memory.attempts.values())
    states: Counter[tuple[str, str]] = Counter()
    capacity: dict[str, Resources] = dict.fromkeys(wanted.structure.pools, Resources())
    allocated = dict(capacity)
    unavailable: Counter[str] = Counter()
    for node in memory.nodes.values():
        has, given = node.inventory.capacity, on_node.get(node.name, Resources())
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


def _put_queues(page: _Text, counters: Counters, memory: ClusterState) -> None:
    requested = requested_by_queue(memory)
    for usage in counters.queues:
        wants = requested.get(usage.name, Resources()).as_vector()
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


def allocated_by_node(attempts: Iterable[records.AttemptRecord]) -> dict[str, Resources]:
    """What attempts that have not ended hold, by node."""
    totals: dict[str, list[int]] = {}
    for attempt in attempts:
        if attempt.state is not AttemptState.ENDED:
            held = attempt.resources
            total = totals.setdefault(attempt.node, [0, 0, 0])
            total[0] += held.cpu_milli
            total[1] += held.memory_bytes
            total[2] += held.gpu_milli
    return {node: Resources(*total) for node, total in totals.items()}


def requested_by_queue(memory: ClusterState) -> dict[str, Resources]:
    """What elements that are pending ask for, by queue; not that of parents."""
    requested: dict[str, Resources] = {}
    pending = ELEMENT_CODE[JobState.PENDING]
    for name in memory.active:
        job = memory.jobs[name]
        waiting = job.elements.count(pending)
        if waiting and job.state is not JobState.HELD:
            queue = job.spec.queue
            for group in job.spec.groups:
                wants = group.resources.times(group.count * waiting)
                requested[queue] = requested.get(queue, Resources()) + wants
    return requested


def render_node(node: records.NodeRecord, attempts: Iterable[records.AttemptRecord]) -> bytes:
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
    given = allocated_by_node(alive).get(node.name, Resources())
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
