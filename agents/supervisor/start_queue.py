"""Starts attempts, several at the same time, so that none waits for the program of another.

A task of another user is forked and switches user by itself, while the next one starts. Orders come
in; records of what runs go out, or why it does not run. A start that takes longer, for example
because a file system hangs, is set aside and gave up after a time. Stdlib only.
"""

import os
import select
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from agents.host import failpoints, processes
from agents.isolation import project_quotas
from agents.supervisor import exit_reasons, orders, reaper, spawn, task_isolation
from agents.supervisor.supervisor_log import complain

Record = dict[str, Any]

#: Tasks that start at the same time. There are more than cores, because they wait in the kernel
#: while they enter their groups.
AT_ONCE = 8
PER_TURN = 32
#: How long one turn of the supervisor waits, in all, for starts that take long.
PATIENCE_S = 0.1
#: Time after which a start is given up. A server that fails over may take a minute or more. An
#: order may have its own limit as ``start_s``.
START_S = 120.0
#: Time after which a start is reported to hang, with the place.
TELL_S = 5.0
NEVER_STARTED = "stopped before it started"


class NotStartedError(Exception):
    """An attempt that does not run and never will, with its record and the reason of its end."""

    def __init__(self, record: Record, reason: str, message: str) -> None:
        self.record = record
        self.reason = reason
        super().__init__(message)


class PendingStart:
    """An attempt whose program has not started yet.

    Attributes:
        record: what is recorded in any case.
        kept: what is also recorded if it runs.
        told_at: when to report that it hangs; None if that is done.
    """

    __slots__ = ("child", "kept", "order", "record", "start_s", "told_at", "until")

    def __init__(
        self, order: orders.StartOrder, record: Record, kept: Record, child: spawn.SpawnedChild
    ) -> None:
        self.order = order
        self.record = record
        self.kept = kept
        self.child = child
        self.start_s = order.start_s or START_S
        now = processes.boottime()
        self.until = now + self.start_s
        #: When it is to be told that it hangs; None: it was.
        self.told_at: float | None = now + TELL_S

    @property
    def name(self) -> str:
        """Id of the attempt."""
        return str(self.record["id"])

    def due(self, renewed_at: float) -> float:
        """Return when something must be done about it, given the last renewal of leases."""
        ends = self.until_with(renewed_at)
        return ends if self.told_at is None else min(ends, self.told_at)

    def until_with(self, renewed_at: float) -> float:
        """Return when it must have started, given the last renewal of leases."""
        lease_s = self.order.lease_s
        return self.until if lease_s is None else min(self.until, renewed_at + lease_s)

    def silence(self, after_s: float) -> str:
        """Return the message for a start that has not finished for so long."""
        folder, command = self.order.cwd, self.order.argv[0]
        return (
            f"working directory {folder} or command {command} has not answered within "
            f"{after_s:g} s: the file system it is on may hang; see whether ls on this node comes "
            "back there"
        )


def must_wait_for_earlier(
    begun: list[PendingStart], order: orders.StartOrder, *, forks: bool
) -> bool:
    """Return True if an earlier start must finish before this one begins.

    A second order for the same attempt must not create a second process. A task that is not always
    forked may be started from inside its control groups: memory that the supervisor copies there,
    while a forked child still shares it, would be charged to that task for ever.
    """
    if not begun:
        return False
    if len(begun) >= AT_ONCE or not forks:
        return True
    return order.id in [other.name for other in begun]


class SlowStarts:
    """Starts that take too long to wait for, each with the pipe by which it reports."""

    def __init__(self, poller: select.epoll) -> None:
        self._poller = poller
        self._by_handle: dict[int, PendingStart] = {}

    def __len__(self) -> int:
        return len(self._by_handle)

    def __contains__(self, handle: int) -> bool:
        return handle in self._by_handle

    def __iter__(self) -> Iterator[PendingStart]:
        return iter(list(self._by_handle.values()))

    def add(self, begun: PendingStart) -> None:
        """Add a start, and wait for its pipe."""
        self._poller.register(begun.child.said, select.EPOLLIN)
        self._by_handle[begun.child.said] = begun

    def take(self, handle: int) -> PendingStart:
        """Remove and return a start that has finished or is given up."""
        # closing it is not enough: a child that was forked meanwhile may have it open as well
        self._poller.unregister(handle)
        begun = self._by_handle.pop(handle)
        begun.record["started_at"] = time.time()  # it hung until now: that is not the task's time
        return begun

    def with_pid(self, pid: int) -> PendingStart | None:
        """Return the start with this process id, if any."""
        found = (begun for begun in self._by_handle.values() if begun.child.pid == pid)
        return next(found, None)

    def names(self) -> list[str]:
        """Return the ids of the attempts."""
        return [begun.name for begun in self._by_handle.values()]

    def pids(self) -> set[int]:
        """Return the process ids."""
        return {begun.child.pid for begun in self._by_handle.values()}


