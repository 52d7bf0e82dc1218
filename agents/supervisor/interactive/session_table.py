"""The sessions of people in tasks: connections of the agent's session process, and what they start.

A session lives as long as its connection, and all that it has started ends with it. What a session
needs of others is bounded: requests are one line, and nothing here waits. Standard library only.
"""

# ruff: noqa: SIM105

import json
import os
import select
import signal
import socket
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from agents.host import processes
from agents.isolation import cgroups
from agents.supervisor import spawn, task_isolation
from agents.supervisor.interactive import (
    marked_processes,
    port_dialer,
    session_orders,
    session_start,
)
from agents.supervisor.supervisor_log import complain

#: Sessions at a time, each with a connection.
SESSIONS_MAX = 512
#: How long a command may take to start, and what was asked to hang up may take to end.
START_S, HANG_UP_S = 30.0, 2.0
#: When a group that still has a process is looked at again.
AGAIN_S = 0.05


class TaskSession:
    """One connection, and what it has started.

    Attributes:
        name: of the session. attempt: id of the attempt that it is in.
        pid: of the command, or of the child that connects; 0: none.
        marked: first process and control group of the task, if what the command starts is in other
            groups than its own; None: it is not.
        kill_at: when all of it is killed, on the boot clock; None: not yet.
        group: folder of its control group; empty: none.
    """

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self.link: socket.socket | None = link
        self.name = self.attempt = self.group = ""
        self.pid = 0
        self.marked: tuple[int, str] | None = None
        self.child: spawn.SpawnedChild | None = None
        self.handles: tuple[int, ...] = ()
        self.kill_at: float | None = None
        self.inbox = b""
        self.dials = False

    def say(self, message: dict[str, Any], handles: tuple[int, ...] = ()) -> None:
        """Send a message, with handles; one that is not taken at once is lost with the link."""
        if self.link is None:
            return
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            socket.send_fds(self.link, [line], list(handles))
        except OSError:
            pass  # its end is heard of, too

    def let_handles_go(self) -> None:
        """Close what was made for whoever asked."""
        for handle in self.handles:
            os.close(handle)
        self.handles = ()


