"""One node's page: its state, capacity and usage, its tasks and its GPUs."""

from collections import Counter
from collections.abc import Iterable
from typing import get_args

from reconciler.model.metrics import gpu_series, sample_text, task_series
from reconciler.model.observed import devices, health_checks
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, NodeState
from reconciler.model.values.resources import Resources


def render_node(
    node: records.NodeRecord,
    attempts: Iterable[records.AttemptRecord],
    gpu_usage: Iterable[devices.GpuUsage] = (),
    words: task_series.Words = task_series.NO_WORDS,
    uses: task_series.Uses = task_series.NO_USES,
    *,
    judged: bool = True,
) -> bytes:
    """Render one node's page from its last report and its attempts.

    ``words`` maps attempts to the metrics that tasks write; ``uses`` maps attempts to their usage.
    If not ``judged``, the page has no series about the node's state, because nobody has decided it.
    """
    alive = [attempt for attempt in attempts if attempt.state is not AttemptState.ENDED]
    who = (node.name, node.pool)
    page = sample_text.SampleText("node")
    for state in NodeState if judged else ():
        page.put("muster_node_state", int(node.state is state), *who, state.value)
    for check in node.inventory.checks:
        for verdict in get_args(health_checks.Verdict):
            page.put("muster_node_check", int(check.verdict == verdict), *who, check.name, verdict)
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
    task_series.put(page.put, alive, who, words, uses)
    gpu_series.put(page.put, node.inventory, gpu_usage, who)
    return page.render()


def _put_usage(
    page: sample_text.SampleText, usage: records.NodeUsage, who: tuple[str, str]
) -> None:
    if not usage.at:
        return
    page.put("muster_node_cpu_used_ratio", usage.cpu_percent / 100, *who)
    page.put("muster_node_memory_used_bytes", usage.memory_used_bytes, *who)
    page.put("muster_node_disk_used_bytes", usage.disk_used_bytes, *who)
    page.put("muster_node_disk_size_bytes", usage.disk_total_bytes, *who)
    page.put("muster_node_load1", usage.load_1m, *who)
    page.put("muster_node_data_cache_bytes", usage.cache_bytes, *who)
    page.put("muster_node_staged_bytes_total", usage.staged_bytes, *who)
    page.put("muster_agent_cpu_seconds_total", usage.agent_cpu_s, *who)
    page.put("muster_agent_resident_memory_bytes", usage.agent_memory_bytes, *who)
