"""Usage, checkpoints and metrics of a job's tasks, as `muster job` prints them below its attempts.

Usage is shown beside the request, because what is requested and not used keeps others waiting.
"""

import itertools
import time
from collections.abc import Iterable
from typing import Any

from reconciler.cli import terminal

Json = Any
#: The most tasks and series to list; `-o json` has all.
TASKS_MAX = 8
SERIES_MAX = 16
UNIT_BYTES = 1024
#: The request of a task if an older controller does not send it.
NOTHING_ASKED: Json = {"cpu": None, "memory": None, "gpu": None}


def show(attempts: list[Json]) -> None:
    """Print usage, newest checkpoint and values of each task, from the newest try that reported
    any.
    """
    _show_use(_newest(one for one in attempts if one.get("use")))
    _show_efficiency([one for one in attempts if one.get("use")])
    _show_checkpoints(_newest(one for one in attempts if one.get("checkpoint")))
    attempts_with_values = _newest(
        one for one in attempts if one.get("metrics") and one["metrics"]["lines"]
    )
    if not attempts_with_values:
        return
    rows = []
    for attempt in attempts_with_values[:TASKS_MAX]:
        for one in attempt["metrics"]["series"][:SERIES_MAX]:
            value = "-" if one["value"] is None else f"{one['value']:.6g}"
            step = "-" if one["step"] is None else f"{one['step']:.10g}"
            which = [task_of(attempt), str(attempt["attempt"])]
            rows.append([*which, one["name"], value, step, terminal.format_clock(one["at"])])
    if rows:
        terminal.out.print()
        headings = ["TASK", "TRY", "METRIC", "VALUE", "STEP", "AT"]
        terminal.print_table(headings, rows, right="TRY VALUE STEP")
    if len(attempts_with_values) > TASKS_MAX:
        terminal.out.print(
            f"and {len(attempts_with_values) - TASKS_MAX} more tasks (-o json has all)"
        )
    for attempt in attempts_with_values[:TASKS_MAX]:
        _show_faults(attempt)


def task_of(attempt: Json) -> str:
    """Return `worker-3`, or `[7] main-0` for element 7 of an array."""
    element = attempt.get("element")
    return str(attempt["task"]) if element is None else f"[{element}] {attempt['task']}"


def _newest(attempts: Iterable[Json]) -> list[Json]:
    """Return the last attempt at each task."""
    found: dict[str, Json] = {}
    for attempt in attempts:
        before = found.get(task_of(attempt))
        if before is None or before["attempt"] < attempt["attempt"]:
            found[task_of(attempt)] = attempt
    return list(found.values())


def _show_use(attempts: list[Json]) -> None:
    """Print mean CPUs since the start, memory, peak memory, and bytes read and written."""
    if not attempts:
        return
    terminal.out.print()
    headings = ["TASK", "TRY", "CPUS", "MEMORY", "PEAK", "READ", "WRITTEN"]
    rows: list[list[str]] = []
    below: dict[int, str] = {}
    for attempt in attempts[:TASKS_MAX]:
        use, request = attempt["use"], attempt.get("asked") or NOTHING_ASKED
        cpus = _of(_cpus(attempt), f"{request['cpu']:g}" if request["cpu"] else "")
        peak = _of(_size(use["memoryMax"]), _size(request["memory"]) if request["memory"] else "")
        moved = [_size(use["read"]), _size(use["written"])]
        of = [task_of(attempt), str(attempt["attempt"])]
        if use["gpus"]:
            below[len(rows)] = "; ".join(_on_gpu(one) for one in use["gpus"])
        rows.append([*of, cpus, _size(use["memory"]), peak, *moved])
    there = [n < 2 or any(row[n] != "-" for row in rows) for n in range(len(headings))]
    there[3] |= there[4]  # PEAK needs the column MEMORY before it
    headings, *rows = [list(itertools.compress(row, there)) for row in (headings, *rows)]
    terminal.print_table(
        headings, rows, right=" ".join(headings[1:]), below=below, least={"TASK": 10}
    )
    if len(attempts) > TASKS_MAX:
        terminal.out.print(f"and {len(attempts) - TASKS_MAX} more tasks (-o json has all)")