class AttemptStarter:
    """Starts attempts below a root, each only once."""

    def __init__(
        self, root: str, held: task_isolation.TaskIsolation, reaper_name: str, null: int
    ) -> None:
        self._root = root
        self._held = held
        self._reaper_name = reaper_name
        self._null = null
        self._has_quotas = project_quotas.offer(root).usable
        self._quota_failed = False

    def always_forks(self, order: orders.StartOrder) -> bool:
        """Return True if an attempt never starts in the supervisor's own process."""
        return self._held.always_forks(order)

    def begin(
        self, order: orders.StartOrder, company: task_isolation.Company = "alone"
    ) -> PendingStart:
        """Create an attempt's folder and process. ``company`` describes the other starts.

        Raises:
            NotStartedError: it failed; nothing of it runs.
        """
        record: Record = {"id": order.id, "started_at": time.time()}
        if order.secrets:
            record["secrets"] = True
        if order.note:
            record["message"] = order.note
        if order.hint:
            record["hint"] = order.hint
        # nothing may fail between a task's start and its entry in the table of live attempts
        recorded = {"cleanup": order.cleanup} if order.cleanup else {}
        if order.limits.get("cpus"):
            recorded["cpus"] = order.limits["cpus"]
        if self._has_quotas:  # a folder of an earlier attempt keeps the bounds of that
            order = order._replace(spare=None)
        try:
            spawn.make_folder(self._root, order)
        except FileExistsError:
            raise NotStartedError(record, "Lost", "its directory was there already") from None
        except OSError as problem:
            fault = spawn.node_fault(problem, "folder of the attempt", on_disk=True)
            raise _not_started(record, fault) from None
        self._bound_folder(order)
        order = order._replace(env={**order.env, reaper.VARIABLE: self._reaper_name})
        standard = [self._null]
        try:
            standard.append(self._log(order, "stdout"))
            standard.append(self._log(order, "stderr"))
            files = standard[0], standard[1], standard[2]
            child = self._held.start(order, files, company)
        except Exception as problem:  # whatever an order contains, it affects this attempt only
            raise _not_started(record, problem) from None
        finally:
            for handle in standard[1:]:
                os.close(handle)
        return PendingStart(order, record, recorded, child)

    def _log(self, order: orders.StartOrder, stream: str) -> int:
        try:
            return spawn.open_log(self._root, order, stream)
        except OSError as problem:
            raise spawn.node_fault(problem, "log of the attempt", on_disk=True) from None

    def _bound_folder(self, order: orders.StartOrder) -> None:
        """Bound what the attempt's folder may take, where the file system can.

        Otherwise the agent's looks at it are the only bound.
        """
        if not self._has_quotas or not order.scratch_bytes:
            return
        try:
            project_quotas.limit(f"{self._root}/attempts/{order.id}", order.scratch_bytes)
        except OSError as problem:
            if not self._quota_failed:
                self._quota_failed = True
                complain(
                    f"the quota of {order.id} can't be set ({problem.strerror}): scratchLimit "
                    "holds by looks every few seconds. It is said once; --check tries it too"
                )

    def wait_for_start(self, begun: PendingStart) -> Record:
        """Wait until an attempt's program has started. Return its record.

        Raises:
            NotStartedError: it could not start; nothing of it runs.
        """
        try:
            pid = self._held.wait_for_start(begun.name, begun.child)
        except Exception as problem:  # whatever it is, it affects this attempt only
            raise _not_started(begun.record, problem) from None
        failpoints.reach("spawned-not-recorded")
        facts = processes.process_facts(pid)
        ticks = facts[2] if facts else 0
        return begun.record | {"state": "Running", "pid": pid, "ticks": ticks, **begun.kept}


def _not_started(record: Record, problem: Exception) -> NotStartedError:
    failed = exit_reasons.not_started(problem)
    return NotStartedError(record | failed.facts, failed.reason, failed.message)


