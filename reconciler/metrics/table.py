"""The one table of every series that is exported: what is not here is not rendered."""

from typing import Literal

import msgspec

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
     "Time spent in each phase of the cycle, from taking reports in to publishing the page."),
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
