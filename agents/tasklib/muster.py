"""For tasks of Muster: ``import muster; muster.log(step=10, loss=0.3)``.

Needs nothing but the standard library, on any Python from 3.7 on. Outside of Muster it does
nothing, so that a script runs unchanged on a laptop. No call raises because of a full disk or a
missing folder: what a task says of itself must not end it.
"""

from __future__ import annotations

import json
import os
import time

__all__ = ["checkpoint", "latest_checkpoint", "log", "reject"]

#: Completes the name of what says that a checkpoint is whole, or that it is not to be used.
COMPLETE, BAD = ".complete", ".bad"


def log(step: float | None = None, **values: object) -> bool:
    """Tell numbers, such as ``log(step=10, loss=0.3)``; whether they could be written."""
    told: dict[str, object] = {"time": time.time()}
    if step is not None:
        told["step"] = _plain(step)
    told.update((name, _plain(value)) for name, value in values.items())
    return _write(told)


def checkpoint(path: str, step: float | None = None) -> bool:
    """Say that a checkpoint is whole: call it when the file or folder ``path`` is written.

    ``path`` counts from ``$MUSTER_CHECKPOINT_DIR``. A marker beside it holds how many bytes there
    are, so that one that was cut short since is not taken for whole.
    """
    folder = os.environ.get("MUSTER_CHECKPOINT_DIR", "")
    whole = os.path.join(folder, path).rstrip("/")  # noqa: PTH118 - pathlib is slow to import
    number = None if step is None else _plain(step)
    try:
        _replace(whole + COMPLETE, json.dumps({"bytes": _size(whole), "step": number}))
    except OSError:
        return False
    told: dict[str, object] = {"time": time.time()}
    told["checkpoint"] = os.path.relpath(whole, folder) if folder else path
    if number is not None:
        told["step"] = number
    return _write(told)


def latest_checkpoint() -> str | None:
    """Path of the newest complete checkpoint when this attempt started, or None."""
    return os.environ.get("MUSTER_CHECKPOINT") or None


def reject(path: str) -> bool:
    """Say that a checkpoint can't be loaded: no later attempt is told of it."""
    folder = os.environ.get("MUSTER_CHECKPOINT_DIR", "")
    try:
        _replace(os.path.join(folder, path).rstrip("/") + BAD, "")  # noqa: PTH118
    except OSError:
        return False
    return True


def _plain(value: object) -> object:
    """A number, also one of an array library; else text, which is counted as a mistake."""
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
    """Bytes of a file, or of all files in a folder."""
    if not os.path.isdir(path):  # noqa: PTH112
        return os.stat(path).st_size  # noqa: PTH116
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118
    return total


def _replace(path: str, text: str) -> None:
    """Write a file so that it is there as a whole or not at all."""
    part = f"{path}.{os.getpid()}.part"
    with open(part, "w", encoding="utf-8") as stream:  # noqa: PTH123
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, path)  # noqa: PTH105
