"""Reports metrics and checkpoints of a task: ``import muster; muster.log(step=10, loss=0.3)``.

Needs only the standard library, on Python 3.7 or newer. Outside of Muster it does nothing, so a
script runs unchanged on a laptop. No call raises because of a full disk or a missing folder: a
report must not end a task.
"""

from __future__ import annotations

import json
import os
import time

__all__ = ["checkpoint", "latest_checkpoint", "log", "reject"]

#: Suffixes of markers for complete and for rejected checkpoints.
COMPLETE, BAD = ".complete", ".bad"


def log(step: float | None = None, **values: object) -> bool:
    """Report numbers, as in ``log(step=10, loss=0.3)``. Return True if they could be written."""
    line: dict[str, object] = {"time": time.time()}
    if step is not None:
        line["step"] = _plain(step)
    line.update((name, _plain(value)) for name, value in values.items())
    return _write(line)


def checkpoint(path: str, step: float | None = None) -> bool:
    """Report that the checkpoint in the file or folder ``path`` is completely written.

    ``path`` is relative to ``$MUSTER_CHECKPOINT_DIR``. A marker next to it holds its size, so that
    a truncated checkpoint is not used.
    """
    folder = os.environ.get("MUSTER_CHECKPOINT_DIR", "")
    whole = os.path.join(folder, path).rstrip("/")  # noqa: PTH118 - pathlib is slow to import
    number = None if step is None else _plain(step)
    try:
        _replace(whole + COMPLETE, json.dumps({"bytes": _size(whole), "step": number}))
    except OSError:
        return False
    line: dict[str, object] = {"time": time.time()}
    line["checkpoint"] = os.path.relpath(whole, folder) if folder else path
    if number is not None:
        line["step"] = number
    return _write(line)


def latest_checkpoint() -> str | None:
    """Return the path of the newest complete checkpoint when this attempt started, or None."""
    return os.environ.get("MUSTER_CHECKPOINT") or None


def reject(path: str) -> bool:
    """Report that a checkpoint cannot be loaded, so that no later attempt uses it."""
    folder = os.environ.get("MUSTER_CHECKPOINT_DIR", "")
    try:
        _replace(os.path.join(folder, path).rstrip("/") + BAD, "")  # noqa: PTH118
    except OSError:
        return False
    return True


def _plain(value: object) -> object:
    """Return a number, also of an array library; else text, which counts as a mistake."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return str(value)


def _write(told: dict[str, object]) -> bool:
    path = os.environ.get("MUSTER_METRICS")
    if not path:
        return False
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, (json.dumps(told) + "\n").encode())
        finally:
            os.close(handle)
    except OSError:
        return False
    return True


def _size(path: str) -> int:
    """Return the size of a file, or of all files in a folder."""
    if not os.path.isdir(path):  # noqa: PTH112
        return os.stat(path).st_size  # noqa: PTH116
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118
    return total


def _replace(path: str, text: str) -> None:
    """Write a file completely or not at all."""
    part = f"{path}.{os.getpid()}.part"
    with open(part, "w", encoding="utf-8") as stream:  # noqa: PTH123
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, path)  # noqa: PTH105