def _show_efficiency(attempts: list[Json]) -> None:
    """Print which part of what all attempts had they used: CPU time, peak memory, time of GPUs."""
    parts = []
    cpu_s, had_s = 0.0, 0.0
    peaks: list[float] = []
    for one in attempts:
        asked, use = one.get("asked") or NOTHING_ASKED, one["use"]
        began = terminal.parse_time(one.get("started"))
        until = terminal.parse_time(use["at"] or one.get("ended"))
        if asked["cpu"] and began is not None and until is not None and until - began >= 1:
            cpu_s, had_s = cpu_s + use["cpu_s"], had_s + asked["cpu"] * (until - began)
        if asked["memory"] and use["memoryMax"]:
            peaks.append(use["memoryMax"] / asked["memory"])
    if had_s:
        parts.append(f"CPU {cpu_s / had_s:.0%} of {terminal.format_duration(had_s)}")
    if peaks:
        parts.append(f"memory {max(peaks):.0%} at its peak")
    measured_s = sum(one["use"].get("measuredGpu_s", 0.0) for one in attempts)
    if measured_s:
        busy_s = sum(one["use"].get("busyGpu_s", 0.0) for one in attempts)
        parts.append(f"GPU {busy_s / measured_s:.0%} of {terminal.format_duration(measured_s)}")
    busy = [one["busy"] for one in attempts if one.get("busy") is not None]
    if busy:
        parts.append(f"GPU {sum(busy) / len(busy):.0%} busy now")
    if parts:
        terminal.print_line(f"Efficiency: {', '.join(parts)}", 2)


def with_busy(attempts: list[Json], nodes: list[Json]) -> list[Json]:
    """Return attempts with `busy`, the share of time in which kernels run on their GPUs now."""
    found = []
    for one in attempts:
        gpus = [
            gpu["usage"]["utilization"]
            for node in nodes
            if node["name"] == one["node"] and one["state"] != "Ended"
            for gpu in node.get("gpus") or []
            if gpu["index"] in (one.get("devices") or []) and gpu.get("usage")
        ]
        known = [part for part in gpus if part is not None]
        found.append({**one, "busy": sum(known) / len(known)} if known else one)
    return found


def _of(used: str, asked: str) -> str:
    """Return `1.50 of 16` if the request is known, else the usage alone."""
    return f"{used} of {asked}" if asked else used


def _cpus(attempt: Json) -> str:
    """Return the mean number of busy CPUs, from the start to the sample or the end."""
    began = terminal.parse_time(attempt.get("started"))
    until = terminal.parse_time(attempt["use"]["at"] or attempt.get("ended"))
    if began is None or until is None or until - began < 1:
        return "-"  # the mean of less than a second means nothing
    return f"{attempt['use']['cpu_s'] / (until - began):.2f}"


def _on_gpu(one: Json) -> str:
    """Return `GPU 3: 12.4Gi in 1 process`."""
    processes = f"{one['processes']} process{'' if one['processes'] == 1 else 'es'}"
    memory = "memory unknown" if one["memory"] is None else _size(one["memory"])
    return f"GPU {one['gpu']}: {memory} in {processes}"


def _size(amount: int | None) -> str:
    """Return an amount of bytes in few digits: `0`, `712Ki`, `1.5Gi`. None is a dash."""
    if amount is None:
        return "-"
    left = float(amount)
    for unit in ("", "Ki", "Mi", "Gi", "Ti", "Pi"):
        if left < UNIT_BYTES - 0.5:
            return f"{left:.0f}{unit}" if left >= 10 or not unit else f"{left:.2g}{unit}"
        left /= UNIT_BYTES
    return f"{left:.0f}Ei"


def _show_checkpoints(told: list[Json]) -> None:
    if not told:
        return
    terminal.out.print()
    rows = []
    for attempt in told[:TASKS_MAX]:
        saved = attempt["checkpoint"]
        at = terminal.parse_time(saved["at"])
        age = None if at is None else max(0.0, time.time() - at)
        step = "-" if saved["step"] is None else f"{saved['step']:.10g}"
        which = [task_of(attempt), str(attempt["attempt"])]
        rows.append([*which, saved["path"], step, terminal.format_duration(age)])
    terminal.print_table(["TASK", "TRY", "CHECKPOINT", "STEP", "AGE"], rows, right="TRY STEP AGE")


def _show_faults(attempt: Json) -> None:
    metrics = attempt["metrics"]
    if metrics["badLines"]:
        terminal.out.print(
            f"{task_of(attempt)}: {metrics['badLines']} of {metrics['lines']} lines of metrics are "
            f"invalid: {metrics['problem']}",
            markup=False,
            soft_wrap=True,
        )
    if metrics["skippedBytes"]:
        terminal.out.print(
            f"{task_of(attempt)}: metrics are written faster than they are read; "
            f"{metrics['skippedBytes']} bytes were skipped",
            markup=False,
            soft_wrap=True,
        )