class SessionTable:
    """All sessions of one supervisor.

    Args:
        poller: of the supervisor's loop, which passes events of handles in this table.
        attempts: those that live, by id.
        isolation: their groups.
        null: handle of ``/dev/null``.
    """

    def __init__(
        self,
        poller: select.epoll,
        attempts: Callable[[], Mapping[str, spawn.Attempt]],
        isolation: task_isolation.TaskIsolation,
    ) -> None:
        self._poller = poller
        self._attempts = attempts
        self._isolation = isolation
        self._by_handle: dict[int, TaskSession] = {}
        self._by_pid: dict[int, TaskSession] = {}
        #: Groups whose last processes have been killed and are going.
        self._left: set[str] = set()
        self._marked = marked_processes.MarkedProcesses()
        self._listener: socket.socket | None = None

    def __contains__(self, handle: int) -> bool:
        return handle in self._by_handle or self._is_listener(handle)

    def __len__(self) -> int:
        return len(self._by_handle) + len(self._by_pid) + len(self._marked)

    def pids(self) -> set[int]:
        """Return the children that belong to sessions."""
        return set(self._by_pid)

    def listen(self, listener: socket.socket) -> None:
        """Accept connections from a listener from now on."""
        self._listener = listener
        self._poller.register(listener.fileno(), select.EPOLLIN)

    def _is_listener(self, handle: int) -> bool:
        return self._listener is not None and handle == self._listener.fileno()

    def _accept(self, listener: socket.socket) -> None:
        """Accept a connection, if there is room for its session."""
        link, _ = listener.accept()
        session = TaskSession(link)
        if len(self._by_handle) >= 2 * SESSIONS_MAX:
            session.say({"error": f"this node has {SESSIONS_MAX} sessions already", "code": 125})
            link.close()
            return
        self._by_handle[link.fileno()] = session
        self._poller.register(link.fileno(), select.EPOLLIN)

    def attend(self, handle: int) -> None:
        """Handle an event of the listener, a connection, or a child that starts."""
        if self._listener is not None and self._is_listener(handle):
            self._accept(self._listener)
            return
        session = self._by_handle[handle]
        if session.link is None or handle != session.link.fileno():
            self._hear(session)
            return
        try:
            data = session.link.recv(2**18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, session.inbox = (session.inbox + data).split(b"\n")
        if not data or len(session.inbox) > session_orders.LINE_BYTES_MAX:
            self._leave(session)
            return
        for line in lines:
            self._obey(session, line)

    def handle_ended_process(self, pid: int) -> bool:
        """Return True if an ended child was a session's, after reaping it."""
        session = self._by_pid.get(pid)
        if session is None:
            return False
        if session.child is not None and session.child.said >= 0:
            self._hear(session)
            if pid not in self._by_pid:
                return True  # it failed to start, and was reaped
        _, status = os.waitpid(pid, 0)
        del self._by_pid[pid]
        session.pid = 0
        if session.dials:
            self._close(session)
            return True
        code = os.waitstatus_to_exitcode(status)
        session.say({"exit": code} if code >= 0 else {"signal": -code})
        self._end_group(session)
        self._close(session)
        return True

    def enforce(self, now: float) -> None:
        """Kill sessions whose time or task is over, and remove empty groups."""
        attempts = self._attempts()
        for session in list(self._by_pid.values()):
            attempt = attempts.get(session.attempt)
            is_over = session.kill_at is not None and now >= session.kill_at
            if is_over or attempt is None or attempt.exited:
                session.kill_at = now + HANG_UP_S
                self._kill(session)
        self._marked.enforce(now)
        for group in list(self._left):
            if cgroups.remove(group):
                self._left.remove(group)
            else:
                cgroups.kill(group, self._isolation.tree.kills_by)

    def moments(self) -> list[float]:
        """Return the moments at which something must be done, on the boot clock."""
        found = [one.kill_at for one in self._by_pid.values() if one.kill_at is not None]
        found += self._marked.moments()
        return [*found, processes.boottime() + AGAIN_S] if self._left else found

    def end_all(self) -> None:
        """Kill all sessions, because the supervisor ends."""
        for session in list(self._by_handle.values()):
            self._leave(session)
        for session in self._by_pid.values():
            self._kill(session)

    def _obey(self, session: TaskSession, line: bytes) -> None:
        try:
            order = session_orders.decode(line)
            if isinstance(order, session_orders.SignalOrder):
                if session.pid and not session.dials and order.number in signal.valid_signals():
                    self._signal(session, order.number)
            elif session.name:
                self._refuse(session, "a connection makes one request")
            else:
                self._begin(session, order)
        except ValueError as problem:
            self._refuse(session, str(problem))
        except session_start.RefusedError as problem:
            self._refuse(session, str(problem))
        except OSError as problem:
            self._refuse(session, f"it can't be started: {problem.strerror}")
        except Exception:  # other sessions and tasks must go on
            complain(f"internal error in a session: {traceback.format_exc()}")
            self._refuse(session, "internal error; the supervisor's log has it")

    def _begin(
        self, session: TaskSession, order: session_orders.ExecOrder | session_orders.ConnectOrder
    ) -> None:
        session.name, session.attempt = order.session, order.attempt
        attempt = self._attempts().get(order.attempt)
        if attempt is None or attempt.exited or attempt.gone_by is not None:
            raise session_start.RefusedError("the task does not run any more")
        if isinstance(order, session_orders.ConnectOrder):
            self._dial(session, order.port, attempt)
            return
        started = session_start.start(order, attempt, self._isolation)
        session.child, session.handles, session.group = started
        if attempt.order.contained and not _holds(started.group, attempt):
            group = self._isolation.groups.get(session.attempt)
            folder = "" if group is None else group.folders[self._isolation.tree.tracks]
            session.marked = attempt.pid, folder
        session.pid = started.child.pid
        session.kill_at = processes.boottime() + START_S
        self._by_pid[session.pid] = session
        self._by_handle[started.child.said] = session
        self._poller.register(started.child.said, select.EPOLLIN)

    def _signal(self, session: TaskSession, number: int) -> None:
        """Signal a command. Its runtime, if it has one, would end without it."""
        found: set[int] = set()
        if session.marked is not None:
            found = marked_processes.marked(session.name, *session.marked)
            found = {pid for pid in found if processes.session_of(pid) != session.pid}
        for pid in found:
            processes.kill(pid, number)
        if not found:
            processes.kill_group(session.pid, number)

    def _hear(self, session: TaskSession) -> None:
        """Handle the report of a command that starts."""
        child = session.child
        assert child is not None  # noqa: S101 - for the type checker
        # closing it is not enough: a child that was forked meanwhile may have it open as well
        self._poller.unregister(child.said)
        del self._by_handle[child.said]
        session.kill_at = None
        try:
            child.wait_for_program()
        except spawn.SpawnError as problem:
            del self._by_pid[session.pid]
            session.pid = 0
            self._end_group(session)
            self._refuse(session, str(problem), problem.exit_code)
            return
        if session.link is None:  # whoever asked has left meanwhile
            self._kill(session)
        session.say({"ok": True}, session.handles)
        session.let_handles_go()

    def _dial(self, session: TaskSession, port: int, attempt: spawn.Attempt) -> None:
        """Have a child connect to a port of the task, and answer by itself."""
        parent, group = os.getpid(), self._isolation.groups.get(session.attempt)
        folder = "" if group is None else group.folders[self._isolation.tree.tracks]
        pid = os.fork()
        if pid == 0:
            try:
                spawn.die_with(parent, signal.SIGKILL)
                signal.set_wakeup_fd(-1)
                port_dialer.give_up_after(2 * port_dialer.DIAL_S)
                _answer(session, port, attempt, folder)
            finally:
                os._exit(0)
        session.pid, session.dials = pid, True
        self._by_pid[pid] = session

    def _refuse(self, session: TaskSession, why: str, code: int = 125) -> None:
        session.say({"error": why, "code": code})
        self._close(session)

    def _leave(self, session: TaskSession) -> None:
        """End a session whose connection has closed: it hangs up, and is killed soon."""
        self._close(session)
        if session.pid and not session.dials:
            self._signal(session, signal.SIGHUP)
            session.kill_at = processes.boottime() + HANG_UP_S

    def _kill(self, session: TaskSession) -> None:
        self._end_marked(session)
        if session.group:
            cgroups.kill(session.group, self._isolation.tree.kills_by)
        processes.kill_group(session.pid, signal.SIGKILL)
        processes.kill(session.pid)

    def _end_group(self, session: TaskSession) -> None:
        """End what a command has left behind."""
        self._end_marked(session)
        if session.group and not cgroups.remove(session.group):
            cgroups.kill(session.group, self._isolation.tree.kills_by)
            self._left.add(session.group)
        session.group = ""

    def _end_marked(self, session: TaskSession) -> None:
        """Kill what a command's runtime has put elsewhere: after a moment, if it was hung up."""
        if session.marked is not None:
            at = processes.boottime() + (HANG_UP_S if session.link is None else 0.0)
            self._marked.end(session.name, *session.marked, at)

    def _close(self, session: TaskSession) -> None:
        """Close the connection of a session."""
        session.let_handles_go()
        if session.link is not None:
            handle = session.link.fileno()
            if self._by_handle.pop(handle, None) is not None:
                self._poller.unregister(handle)
            session.link.close()
            session.link = None


def _holds(group: str, attempt: spawn.Attempt) -> bool:
    """Return True if a group holds all that a command starts by the runtime of a container."""
    user = attempt.order.user
    return bool(group) and (os.geteuid() if user is None else user.uid) != 0


def _answer(session: TaskSession, port: int, attempt: spawn.Attempt, group: str) -> None:
    """Connect and send the connection, in the child of :meth:`SessionTable._dial`."""
    try:
        link = port_dialer.dial(port, attempt.pid, group, attempt.order.user)
    except port_dialer.NoListenerError as problem:
        session.say({"error": str(problem), "code": 125})
    except OSError as problem:
        session.say({"error": f"port {port} of the task: {problem.strerror or problem}",
                     "code": 125})  # fmt: skip
    else:
        session.say({"ok": True}, (link.fileno(),))
