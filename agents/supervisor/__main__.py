"""Runs the tasks of one node, so that they outlive the agent: ``python -I -S PATH ROOT``.

Orders come from the agent as JSON lines over a Unix socket; records of attempts go back, ends only
after the journal is on disk. It imports only the standard library, stays small, blocks on nothing
but that disk, and never ends because its agent did. An attempt is a folder, created exclusively:
one with neither a live process nor a recorded end is lost.
"""

# No pathlib or contextlib here: they would cost the supervisor memory.
# ruff: noqa: PTH100, PTH102, PTH103, PTH108, PTH208, SIM105

import ctypes
import fcntl
import os
import select
import signal
import socket
import sys
import time
import traceback

if __package__ in {None, ""}:
    # Run as a script in isolated mode, it can import nothing but the standard library and this
    # package.
    sys.path.append(os.path.abspath(__file__).rpartition(f"{os.sep}agents{os.sep}")[0])

from agents.host import processes, session_keyring
from agents.supervisor import (
    connections,
    journal,
    live_attempts,
    orders,
    reaper,
    record_table,
    source_hash,
    spawn,
    start_queue,
    task_isolation,
)
from agents.supervisor.interactive import session_table
from agents.supervisor.supervisor_log import complain

#: How long a supervisor without tasks waits for an agent before it ends.
ALONE_S = 60.0
#: How long a stopping supervisor tries to write down ends.
LAST_FLUSH_S = 10.0
#: Incremented when older agents or supervisors could not understand newer ones.
PROTOCOL = 1
PR_SET_CHILD_SUBREAPER = 36
#: Where agents connect, and where sessions of people in tasks are asked for.
SOCKETS = ("supervisor.sock", "sessions.sock")


