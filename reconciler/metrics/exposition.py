"""The cluster's page, as OpenMetrics; ``model.metrics.node_series`` renders nodes'
pages.
"""

import math
import os
import resource
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from reconciler import __version__
from reconciler.metrics.cluster_totals import Aggregates
from reconciler.metrics.counters import WAIT_BUCKETS, ClusterState, Counters, Histogram
from reconciler.metrics.metric_page import MetricPage
from reconciler.model import desired
from reconciler.model.policy.drift_kinds import HEALING_VERBS
from reconciler.model.state import outcome, records
from reconciler.model.state.instance_records import InstanceState
from reconciler.model.state.pending_reasons import never_starts
from reconciler.model.state.states import JobState, NodeState
from reconciler.model.values.resources import Resources

SYNC_STATES = ("Synced", "OutOfSync", "Unknown")
#: Ends of queues' series, in the order of ``resources.RESOURCE_NAMES``, and what to divide by.
QUEUE_UNITS = (("cpus", 1000), ("memory_bytes", 1), ("gpus", 1000))

HOUR_S = 3600.0


class StateDisk(msgspec.Struct, frozen=True):
    """The disk of the controller's state folder, and the size of the store and of its log."""

    free_bytes: int
    size_bytes: int
    store_bytes: int
    log_bytes: int


