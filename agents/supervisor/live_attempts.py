"""Attempts whose processes live: stops them, enforces leases and grace periods, records ends.

Standard library only.
"""

import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

from agents.host import failpoints, processes
from agents.supervisor import (
    exit_reasons,
    orphans,
    spawn,
    start_queue,
    stop_signals,
    task_isolation,
)
from agents.supervisor.record_table import Record, RecordTable
from agents.supervisor.supervisor_log import complain

#: How long an attempt's end may wait until descendants that were killed are gone.
SWEEP_S = 10.0
#: How often a kill is repeated while something of an attempt lives.
KILL_AGAIN_S = 2.0
#: Delay after an end before unused control groups are removed.
TIDY_S = 1.0
#: How soon an attempt that has exited is checked for processes that are left.
CHECK_AGAIN_S = 0.05
#: The same while the rest of an attempt may go on; the end of what it adopted wakes the supervisor.
REST_AGAIN_S = 0.5


class LiveAttempts:
    """The live attempts of one supervisor.

    Attributes:
        by_name: attempts by name.
        tidy_at: when to remove unused control groups, on the boot clock; None: there are none.

    Args:
        others: returns process ids of the supervisor's children that belong to no attempt here.
    """

    def __init__(
        self,
        root: str,
        table: RecordTable,
        isolation: task_isolation.TaskIsolation,
        others: Callable[[], set[int]],
    ) -> None:
        self.by_name: dict[str, spawn.Attempt] = {}
        self.tidy_at: float | None = None
        self._table = table
        self._isolation = isolation
        self._others = others
        self._by_pid: dict[int, spawn.Attempt] = {}
        self._orphans = orphans.OrphanFinder(root, isolation.owner_of)
        #: Processes of attempts that are over, which not even SIGKILL has ended.
        self._stuck: set[int] = set()
        #: Attempts whose processes have not got the signal that asks to save yet.
        self._to_ask: list[spawn.Attempt] = []

    def __len__(self) -> int:
        return len(self.by_name)

    def begin(self, start: start_queue.PendingStart, record: Record) -> None:
        """Record an attempt as running, because its program has started."""
        attempt = spawn.Attempt(start.order, record)
        self.by_name[start.name] = self._by_pid[attempt.pid] = attempt
        self._table.begin(record)

    def abort(self, start: start_queue.PendingStart, reason: str, message: str) -> None:
        """Kill an attempt before its program starts.

        From now on it never gets its program, even if its process cannot end yet. Its end is
        recorded like that of any attempt, or once it has been waited for long enough.
        """
        now = processes.boottime()
        # Without its process id: the next supervisor need not wait for it.
        record = start.record | {"state": "Stopping", "pid": 0, "ticks": 0, **start.kept}
        attempt = spawn.Attempt(start.order, record)
        attempt.pid, attempt.why, attempt.message = start.child.pid, reason, message
        attempt.kill_at, attempt.gone_by = now + KILL_AGAIN_S, now + SWEEP_S
        self.by_name[start.name] = self._by_pid[attempt.pid] = attempt
        self._table.put(record)
        self._isolation.kill(start.name)
        processes.kill(attempt.pid)

    def stop(
        self,
        attempt: spawn.Attempt,
        reason: str,
        signal_name: str,
        grace_s: float,
        *,
        message: str = "",
        to: str = "",
    ) -> None:
        """Signal an attempt, and kill it after ``grace_s``; a later call only shortens that.

        Args:
            to: who gets a signal that asks to save, with the next :meth:`enforce`; empty: the
                process group, at once.
        """
        kill_at = processes.boottime() + grace_s
        if attempt.rest_until > kill_at:
            attempt.rest_until, attempt.deadline = kill_at, kill_at + SWEEP_S
        if attempt.exited:
            return
        if attempt.why:
            attempt.kill_at = min(attempt.kill_at or kill_at, kill_at)
            return
        attempt.why, attempt.kill_at, attempt.stopped = reason, kill_at, message
        attempt.record = {**attempt.record, "state": "Stopping"}
        self._table.put(attempt.record)
        number = stop_signals.number_of(signal_name)
        if to:
            attempt.saves_on, attempt.to = number, to
            self._to_ask.append(attempt)
        else:
            processes.kill_group(attempt.pid, number)

    def _ask_to_save(self) -> None:
        """Signal those processes of stopping attempts that save, after one look at all."""
        attempts = [attempt for attempt in self._to_ask if not attempt.exited]
        self._to_ask = []
        if not attempts:
            return
        for attempt, pids in self._orphans.trees(attempts, self.by_name, self._spared()):
            task = stop_signals.facts_of(pids, attempt.saves_on)
            for pid in stop_signals.receivers(attempt.pid, task, attempt.to):
                processes.kill(pid, attempt.saves_on)
            if not any(facts.handles for facts in task.values()):
                attempt.saves_on = 0  # nothing saves: what it has just started need not go on

    def process_died(self, died: os.waitid_result) -> spawn.Attempt | None:
        """Return the attempt of a dead main process, whose process group is killed.

        If it died of the very signal that asks to save, the rest may be what saves: it goes on for
        the grace.
        """
        attempt = self._by_pid.pop(died.si_pid, None)
        if attempt is None:
            return None
        was_killed = died.si_code in {os.CLD_KILLED, os.CLD_DUMPED}
        if attempt.kill_at and was_killed and died.si_status == attempt.saves_on:
            attempt.rest_until = attempt.kill_at
        else:
            processes.kill_group(attempt.pid, signal.SIGKILL)
        return attempt

    def process_reaped(
        self, pid: int, attempt: spawn.Attempt | None, exit_code: int, usage: Any
    ) -> None:
        """Note how a process ended and what it used, its children included."""
        self._stuck.discard(pid)
        self._orphans.forget_process(pid)
        if attempt is None:
            return
        attempt.exited = True
        attempt.deadline = max(attempt.rest_until, processes.boottime()) + SWEEP_S
        attempt.record = attempt.record | {
            "exit_code": exit_code if exit_code >= 0 else None,
            "signal": -exit_code if exit_code < 0 else None,
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
            "max_memory_bytes": usage.ru_maxrss * 1024,
            "read_bytes": usage.ru_inblock * 512,
            "written_bytes": usage.ru_oublock * 512,
        }

    def settle(self) -> None:
        """Record the end of attempts whose processes are all gone."""
        exited = [attempt for attempt in self.by_name.values() if attempt.exited]
        if not exited:
            return
        now = processes.boottime()
        # The processes of a container runtime clean up after the container: they get time for it.
        patient = {
            attempt.record["id"]
            for attempt in exited
            if now < attempt.rest_until
            or (attempt.order.cleanup and now < attempt.deadline - SWEEP_S / 2)
        }
        left = self._orphans.sweep(self.by_name, self._spared(), patient, self._isolation.strayed)
        for attempt in exited:
            name = attempt.record["id"]
            stays = self._isolation.left(name, kill=name not in patient) or name in left
            if stays and now < attempt.deadline:
                continue
            failpoints.reach("exited-not-recorded")
            self._conclude(attempt, stays=stays)

    def _conclude(self, attempt: spawn.Attempt, *, stays: bool) -> None:
        """Record the end of an attempt. ``stays``: a process of it could not be killed."""
        name = attempt.record["id"]
        del self.by_name[name]
        self._orphans.forget(name)
        try:
            usage = self._isolation.close(name, contained=bool(attempt.order.cleanup))
        except Exception:  # its end is recorded without its usage
            complain(f"internal error in the end of {name}: {traceback.format_exc()}")
            usage = {}
        record, reason, message = exit_reasons.of_end(attempt, usage, stays=stays)
        self._table.end(record, reason, message=message)
        self.tidy_at = self.tidy_at or processes.boottime() + TIDY_S

    def enforce(self, now: float, renewed_at: float) -> None:
        """Stop attempts whose lease is over, and kill those whose time to stop is over."""
        overdue = []
        for attempt in list(self.by_name.values()):
            if attempt.gone_by is not None and now >= attempt.gone_by and not attempt.exited:
                self._stuck.add(attempt.pid)
                del self._by_pid[attempt.pid]
                self._conclude(attempt, stays=True)
                continue
            lease_s = attempt.lease_s
            if lease_s is not None and not attempt.why and now >= renewed_at + lease_s:
                order = attempt.order
                grace_s = float(order.grace_s)
                to = order.checkpoint_to
                self.stop(attempt, "LeaseExpired", order.checkpoint_signal, grace_s, to=to)
            if attempt.kill_at is not None and now >= attempt.kill_at and not attempt.exited:
                overdue.append(attempt)
                attempt.kill_at = now + KILL_AGAIN_S
        self._ask_to_save()
        if overdue:
            for attempt in overdue:
                self._isolation.kill(attempt.record["id"])
            self._orphans.kill_trees(overdue, self.by_name, self._spared())

    def tidy(self, now: float) -> None:
        """Remove control groups that nobody uses, if it is time for it."""
        if self.tidy_at is not None and now >= self.tidy_at:
            again_s = self._isolation.tidy()
            self.tidy_at = None if again_s is None else processes.boottime() + again_s

    def moments(self, renewed_at: float) -> list[float]:
        """Return the moments at which something must be done, on the boot clock."""
        moments = [self.tidy_at] if self.tidy_at else []
        for attempt in self.by_name.values():
            if attempt.exited:
                now = processes.boottime()
                rests = now < attempt.rest_until
                again = min(now + REST_AGAIN_S, attempt.rest_until) if rests else now
                moments.append(again if rests else now + CHECK_AGAIN_S)
            elif attempt.kill_at is not None:
                moments.append(min(attempt.kill_at, attempt.gone_by or attempt.kill_at))
            elif attempt.lease_s is not None:
                moments.append(renewed_at + attempt.lease_s)
        return moments

    def _spared(self) -> set[int]:
        """Return children of the supervisor that are no orphans of attempts."""
        return self._others() | self._stuck
