"""What tasks use of their node, as agents sample it: for eyes, like what tasks say of themselves.

It goes from the agent to the server and no further; what an attempt has used in all is in its
report when it has ended.
"""

import math

import msgspec

from reconciler.model.observed import devices

AMOUNT_MAX = 2**53
#: The most tasks that one report tells of.
TASKS_MAX = 1024


class GpuUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task's processes on one device, by its number; ``memory_bytes`` None: the driver does not
    tell."""

    gpu: int
    processes: int
    memory_bytes: int | None = None


class TaskUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task uses, at a time of the node's wall clock.

    Attributes:
        attempt: whose it is.
        at: when it was sampled.
        processes: how many it has.
        cpu_s: CPU time so far, of all its processes.
        memory_bytes: in use now, by its control group less what is only cached of files; where it
            has none the sum over its processes, in which what they share counts for each.
        memory_max_bytes: the most so far, by the same.
        read_bytes: from storage so far; None: the agent may not know.
        written_bytes: likewise to storage.
        gpus: what it has on devices.
    """

    attempt: str
    at: float
    processes: int = 0
    cpu_s: float = 0.0
    memory_bytes: int = 0
    memory_max_bytes: int = 0
    read_bytes: int | None = None
    written_bytes: int | None = None
    gpus: tuple[GpuUse, ...] = ()


def bounded(told: TaskUse, now: float) -> TaskUse:
    """What a node says of a task's use, within all reason."""
    gpus: dict[int, GpuUse] = {}
    for one in told.gpus[: devices.DEVICES_MAX]:
        if 0 <= one.gpu < devices.DEVICES_MAX:
            use = GpuUse(one.gpu, _amount(one.processes), _maybe(one.memory_bytes))
            gpus.setdefault(one.gpu, use)
    return TaskUse(
        attempt=told.attempt,
        at=min(now, max(0.0, told.at)) if math.isfinite(told.at) else 0.0,
        processes=_amount(told.processes),
        cpu_s=min(float(AMOUNT_MAX), max(0.0, told.cpu_s)),  # in this order NaN loses
        memory_bytes=_amount(told.memory_bytes),
        memory_max_bytes=_amount(told.memory_max_bytes),
        read_bytes=_maybe(told.read_bytes),
        written_bytes=_maybe(told.written_bytes),
        gpus=tuple(gpus.values()),
    )


def _amount(told: int) -> int:
    return min(AMOUNT_MAX, max(0, told))


def _maybe(told: int | None) -> int | None:
    return None if told is None else _amount(told)
