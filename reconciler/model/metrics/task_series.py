"""Metrics of the tasks on a node: identity, start time, and resources held.

Tasks come and go, so these metrics are on the node's page only and bounded by ``TASKS_MAX``. The
GPUs of a task are given by number, so that a query can join them with the metrics of GPUs.
"""

from collections.abc import Callable, Mapping, Sequence

from reconciler.model.metrics.metric_table import TASK_METRICS_MAX, TASKS_MAX
from reconciler.model.observed import task_reports, task_usage
from reconciler.model.state import records

Words = Mapping[str, task_reports.TaskMetrics]
NO_WORDS: Words = {}
Uses = Mapping[str, task_usage.TaskUse]
NO_USES: Uses = {}


def put(
    page: Callable[..., None],
    alive: Sequence[records.AttemptRecord],
    node: tuple[str, str],
    words: Words = NO_WORDS,
    uses: Uses = NO_USES,
) -> None:
    """Add the attempts that have not ended to a node's page, the first assigned first."""
    shown = set()
    left = TASK_METRICS_MAX
    for attempt in alive[:TASKS_MAX]:
        task = (attempt.job, str(attempt.element), f"{attempt.group}-{attempt.index}")
        if task in shown:
            continue  # an earlier attempt at it is still leaving
        shown.add(task)
        who = (*node, *task)
        page("muster_task_info", 1, *who)
        if attempt.started_at is not None:
            page("muster_task_start_timestamp_seconds", attempt.started_at, *who)
        page("muster_task_requested_cpus", attempt.resources.cpu_milli / 1000, *who)
        page("muster_task_requested_memory_bytes", attempt.resources.memory_bytes, *who)
        for device in attempt.devices:
            page("muster_task_gpu_info", 1, *who, str(device))
        _put_saved(page, attempt, who)
        if attempt.id in uses:
            _put_use(page, uses[attempt.id], who)
        told = words.get(attempt.id)
        if told is not None:
            page("muster_task_metrics_lines_total", told.lines - told.bad_lines, *who, "read")
            page("muster_task_metrics_lines_total", told.bad_lines, *who, "bad")
            for one in told.metrics[:left]:
                page("muster_task_metric", one.value, *who, one.name)
            left = max(0, left - len(told.metrics))


def _put_use(page: Callable[..., None], use: task_usage.TaskUse, who: tuple[str, ...]) -> None:
    """Add the last sample of a task's usage."""
    page("muster_task_processes", use.processes, *who)
    page("muster_task_cpu_seconds_total", use.cpu_s, *who)
    page("muster_task_memory_bytes", use.memory_bytes, *who)
    page("muster_task_memory_max_bytes", use.memory_max_bytes, *who)
    if use.read_bytes is not None and use.written_bytes is not None:
        page("muster_task_storage_read_bytes_total", use.read_bytes, *who)
        page("muster_task_storage_written_bytes_total", use.written_bytes, *who)
    for one in use.gpus:
        page("muster_task_gpu_processes", one.processes, *who, str(one.gpu))
        if one.memory_bytes is not None:
            page("muster_task_gpu_memory_bytes", one.memory_bytes, *who, str(one.gpu))


def _put_saved(
    page: Callable[..., None], attempt: records.AttemptRecord, who: tuple[str, ...]
) -> None:
    """Add checkpoints, and the age of unsaved work if the job declares a checkpoint interval."""
    if attempt.saved is not None:
        page("muster_task_checkpoint_timestamp_seconds", attempt.saved.at, *who)
    if attempt.saves_every_s is None or attempt.started_at is None or not attempt.is_first:
        return
    since = max(attempt.started_at, attempt.saved.at if attempt.saved else 0.0)
    page("muster_task_unsaved_since_timestamp_seconds", since, *who)
    page("muster_task_checkpoint_interval_seconds", attempt.saves_every_s, *who)