class Supervisor:
    """The supervisor's loop: handles orders and ended processes, and reports records."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.table = record_table.RecordTable(root)
        self.isolation = task_isolation.TaskIsolation(
            root, os.environ.get(task_isolation.VARIABLE, "")
        )
        self.attempts = live_attempts.LiveAttempts(
            root, self.table, self.isolation, self.other_children
        )
        self.clients = connections.Clients()
        self.renewed_at = processes.boottime()
        self.edition = source_hash.on_disk()
        self.leaving = False
        self.alone_since: float | None = processes.boottime()
        self.leave_at = 0.0
        facts = processes.process_facts(os.getpid())
        self.reaper = reaper.Reaper(
            reaper.token(os.getpid(), facts[2] if facts else 0),
            root,
            self.isolation.reaper_arguments(),
        )
        self.null = os.open("/dev/null", os.O_RDWR)
        starter = start_queue.AttemptStarter(root, self.isolation, self.reaper.name, self.null)
        hooks = start_queue.StartHooks(
            is_known=self.table.is_known,
            repeat=self.table.repeat,
            report_hang=self.table.report_hang,
            begin=self.attempts.begin,
            abort=self.attempts.abort,
            end=lambda record, reason, message: self.table.end(record, reason, message=message),
            failed=self.could_not_start,
        )
        self.starts = start_queue.StartQueue(starter, self.clients.poller, hooks)
        self.sessions = session_table.SessionTable(
            self.clients.poller, lambda: self.attempts.by_name, self.isolation
        )

    def recover(self) -> None:
        """Kill what ran under an earlier supervisor, and record it as lost."""
        alive = [record for record in self.table.records.values() if record["state"] != "Ended"]
        until = time.monotonic() + processes.RECOVERY_S
        processes.ask_runtimes(self.root)
        if not self.isolation.recover():
            complain("control groups of an earlier supervisor can't be emptied")
        left_s = max(processes.RECOVERY_S_MIN, until - time.monotonic())
        group = self.isolation.tree.group_part
        if not processes.kill_leftovers(self.root, alive, left_s, group=group):
            complain("processes of an earlier supervisor can't be killed; starting next to them")
        for record in alive:
            self.table.end(record, "Lost", message="the node's supervisor died")
        for name in os.listdir(f"{self.root}/attempts"):
            if not journal.can_be_told(name):
                complain(f"attempts/{name!a} is no attempt of mine: its name is no UTF-8")
            elif not self.table.is_known(name):
                # it is unknown if it had secrets
                record = {"id": name, "started_at": None, "secrets": True}
                self.table.end(
                    record, "Lost", message="a directory without a process or an exit record"
                )
        self.table.journal.flush()
        self.table.news = {}

    def on_hello(self, client: connections.ClientConnection) -> None:
        """Send all records to a new agent, and from now on all changes.

        This includes starts that wait or hang: an earlier agent ordered them, and they may still
        run.
        """
        client.greeted = True
        records = self.table.certain()
        records += [{"id": name, "state": "Starting", "pid": 0} for name in self.starts.names()]
        self.clients.send(
            client,
            {
                "hello": os.getpid(),
                "protocol": PROTOCOL,
                "spares": True,
                "code": True,
                "sessions": True,
                "edition": self.edition,
                "records": records,
                "isolation": self.isolation.facts(),
            },
        )

    def on_start(self, order: orders.StartOrder) -> None:
        """Queue a start, so that a burst of starts does not delay the handling of ends."""
        if not self.leaving:
            self.starts.queue.append(order)

    def on_refuse(self, order: orders.RefuseOrder) -> None:
        """Record the end of an attempt that never started, so that it never will."""
        name = order.id
        if self.table.is_known(name):
            self.table.repeat(name)
            return
        try:
            os.mkdir(f"{self.root}/attempts/{name}", 0o700)
        except OSError:
            pass  # it exists, or the disk is full: the record alone prevents a start
        record = {"id": name, "started_at": None, "exit_code": order.exit_code}
        self.table.end(record, order.reason, message=order.message)

    def on_stop(self, order: orders.StopAttemptOrder) -> None:
        """Signal an attempt. A later order can only bring the kill forward."""
        queued = [start for start in self.starts.queue if start.id == order.id]
        if queued and not self.table.is_known(order.id):
            self.starts.queue.remove(queued[0])
            refusal = orders.RefuseOrder(order.id, order.reason, start_queue.NEVER_STARTED)
            self.on_refuse(refusal)
        self.starts.stop(order.id, order.reason)
        attempt = self.attempts.by_name.get(order.id)
        if attempt is not None:
            grace_s = attempt.order.grace_s if order.grace_s is None else order.grace_s
            self.attempts.stop(
                attempt, order.reason, order.signal, grace_s, message=order.message, to=order.to
            )

    def on_renew(self, order: orders.RenewOrder) -> None:
        """Renew leases: the controller answered a request sent at ``at`` on the boot clock."""
        self.renewed_at = max(self.renewed_at, min(order.at, processes.boottime()))

    def on_forget(self, order: orders.ForgetOrder) -> None:
        """Forget ends that the controller knows, whose folders are gone."""
        self.table.forget(order.ids)

    def on_shutdown(self, order: orders.ShutdownOrder) -> None:
        """Stop every task, then end."""
        self.leaving = True
        self.starts.stop_all(order.reason)
        for attempt in self.attempts.by_name.values():
            self.attempts.stop(attempt, order.reason, "SIGTERM", order.grace_s)

    def could_not_start(self, order: orders.StartOrder, problem: Exception) -> None:
        """Record an internal error of a start, which affects only this attempt."""
        self.start_failed(order.id, problem, has_secrets=bool(order.secrets))

    def start_failed(self, name: str, problem: Exception, *, has_secrets: bool) -> None:
        """Record that an attempt will never start, because of the error that is handled."""
        complain(f"internal error in a start: {traceback.format_exc()}")
        if not self.table.is_known(name):
            record = {"id": name, "started_at": None, "secrets": has_secrets}
            self.table.end(record, "StartFailed", message=f"could not be started: {problem!r}")

    def reap(self) -> bool:
        """Collect every process that has ended. Return True if there was one."""
        any_died = False
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return any_died
            if found is None:
                return any_died
            any_died = True
            attempt = self.attempts.process_died(found)
            if found.si_pid == self.reaper.pid:
                os.waitpid(found.si_pid, 0)
                self.reaper.start()
                continue
            if self.starts.handle_ended_process(found.si_pid):
                continue
            if self.sessions.handle_ended_process(found.si_pid):
                continue
            _, status, usage = os.wait4(found.si_pid, 0)
            code = os.waitstatus_to_exitcode(status)
            self.attempts.process_reaped(found.si_pid, attempt, code, usage)

    def other_children(self) -> set[int]:
        """Return children of this process that belong to no live attempt."""
        return {self.reaper.pid} | self.starts.way.pids() | self.sessions.pids()

    def wait_s(self) -> float:
        """Return how long nothing needs to be done unless something comes in; -1 if for ever."""
        if self.starts.queue:
            return 0.0
        moments = self.attempts.moments(self.renewed_at) + self.sessions.moments()
        if self.table.retry_at:
            moments.append(self.table.retry_at)
        if self.alone_since is not None:
            moments.append(self.alone_since + ALONE_S)
        moments += [begun.due(self.renewed_at) for begun in self.starts.way]
        if not moments:
            return -1.0
        # After sleep, a machine's boot clock is ahead of the clock that epoll waits by.
        return min(60.0, max(0.0, min(moments) - processes.boottime()) + 0.001)

    def obey(self, client: connections.ClientConnection, line: bytes) -> None:
        """Carry out one order."""
        try:
            self.carry_out(orders.decode(line), client)
        except orders.BadStartError as error:
            if not self.leaving:
                self.start_failed(error.id, error.problem, has_secrets=error.has_secrets)
        except (ValueError, KeyError, TypeError) as problem:
            complain(f"an order was not understood: {problem!r}")
        except Exception:  # the orders that came with it must be carried out
            complain(f"internal error in an order: {traceback.format_exc()}")

    def carry_out(self, order: orders.Order, client: connections.ClientConnection) -> None:
        """Carry out an order that was understood."""
        match order:
            case orders.HelloOrder():
                self.on_hello(client)
            case orders.StartOrder():
                self.on_start(order)
            case orders.RefuseOrder():
                self.on_refuse(order)
            case orders.StopAttemptOrder():
                self.on_stop(order)
            case orders.RenewOrder():
                self.on_renew(order)
            case orders.ForgetOrder():
                self.on_forget(order)
            case orders.ShutdownOrder():
                self.on_shutdown(order)

    def serve(self, listener: socket.socket, wakeup: int) -> None:
        """Run the loop until told to stop."""
        self.reaper.start()
        for handle in (listener.fileno(), wakeup):
            self.clients.poller.register(handle, select.EPOLLIN)
        while not self.may_leave():
            try:
                self.turn(listener, wakeup)
            except Exception:  # the tasks of a node are worth more than a clean end
                complain(f"internal error: {traceback.format_exc()}")
                time.sleep(0.1)  # one thread: nobody could wake it, and the loop must not spin
        self.sessions.end_all()
        group = self.isolation.tree.group_part
        processes.kill_leftovers(self.root, [], live_attempts.SWEEP_S, group=group)
        self.reaper.dismiss()
        self.isolation.leave()

    def may_leave(self) -> bool:
        """Return True if the supervisor shall end, and no live task or unwritten end prevents it.

        It waits for an unwritten end only for a limited time; its agent does the same.
        """
        if not self.leaving or self.attempts or self.starts:
            return False
        if not self.table.retry_at:
            return True
        now = processes.boottime()
        self.leave_at = self.leave_at or now + LAST_FLUSH_S
        return now >= self.leave_at

    def turn(self, listener: socket.socket, wakeup: int) -> None:
        """Wait until something happens, and handle it."""
        for handle, event in self.clients.poller.poll(self.wait_s()):
            if handle == wakeup:
                os.read(wakeup, 4096)
            elif handle == listener.fileno():
                self.clients.accept(listener)
            elif handle in self.sessions:
                self.sessions.attend(handle)
            elif handle in self.starts.way:
                self.starts.hear(handle)
            elif handle in self.clients:
                client, lines = self.clients.attend(handle, event)
                for line in lines:
                    self.obey(client, line)
        self.starts.run()
        self.reap()
        now = processes.boottime()
        self.starts.enforce(now, self.renewed_at)
        self.attempts.enforce(now, self.renewed_at)
        self.sessions.enforce(now)
        self.attempts.settle()
        self.table.publish(self.clients.tell)
        self.attempts.tidy(processes.boottime())
        if len(self.clients) or self.attempts or self.starts or self.table.retry_at:
            self.alone_since = None
        elif self.alone_since is None:
            self.alone_since = processes.boottime()
        elif processes.boottime() >= self.alone_since + ALONE_S:
            self.leaving = True


def main() -> int:
    """Lock the root folder, recover, and run the loop. Return the exit status."""
    os.umask(0o022)
    root = os.path.realpath(sys.argv[1])
    for folder, mode in ((root, 0o755), (f"{root}/attempts", 0o711), (f"{root}/logs", 0o711)):
        os.makedirs(folder, mode, exist_ok=True)
    lock = os.open(f"{root}/supervisor.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        complain(f"another supervisor holds {root}/supervisor.lock; nothing to do")
        return 3
    for number in spawn.IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        session_keyring.join_new()  # nothing that the agent's parent has in its own is for tasks
    except OSError as problem:
        complain(f"tasks of the agent's own user share its session keyring: {problem}")
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    supervisor = Supervisor(root)
    supervisor.recover()
    os.chdir(root)
    listener, asked = (connections.listen(name) for name in SOCKETS)
    supervisor.sessions.listen(asked)
    supervisor.serve(listener, read)
    for name in SOCKETS:
        os.unlink(f"{root}/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