def disk_of(folder: Path, store: Path | None = None, log: Path | None = None) -> StateDisk | None:
    """Return the state of the disk, with a store and its log on it; None if it can't be read."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    block = disk.f_frsize
    log_bytes = 0 if log is None else _size(log)
    store_bytes = 0 if store is None else _size(store) + log_bytes
    return StateDisk(disk.f_bavail * block, disk.f_blocks * block, store_bytes, log_bytes)


def _size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it can't be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def render_cluster(
    *,
    counters: Counters,
    memory: ClusterState,
    wanted: desired.Desired,
    epoch: int,
    now: float,
    disk: StateDisk | None = None,
    told: Mapping[tuple[str, str], int] = MappingProxyType({}),
) -> bytes:
    """Render the cluster's page, as OpenMetrics without the end mark. Values that change only with
    cycles are exact."""
    page = MetricPage("cluster")
    page.put("muster_build_info", 1, __version__)
    page.put("muster_leader_epoch", epoch)
    page.put("muster_page_timestamp_seconds", now)
    _put_counters(page, counters, wanted)
    _put_sync(page, counters, wanted.status)
    sums = counters.sums(memory, now)
    _put_jobs(page, sums, memory, wanted)
    _put_pools(page, sums, memory, wanted)
    _put_queues(page, counters.queues, sums, counters.starved(memory, now))
    lacking = counters.starved_in_pools(memory, now)
    for (queue, pool), lacks in lacking.items():
        page.put("muster_queue_pool_starved_gpus", lacks / 1000, queue, pool)
    _put_suspended(page, sums, wanted, memory.overrides)
    page.put("muster_approvals_waiting", sum(bool(one.digest) for one in wanted.status.held))
    for (channel, result), count in sorted(told.items()):
        page.put("muster_notifications_total", count, channel, result)
    _put_quotas(page, memory, wanted, now)
    for node, count in sorted(counters.failures.items()):
        record = memory.nodes.get(node)
        if record is not None:
            page.put("muster_node_failed_attempts_total", count, node, record.pool)
    for whose, gpu_s in sorted(counters.gpu_seconds.items()):
        page.put("muster_gpu_allocated_seconds_total", gpu_s, *whose)
    told_of = (one for one in memory.drift if one.action != "ignore")
    found = Counter((one.kind, one.severity, one.pool) for one in told_of)
    for of, count in sorted(found.items()):
        page.put("muster_drift", count, *of)
    _put_remedies(page, counters, memory)
    if disk is not None:
        page.put("muster_state_disk_free_bytes", disk.free_bytes)
        page.put("muster_state_disk_size_bytes", disk.size_bytes)
        page.put("muster_store_size_bytes", disk.store_bytes)
        page.put("muster_store_log_size_bytes", disk.log_bytes)
    page.put("muster_process_start_timestamp_seconds", counters.began_at)
    page.put("muster_process_cpu_seconds_total", time.process_time())
    page.put("muster_process_resident_memory_bytes", resident_bytes())
    return page.render()


def _put_remedies(page: MetricPage, counters: Counters, memory: ClusterState) -> None:
    given_up = Counter(one.kind for one in memory.drift if one.given_up)
    for kind, count in sorted(given_up.items()):
        page.put("muster_drift_given_up", count, kind)
    for (verb, result), count in sorted(counters.remedied.items()):
        page.put("muster_remediations_total", count, verb, result)
    under_way = Counter(one.verb for one in memory.remedies if one.open)
    for verb in sorted(HEALING_VERBS):
        page.put("muster_remediations_open", under_way[verb], verb)


def _put_counters(page: MetricPage, counters: Counters, wanted: desired.Desired) -> None:
    page.put("muster_cycles_total", counters.cycles)
    page.put_histogram("muster_cycle_duration_seconds", counters.cycle_duration)
    page.put_histogram("muster_store_commit_duration_seconds", counters.commit_duration)
    page.put_histogram("muster_job_run_seconds", counters.job_run)
    # with zeros, so that the first job that waited is an increase too
    waits = dict.fromkeys(wanted.structure.queues, Histogram(WAIT_BUCKETS)) | counters.job_wait
    for queue, waited in sorted(waits.items()):
        page.put_histogram("muster_job_wait_seconds", waited, queue)
    page.put_histogram("muster_sync_duration_seconds", counters.sync_duration)
    page.put_histogram("muster_sync_lag_seconds", counters.sync_lag)
    counted: tuple[tuple[str, Mapping[str, float]], ...] = (
        ("muster_cycle_phase_seconds_total", counters.phases.seconds),
        ("muster_actions_total", counters.actions),
        ("muster_attempts_ended_total", counters.ended),
        ("muster_evictions_total", counters.evictions),
        ("muster_jobs_finished_total", counters.finished),
        ("muster_syncs_total", counters.looks),
        ("muster_defects_total", counters.defects),
    )
    for name, values in counted:
        for label, value in sorted(values.items()):
            page.put(name, value, label)


def _put_sync(page: MetricPage, counters: Counters, status: desired.SyncStatus) -> None:
    page.put(
        "muster_sync_revision_info",
        1,
        status.attempted_revision or "",
        status.structure_revision or "",
        status.jobs_revision or "",
    )
    for state in SYNC_STATES:
        page.put("muster_sync_state", int(status.sync == state), state)
    read_at = counters.read_at
    if read_at is None and status.sync != "Unknown":
        read_at = status.checked_at
    for name, at in (
        ("muster_sync_last_success_timestamp_seconds", read_at),
        ("muster_sync_in_force_timestamp_seconds", counters.in_force_at),
        ("muster_sync_commit_timestamp_seconds", counters.committed_at),
        ("muster_sync_unread_timestamp_seconds", status.unread_since),
    ):
        if at is not None:
            page.put(name, at)
    page.put("muster_notes_restored_total", counters.notes_lost)
    page.put("muster_lead_records_restored_total", counters.lead_records_lost)
    problems = Counter(problem.severity for problem in status.problems)
    for severity in ("error", "warning"):
        page.put("muster_sync_problems", problems[severity], severity)


def _put_jobs(
    page: MetricPage, sums: Aggregates, memory: ClusterState, wanted: desired.Desired
) -> None:
    counts = sums.by_state
    queues = {queue for queue, _ in counts} | wanted.structure.queues.keys()
    for queue in sorted(queues):
        for state in JobState:
            page.put("muster_jobs", counts.get((queue, state.value), 0), queue, state.value)
    first: Counter[tuple[str, str]] = Counter()
    gpus: Counter[tuple[str, str]] = Counter()
    for (queue, key), count in sums.by_reason.items():
        why = memory.reasons.get(key)
        if why:
            first[queue, why[0].code.value] += count
            gpus[queue, why[0].code.value] += sums.gpus_by_reason[queue, key]
    for (queue, code), count in sorted(first.items()):
        page.put("muster_pending_jobs", count, queue, code)
        page.put("muster_pending_gpus", gpus[queue, code] / 1000, queue, code)
    for (queue, gang), since in sorted(_oldest(sums, memory).items()):
        page.put("muster_oldest_pending_timestamp_seconds", since, queue, str(gang).lower())


def _oldest(sums: Aggregates, memory: ClusterState) -> dict[tuple[str, bool], float]:
    """Return (queue, is a gang) to the earliest submission of the jobs that waiting can start."""
    found: dict[tuple[str, bool], float] = {}
    for (queue, gang, key), waiting in sums.oldest.items():
        at = waiting.first()
        if at is not None and not never_starts(memory.reasons.get(key, ())):
            found[queue, gang] = min(at, found.get((queue, gang), at))
    return found


def _put_pools(
    page: MetricPage, sums: Aggregates, memory: ClusterState, wanted: desired.Desired
) -> None:
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
    for name, provision in sorted(memory.provisions.items()):
        machines = Counter(one.state for one in provision.instances.values())
        for instance_state in InstanceState:
            page.put("muster_pool_instances", machines[instance_state], name, instance_state.value)
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


def _put_queues(
    page: MetricPage,
    queues: Iterable[outcome.QueueUsage],
    sums: Aggregates,
    starved: Mapping[str, tuple[int, int, int]],
) -> None:
    for usage in queues:
        wants = sums.wanted.get(usage.name, (0, 0, 0))
        page.put("muster_queue_weight_ratio", usage.weight, usage.name)
        for position, (unit, scale) in enumerate(QUEUE_UNITS):
            limit = usage.limit[position]
            has, due = usage.allocated[position], usage.guaranteed[position]
            values = {
                "allocated": has,
                "requested": wants[position],
                "guaranteed": due,
                "limit": math.inf if limit is None else limit,
                "fair_share": usage.fair_share[position],
                "demand": usage.demand[position],
                "borrowed": max(0, has - (due or 0)),
                "starved": None if due is None else starved[usage.name][position],
            }
            for what, value in values.items():
                if value is not None:
                    page.put(f"muster_queue_{what}_{unit}", value / scale, usage.name)
        for one in usage.pools:
            if one.named:
                _put_pool_of_queue(page, usage.name, one)


def _put_pool_of_queue(page: MetricPage, queue: str, of: outcome.PoolUsage) -> None:
    """Add the GPUs of a pool that the queue itself names: as many series as git has such
    entries.
    """
    limit = of.limit[2]
    values = {
        "allocated": of.allocated[2],
        "guaranteed": of.guaranteed[2],
        "limit": math.inf if limit is None else limit,
        "fair_share": of.fair_share[2],
        "demand": of.demand[2],
    }
    for what, value in values.items():
        if value is not None:
            page.put(f"muster_queue_pool_{what}_gpus", value / 1000, queue, of.pool)


def _put_suspended(
    page: MetricPage,
    sums: Aggregates,
    wanted: desired.Desired,
    made: Iterable[records.Override],
) -> None:
    """Add suspensions in git and by overrides; a subject of both counts once."""
    structure = wanted.structure
    labels = {f"Queue/{name}" for name, queue in structure.queues.items() if queue.suspend}
    if structure.settings.suspend:
        labels.add("Cluster")
    since = dict(wanted.status.suspended)
    for one in made:
        if one.verb == "suspend":
            label = records.suspended_label(one.subject)
            labels.add(label)
            since[label] = min(one.made_at, since.get(label, one.made_at))
    kinds = Counter(label.split("/", 1)[0] for label in labels)
    page.put("muster_suspended_objects", kinds["Cluster"], "Cluster")
    page.put("muster_suspended_objects", kinds["Queue"], "Queue")
    held = sum(n for (_, state), n in sums.by_state.items() if state == JobState.HELD.value)
    page.put("muster_suspended_objects", held, "Job")
    oldest: dict[str, float] = {}
    for label, at in since.items():
        kind = label.split("/", 1)[0]
        oldest[kind] = min(at, oldest.get(kind, at))
    for kind, at in sorted(oldest.items()):
        page.put("muster_suspended_since_timestamp_seconds", at, kind)


def _put_quotas(
    page: MetricPage, memory: ClusterState, wanted: desired.Desired, now: float
) -> None:
    """Add budgets and their usage, over at most as many hours as the window has."""
    for quota in wanted.structure.quotas.values():
        if quota.budget_gpu_s is None:
            continue
        hours = memory.scheduler_state.spent.get(quota.name, {})
        oldest = (now - quota.window_s) / HOUR_S - 1
        spent_s = sum(gpu_s for hour, gpu_s in hours.items() if hour >= oldest)
        page.put("muster_quota_budget_gpu_seconds", quota.budget_gpu_s, quota.name)
        page.put("muster_quota_spent_gpu_seconds", spent_s, quota.name)


def resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * resource.getpagesize()
