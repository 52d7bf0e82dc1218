"""Resource usage of tasks, sampled by agents, for people to look at.

It goes from the agent to the server and no further. The total usage of an attempt is in its report
when it has ended.
"""

import math

import msgspec

from reconciler.model.observed import devices

AMOUNT_MAX = 2**53
#: The most tasks that one report tells of.
TASKS_MAX = 1024


class GpuUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Usage of one device by a task's processes. ``memory_bytes`` is None if the driver does not
    know it.
    """

    gpu: int
    processes: int
    memory_bytes: int | None = None


class TaskUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Resource usage of a task, at a time of the node's wall clock.

    Attributes:
        attempt: attempt that is sampled.
        at: time of the sample.
        processes: number of processes.
        cpu_s: CPU time so far, of all its processes.
        memory_bytes: memory in use, of its control group without the page cache. Without a control
            group it is the sum over processes, so that shared memory counts several times.
        memory_max_bytes: maximum so far, by the same measure.
        read_bytes: read from storage so far; None: the agent may not know.
        written_bytes: written to storage so far, likewise.
        gpus: usage of devices.
        measured_gpu_s: GPU-seconds so far in which the utilisation of its devices was measured.
        busy_gpu_s: the part of them in which kernels ran, of whatever task if a device is shared.
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
    measured_gpu_s: float = 0.0
    busy_gpu_s: float = 0.0


def seconds(told: float) -> float:
    """Return a node's report of an amount of time, cut to plausible bounds."""
    return min(float(AMOUNT_MAX), max(0.0, told))  # in this order NaN loses


def bounded(told: TaskUse, now: float) -> TaskUse:
    """Return a node's report of a task's usage, cut to plausible bounds."""
    gpus: dict[int, GpuUse] = {}
    for one in told.gpus[: devices.DEVICES_MAX]:
        if 0 <= one.gpu < devices.DEVICES_MAX:
            use = GpuUse(one.gpu, _amount(one.processes), _maybe(one.memory_bytes))
            gpus.setdefault(one.gpu, use)
    return TaskUse(
        attempt=told.attempt,
        at=min(now, max(0.0, told.at)) if math.isfinite(told.at) else 0.0,
        processes=_amount(told.processes),
        cpu_s=seconds(told.cpu_s),
        memory_bytes=_amount(told.memory_bytes),
        memory_max_bytes=_amount(told.memory_max_bytes),
        read_bytes=_maybe(told.read_bytes),
        written_bytes=_maybe(told.written_bytes),
        gpus=tuple(gpus.values()),
        measured_gpu_s=seconds(told.measured_gpu_s),
        busy_gpu_s=min(seconds(told.busy_gpu_s), seconds(told.measured_gpu_s)),
    )


def _amount(told: int) -> int:
    return min(AMOUNT_MAX, max(0, told))


def _maybe(told: int | None) -> int | None:
    return None if told is None else _amount(told)
