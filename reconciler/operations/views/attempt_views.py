"""Tries at tasks as people and programs see them: how far they are, what they use and say.

What nodes tell of running tasks is taken as it comes: numbers that are none, and times that no
clock shows, are not passed on.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from reconciler.model.observed import task_reports, task_usage
from reconciler.model.state import records, states
from reconciler.model.values import times
from reconciler.operations.views import gpu_views, json_format, view_types


class TaskReports(NamedTuple):
    """Newest metrics and usage of attempts, by their id."""

    metrics: Mapping[str, task_reports.TaskMetrics] = MappingProxyType({})
    uses: Mapping[str, task_usage.TaskUse] = MappingProxyType({})


def known_reports(
    attempts: Iterable[records.AttemptRecord],
    metrics: Callable[[str, str], task_reports.TaskMetrics | None],
    use: Callable[[str, str], task_usage.TaskUse | None],
) -> TaskReports:
    """Return what is known of attempts; ``metrics`` and ``use`` take a node and an attempt's id."""
    tries = list(attempts)
    written = {one.id: metrics(one.node, one.id) for one in tries}
    used = {one.id: use(one.node, one.id) for one in tries}
    return TaskReports(
        {attempt: told for attempt, told in written.items() if told is not None},
        {attempt: told for attempt, told in used.items() if told is not None},
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def metrics_view(of: task_reports.TaskMetrics) -> view_types.MetricsView:
    """Return the metrics that a task has logged."""
    series = [
        view_types.MetricView(one.name, _finite(one.value), _finite(one.step), _moment(one.at))
        for one in of.metrics
    ]
    return view_types.MetricsView(series, of.lines, of.bad_lines, of.problem, of.skipped_bytes)


def _moment(at: float) -> str:
    """Return a time that a node reported, whatever it is."""
    return times.format_time(min(max(0.0, at), gpu_views.LATEST_TIME))  # in this order NaN loses


def use_view(
    of: records.AttemptRecord, sampled: task_usage.TaskUse | None
) -> view_types.UseView | None:
    """Return the usage of an attempt: the last sample while it runs, the total after its end."""
    if of.state is states.AttemptState.ENDED:
        if of.started_at is None:
            return None
        return view_types.UseView(
            *(None, None, of.cpu_s, None, of.max_memory_bytes, of.read_bytes, of.written_bytes),
            [],
            measured_gpu_s=of.measured_gpu_s,
            busy_gpu_s=of.busy_gpu_s,
        )
    if sampled is None:
        return None
    return view_types.UseView(
        at=_moment(sampled.at),
        processes=sampled.processes,
        cpu_s=sampled.cpu_s,
        memory=sampled.memory_bytes,
        memory_max=sampled.memory_max_bytes,
        read=sampled.read_bytes,
        written=sampled.written_bytes,
        gpus=[
            view_types.GpuUseView(one.gpu, one.processes, one.memory_bytes) for one in sampled.gpus
        ],
        measured_gpu_s=sampled.measured_gpu_s,
        busy_gpu_s=sampled.busy_gpu_s,
    )


def attempt_view(
    of: records.AttemptRecord,
    *,
    array: bool,
    metrics: task_reports.TaskMetrics | None = None,
    use: task_usage.TaskUse | None = None,
) -> view_types.AttemptView:
    """Return the view of an attempt."""
    saved, early = of.saved, of.state in states.START_PHASES
    stop = None if of.state is states.AttemptState.ENDED else of.stop
    return view_types.AttemptView(
        id=of.id,
        task=f"{of.group}-{of.index}",
        element=of.element if array else None,
        attempt=of.try_number,
        node=of.node,
        devices=list(of.devices),
        state=(states.AttemptState.STARTING if early else of.state).value,
        phase=of.state.value if early else None,
        exit_code=of.exit_code,
        signal=of.signal,
        started=json_format.time_or_none(of.started_at),
        ended=json_format.time_or_none(of.ended_at),
        assigned=times.format_time(of.assigned_at),
        end_reason=None if of.end_reason is None else of.end_reason.value,
        message=of.message,
        checkpoint=None
        if saved is None
        else view_types.CheckpointView(
            saved.path, times.format_time(saved.at), saved.step, saved.bytes
        ),
        metrics=None if metrics is None else metrics_view(metrics),
        asked=view_types.AmountsView(
            of.resources.cpu_milli / 1000, of.resources.memory_bytes, of.resources.gpu_milli / 1000
        ),
        use=use_view(of, use),
        kill_at=None if stop is None else json_format.time_or_none(stop.at + stop.grace_s),
        stop_reason=None if stop is None else stop.reason.value,
        stop_for="" if stop is None else stop.by,
    )
