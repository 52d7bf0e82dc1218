"""The series of the tasks on a node: which they are, since when they run, and what they hold.

Tasks come and go, so their series are on the node's page alone and bounded by ``TASKS_MAX``; the
GPUs of a task are told by number, so that a query can join them with what the GPUs do.
"""

from collections.abc import Callable, Sequence

from reconciler.metrics.table import TASKS_MAX
from reconciler.model import records


def put(
    page: Callable[..., None], alive: Sequence[records.AttemptRecord], node: tuple[str, str]
) -> None:
    """Put the attempts that have not ended on a node's page, the first assigned first."""
    shown = set()
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
