"""Both futures of a plan at once, each in a process of its own where that is quicker.

The two have nothing in common but what they start from. A forked child has all of that without
copying it, decides one of them, and sends back what came of it; the parent decides the other
meanwhile. Where a fork is unsafe or of no use both are decided here, and the answer is the same.
"""

import contextlib
import gc
import os
import threading
from collections.abc import Callable

import msgspec

from reconciler.model import desired, records
from reconciler.simulation import forecasts

#: From how many jobs on a second process is worth its start.
JOBS_MIN = 500
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(forecasts.Future).decode


def forecast(
    base: desired.Desired,
    head: desired.Desired,
    observed: records.Observed,
    now: float,
    horizon_s: float = forecasts.HORIZON_S,
) -> forecasts.Forecast:
    """As ``forecasts.forecast``.

    Raises:
        SimulationError: controller and nodes find no rest.
    """
    nodes = frozenset(base.structure.pool_of_node())

    def future(wanted: desired.Desired) -> forecasts.Future:
        return forecasts.future(wanted, observed, now, base_nodes=nodes, horizon_s=horizon_s)

    child = _Child(lambda: _encode(future(base))) if _is_worth_it(observed) else None
    try:
        after = future(head)
    except BaseException:
        if child is not None:
            child.leave()
        raise
    told = child.result() if child is not None else None
    before = _decode(told) if told is not None else future(base)
    return forecasts.compare(
        base, head, observed, now, before=before, after=after, horizon_s=horizon_s
    )


def _is_worth_it(observed: records.Observed) -> bool:
    """Whether there is work for two, a processor for each, and no thread that a fork would lose."""
    enough = len(observed.jobs) >= JOBS_MIN and len(os.sched_getaffinity(0)) > 1
    return enough and threading.active_count() == 1


class _Child:
    """A forked process that makes some bytes."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._reader, writer = os.pipe()
        gc.collect()
        gc.freeze()  # else the child's collector would touch, and so copy, every object
        self._pid = os.fork()
        if self._pid:
            os.close(writer)
            return
        status = 1
        try:
            os.close(self._reader)
            with os.fdopen(writer, "wb") as output:
                output.write(make())
            status = 0
        finally:
            os._exit(status)  # nothing of the parent's is ended or flushed here

    def result(self) -> bytes | None:
        """What it made; None where it failed: who asks then does it, and sees why."""
        with os.fdopen(self._reader, "rb") as source:
            told = source.read()
        _, status = os.waitpid(self._pid, 0)
        gc.unfreeze()
        return told if status == 0 else None

    def leave(self) -> None:
        """End it; nobody wants to know any more."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, 9)
        os.close(self._reader)
        os.waitpid(self._pid, 0)
        gc.unfreeze()
