"""What the tasks of a job say of their own work, as ``muster job`` shows it below its attempts."""

import time
from collections.abc import Iterable
from typing import Any

from reconciler.cli import terminal

Json = Any
#: Tasks and series that are listed; ``-o json`` has all.
TASKS_MAX = 8
SERIES_MAX = 16


def show(attempts: list[Json]) -> None:
    """The newest checkpoint of each task, and its newest values, of whichever try has told some."""
    _show_checkpoints(_newest(one for one in attempts if one.get("checkpoint")))
    told = _newest(one for one in attempts if one.get("metrics") and one["metrics"]["lines"])
    if not told:
        return
    rows = []
    for attempt in told[:TASKS_MAX]:
        for one in attempt["metrics"]["series"][:SERIES_MAX]:
            value = "-" if one["value"] is None else f"{one['value']:.6g}"
            step = "-" if one["step"] is None else f"{one['step']:.10g}"
            which = [task_of(attempt), str(attempt["attempt"])]
            rows.append([*which, one["name"], value, step, terminal.clock(one["at"])])
    if rows:
        terminal.out.print()
        headings = ["TASK", "TRY", "METRIC", "VALUE", "STEP", "AT"]
        terminal.table(headings, rows, right="TRY VALUE STEP")
    if len(told) > TASKS_MAX:
        terminal.out.print(f"and {len(told) - TASKS_MAX} more tasks (-o json has all)")
    for attempt in told[:TASKS_MAX]:
        _show_faults(attempt)


def task_of(attempt: Json) -> str:
    """``worker-3``, or ``[7] main-0`` for element 7 of an array."""
    element = attempt.get("element")
    return str(attempt["task"]) if element is None else f"[{element}] {attempt['task']}"


def _newest(attempts: Iterable[Json]) -> list[Json]:
    """The last attempt at each task."""
    found: dict[str, Json] = {}
    for attempt in attempts:
        before = found.get(task_of(attempt))
        if before is None or before["attempt"] < attempt["attempt"]:
            found[task_of(attempt)] = attempt
    return list(found.values())


def _show_checkpoints(told: list[Json]) -> None:
    if not told:
        return
    terminal.out.print()
    rows = []
    for attempt in told[:TASKS_MAX]:
        saved = attempt["checkpoint"]
        at = terminal.seconds(saved["at"])
        age = None if at is None else max(0.0, time.time() - at)
        step = "-" if saved["step"] is None else f"{saved['step']:.10g}"
        which = [task_of(attempt), str(attempt["attempt"])]
        rows.append([*which, saved["path"], step, terminal.duration(age)])
    terminal.table(["TASK", "TRY", "CHECKPOINT", "STEP", "AGE"], rows, right="TRY STEP AGE")


def _show_faults(attempt: Json) -> None:
    told = attempt["metrics"]
    if told["badLines"]:
        terminal.out.print(
            f"{task_of(attempt)}: {told['badLines']} of {told['lines']} lines of metrics were not "
            f"understood; {told['problem']}",
            markup=False,
            soft_wrap=True,
        )
    if told["skippedBytes"]:
        terminal.out.print(
            f"{task_of(attempt)}: it writes metrics faster than they are read; "
            f"{told['skippedBytes']} bytes were left out",
            markup=False,
            soft_wrap=True,
        )