class StartHooks(NamedTuple):
    """The callbacks to the supervisor about attempts that start.

    Attributes:
        is_known: returns True if an attempt has a record.
        repeat: reports a known attempt again.
        report_hang: reports that an attempt takes long to start.
        begin: records that the program of an attempt runs.
        abort: kills an attempt before its program starts, with the reason and message of its end.
        end: records the end of an attempt that never ran.
        failed: records an internal error of a start while it is handled.
    """

    is_known: Callable[[str], bool]
    repeat: Callable[[str], None]
    report_hang: Callable[[str, str], None]
    begin: Callable[[PendingStart, Record], None]
    abort: Callable[[PendingStart, str, str], None]
    end: Callable[[Record, str, str], None]
    failed: Callable[[orders.StartOrder, Exception], None]


class StartQueue:
    """Ordered starts: those that wait for their turn, and those that have begun."""

    def __init__(self, starter: AttemptStarter, poller: select.epoll, hooks: StartHooks) -> None:
        self.queue: list[orders.StartOrder] = []
        self.way = SlowStarts(poller)
        self._starter = starter
        self._hooks = hooks
        self._patience_s = 0.0

    def __len__(self) -> int:
        return len(self.queue) + len(self.way)

    def names(self) -> list[str]:
        """Return attempts that neither run nor have ended, but may still run."""
        waiting = [order.id for order in self.queue if not self._hooks.is_known(order.id)]
        return waiting + self.way.names()

    def run(self) -> None:
        """Begin some of the waiting starts. Afterwards each of them runs, has ended or is a slow
        start.
        """
        chosen, self.queue = self.queue[:PER_TURN], self.queue[PER_TURN:]
        begun: list[PendingStart] = []
        self._patience_s = PATIENCE_S
        for order in chosen:
            name = order.id
            forks = self._starter.always_forks(order)
            while must_wait_for_earlier(begun, order, forks=forks):
                self._await(begun.pop(0))
            if self._hooks.is_known(name):
                self._hooks.repeat(name)
                continue
            if name in self.way.names():
                continue
            try:
                begun.append(self._starter.begin(order, self._company(chosen)))
            except NotStartedError as problem:
                self._hooks.end(problem.record, problem.reason, str(problem))
            except Exception as problem:  # the starts that wait behind it must start
                self._hooks.failed(order, problem)
        for other in begun:
            self._await(other)

    def _company(self, chosen: list[orders.StartOrder]) -> task_isolation.Company:
        """Return how many other starts there are at the same time."""
        if self.way:
            return "beside"
        return "alone" if len(chosen) == 1 else "among"

    def _await(self, begun: PendingStart) -> None:
        """Wait for an attempt's program, or set the start aside as a slow one."""
        if begun.child.has_started(self._patience_s):
            self._wait_for_start(begun)
        else:
            self._patience_s = 0.0
            self.way.add(begun)

    def _wait_for_start(self, begun: PendingStart) -> None:
        try:
            self._hooks.begin(begun, self._starter.wait_for_start(begun))
        except NotStartedError as problem:
            self._hooks.end(problem.record, problem.reason, str(problem))
        except Exception as problem:  # the starts that began with it must be recorded
            self._hooks.failed(begun.order, problem)

    def hear(self, handle: int) -> None:
        """Handle a slow start that has reported something or is gone."""
        self._wait_for_start(self.way.take(handle))

    def handle_ended_process(self, pid: int) -> bool:
        """Return True if an ended process was a slow start, after handling it."""
        begun = self.way.with_pid(pid)
        if begun is not None:
            self.hear(begun.child.said)
        return begun is not None

    def stop(self, name: str, reason: str) -> None:
        """End the slow start of an attempt before it runs."""
        for begun in self.way:
            if begun.name == name:
                self._give_up(begun, reason, NEVER_STARTED)

    def stop_all(self, reason: str) -> None:
        """Begin nothing more, and end all slow starts."""
        self.queue = []
        for begun in self.way:
            self._give_up(begun, reason, NEVER_STARTED)

    def enforce(self, now: float, renewed_at: float) -> None:
        """Report starts that hang, and give up those whose time or lease is over."""
        for begun in self.way:
            if now >= begun.until:
                self._give_up(begun, "StartFailed", begun.silence(begun.start_s))
            elif now >= begun.until_with(renewed_at):
                self._give_up(begun, "LeaseExpired", NEVER_STARTED)
            elif begun.told_at is not None and now >= begun.told_at:
                begun.told_at = None
                self._hooks.report_hang(begun.name, begun.silence(TELL_S))

    def _give_up(self, begun: PendingStart, reason: str, message: str) -> None:
        """End a slow start. If it turns out that its program runs, it becomes a normal attempt."""
        self.way.take(begun.child.said)
        if begun.child.has_started():
            self._wait_for_start(begun)
            return
        begun.child.let_go()
        self._hooks.abort(begun, reason, message)
