"""What the controller wants made right on this node: each order is carried out once, and told of.

Orders come with the set of assignments and stay in it until their end is committed. What has been
begun lies in ``remedies.json`` of the node's root, written before anything is done, so that an
agent that dies in the midst of an order never begins it again: it tells that it does not know.
"""

import contextlib
import os
import queue
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from agents import processes
from reconciler.model import devices
from reconciler.model.drift import Remedy
from reconciler.model.records import RemedyReport

#: How long a process may take to leave after SIGTERM, and to go after SIGKILL.
LEAVE_S = 10.0
GO_S = 5.0
#: Ends that are kept; the controller never has so many orders open for one node.
KEPT_MAX = 256
#: By how much the beginning of a process may differ: clocks are rounded on the way.
STARTED_TOLERANCE_S = 2.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class OrderError(Exception):
    """An order that can't be carried out; says why."""


class Node(Protocol):
    """What carrying out orders needs to know of the node."""

    def foreign(self) -> tuple[devices.GpuProcess, ...]:
        """Processes on devices that are no task's, as last seen."""


class _Kept(msgspec.Struct, frozen=True):
    """What ``remedies.json`` holds. ``begun`` and not ended: the agent died over it."""

    begun: tuple[str, ...] = ()
    ended: tuple[RemedyReport, ...] = ()


Handler = Callable[[Remedy, Node], str]


class Orders:
    """The orders of one node.

    Args:
        root: the node's folder.
        node: what is known of it.
        ended: called when there is an end to tell.
        handlers: what carries out an order of each verb; returns what was done, in words.
    """

    def __init__(
        self,
        root: Path,
        node: Node,
        ended: Callable[[], None],
        handlers: "dict[str, Handler] | None" = None,
    ) -> None:
        self._path = root / "remedies.json"
        self._node = node
        self._told = ended
        self._handlers = HANDLERS if handlers is None else handlers
        self._lock = threading.Lock()
        self._waiting: queue.Queue[Remedy] = queue.Queue()
        self._begun: dict[str, None] = {}
        self._ended: dict[str, RemedyReport] = {}
        self._load()

    def take(self, orders: Iterable[Remedy]) -> None:
        """The orders that the node is to have now; those that are new are carried out."""
        wanted = {one.id: one for one in orders}
        with self._lock:
            for name in [name for name in self._ended if name not in wanted]:
                del self._ended[name]
                self._begun.pop(name, None)
            fresh = [one for name, one in wanted.items() if name not in self._begun]
            for one in fresh[: KEPT_MAX - len(self._begun)]:
                self._begun[one.id] = None
                self._waiting.put(one)
            self._save()

    def reports(self) -> tuple[RemedyReport, ...]:
        """Ends that the controller may not have yet."""
        with self._lock:
            return tuple(self._ended.values())

    def work(self) -> None:
        """Carry out the next order; waits until there is one."""
        order = self._waiting.get()
        handler = self._handlers.get(order.verb)
        try:
            if handler is None:
                raise OrderError(f"this agent does not know how to {order.verb}: it is too old")  # noqa: TRY301
            report = RemedyReport(order.id, done=True, message=handler(order, self._node))
        except (OrderError, OSError) as problem:
            report = RemedyReport(order.id, done=False, message=str(problem))
        with self._lock:
            self._ended[order.id] = report
            self._save()
        self._told()

    def _load(self) -> None:
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_Kept)
        except (OSError, msgspec.MsgspecError):
            return
        self._ended = {one.id: one for one in kept.ended}
        for name in kept.begun:
            self._begun[name] = None
            if name not in self._ended:
                message = "the agent ended while it was at it, and does not know what came of it"
                self._ended[name] = RemedyReport(name, done=False, message=message)

    def _save(self) -> None:
        fresh = self._path.with_suffix(".new")
        kept = _Kept(tuple(self._begun), tuple(self._ended.values()))
        with contextlib.suppress(OSError):  # an order may then be carried out twice, after a crash
            fresh.write_bytes(msgspec.json.encode(kept))
            fresh.replace(self._path)


def end_process(order: Remedy, node: Node) -> str:
    """End a process that holds a device and is no task's: SIGTERM, then SIGKILL.

    Raises:
        OrderError: it is not the process that was meant, is needed here, or does not go.
    """
    pid = order.pid
    foreign = {(one.pid, one.uuid) for one in node.foreign()}
    if (pid, order.uuid) not in foreign:
        return f"process {pid} is not on the device any more"
    if pid in _own():
        raise OrderError(f"process {pid} is the agent itself, or has started it")
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return f"process {pid} has gone"
    try:
        _check_start(order)
        for number, wait_s in ((signal.SIGTERM, LEAVE_S), (signal.SIGKILL, GO_S)):
            try:
                signal.pidfd_send_signal(handle, number)
            except ProcessLookupError:
                return f"process {pid} has ended"
            except PermissionError:
                raise OrderError(
                    f"process {pid} belongs to another user, and this agent may not end it: run "
                    "the agent as root"
                ) from None
            if _gone(handle, wait_s):
                return f"process {pid} ended by {number.name}"
    finally:
        os.close(handle)
    raise OrderError(f"process {pid} does not go, not even by SIGKILL: it is stuck in the kernel")


def _own() -> set[int]:
    """This process and all that have led to it."""
    found, at = set(), os.getpid()
    while at > 0 and at not in found:
        found.add(at)
        facts = processes.process_facts(at)
        at = facts[0] if facts else 0
    return found | {0, 1}


def _check_start(order: Remedy) -> None:
    """Raise OrderError where the number of the process has gone to another one since."""
    facts = processes.process_facts(order.pid)
    if facts is None or not order.started_at:
        return
    began = time.time() - processes.boottime() + facts[2] / _TICKS_PER_S
    if abs(began - order.started_at) > STARTED_TOLERANCE_S:
        raise OrderError(f"process {order.pid} is another one than was seen on the device")


def _gone(handle: int, wait_s: float) -> bool:
    """Whether the process of a handle ends in time."""
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    return bool(poller.poll(1000 * wait_s))


HANDLERS: dict[str, Handler] = {"end-process": end_process}
