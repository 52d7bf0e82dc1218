"""Keeps the tasks of one node, so that they outlive the agent: ``python -I -S PATH ROOT``.

It alone starts tasks, reaps them and writes the journal. Orders come in from the agent as JSON
lines over a Unix socket; records of attempts go back, an end only after the journal holding it is
on disk (one fdatasync for all ends of a turn of the loop). It must import nothing but the standard
library, stay small, never block on anything but that disk, and never end because its agent did.

An attempt is its directory, made exclusively; a directory that has neither a live process nor an
end in the journal is lost. A supervisor that starts ends whatever a predecessor left running.
"""

# No pathlib or contextlib here: they would cost the supervisor memory.
# ruff: noqa: PTH100, PTH102, PTH103, PTH108, PTH208, SIM105

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any

if __package__ in {None, ""}:
    # Run as a script in isolated mode: its own package is the only other thing to be found.
    sys.path.append(os.path.abspath(__file__).rpartition(f"{os.sep}agents{os.sep}")[0])

from agents.host import failpoints, processes
from agents.supervisor import (
    connections,
    exit_reasons,
    journal,
    orphans,
    reaper,
    source_hash,
    spawn,
    start_queue,
    task_isolation,
)

Record = dict[str, Any]

#: How long a supervisor without tasks waits for an agent before it leaves.
ALONE_S = 60.0
#: How long one that was told to leave keeps trying to write down what has ended.
LAST_FLUSH_S = 10.0
#: Grows when an older agent could not understand this supervisor, or an older supervisor it.
PROTOCOL = 1
#: How long an attempt's end may wait for descendants that were killed to be gone.
SWEEP_S = 10.0
#: How often a kill is repeated while something of an attempt lives.
KILL_AGAIN_S = 2.0
#: How long after an end it is looked which control groups are to go.
TIDY_S = 1.0
LOG_BYTES_MAX = 2**20
PR_SET_CHILD_SUBREAPER = 36


def complain(text: str) -> None:
    """Write a line to the log, which never grows above its limit."""
    try:
        if os.fstat(2).st_size > LOG_BYTES_MAX:
            os.ftruncate(2, 0)
        os.write(2, f"{time.strftime('%Y-%m-%dT%H:%M:%S')} supervisor: {text}\n".encode())
    except OSError:
        pass


class Supervisor:
    """The loop: orders and deaths come in, records go out."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.journal = journal.Journal(f"{root}/journal")
        self.records: dict[str, Record] = {
            name: record
            for name, record in journal.read(self.journal.path).items()
            if journal.can_be_told(name)
        }
        self.live: dict[str, spawn.Attempt] = {}
        self.by_pid: dict[int, spawn.Attempt] = {}
        self.sweeper = orphans.OrphanFinder(root)
        self.held = task_isolation.TaskIsolation(root, os.environ.get(task_isolation.VARIABLE, ""))
        #: Processes that not even a kill ended, of attempts that are over.
        self.stuck: set[int] = set()
        self.news: dict[str, Record] = {}
        self.clients = connections.Clients()
        self.renewed_at = processes.boottime()
        self.edition = source_hash.on_disk()
        self.leaving = False
        self.retry_at = 0.0
        self.alone_since: float | None = processes.boottime()
        self.tidy_at: float | None = None
        self.leave_at = 0.0
        facts = processes.process_facts(os.getpid())
        self.guardian = reaper.Reaper(
            reaper.token(os.getpid(), facts[2] if facts else 0), root, self.held.for_guardian()
        )
        self.null = os.open("/dev/null", os.O_RDWR)
        starter = start_queue.Starter(root, self.held, self.guardian.name, self.null)
        self.starts = start_queue.Starts(starter, self.clients.poller, self)
        self.orders = {
            "hello": self.on_hello, "start": self.on_start, "refuse": self.on_refuse,
            "stop": self.on_stop, "renew": self.on_renew, "forget": self.on_forget,
            "shutdown": self.on_shutdown,
        }  # fmt: skip

    def recover(self) -> None:
        """End whatever ran under an earlier supervisor, and record it as lost."""
        alive = [record for record in self.records.values() if record["state"] != "Ended"]
        processes.ask_runtimes(self.root)
        if not self.held.recover():
            complain("control groups of an earlier supervisor can't be emptied")
        if not processes.kill_leftovers(self.root, alive):
            complain("processes of an earlier supervisor can't be killed; starting beside them")
        for record in alive:
            self.end(record, "Lost", message="the node's supervisor died")
        for name in os.listdir(f"{self.root}/attempts"):
            if not journal.can_be_told(name):
                complain(f"attempts/{name!a} is no attempt of mine: its name is no UTF-8")
            elif name not in self.records:
                # whether it had secrets is not known either
                record = {"id": name, "started_at": None, "secrets": True}
                self.end(record, "Lost", message="a directory without a process or an exit record")
        self.journal.flush()
        self.news = {}

    def on_hello(self, _order: Record, client: connections.ClientConnection) -> None:
        """A new agent: it gets every record there is, and from now on all changes.

        It hears of starts that wait or hang as well: an agent before it ordered them, and they may
        run yet.
        """
        client.greeted = True
        records = [self.certain(record) for record in self.records.values()]
        records += [{"id": name, "state": "Starting", "pid": 0} for name in self.starts.names()]
        self.clients.send(
            client,
            {
                "hello": os.getpid(),
                "protocol": PROTOCOL,
                "spares": True,
                "edition": self.edition,
                "records": records,
                "isolation": self.held.facts(),
            },
        )

    def certain(self, record: Record) -> Record:
        """What is told of an attempt at any time: no end that is not on disk yet.

        Such a one is among the news, and told with them: a full disk may keep it waiting.
        """
        if record["state"] != "Ended" or record["id"] not in self.news:
            return record
        return {
            "id": record["id"], "state": "Stopping", "pid": record.get("pid", 0),
            "started_at": record.get("started_at"),
        }  # fmt: skip

    def on_start(self, order: Record, _client: connections.ClientConnection) -> None:
        """Queue a start, so that a burst of them does not keep exits waiting."""
        if not self.leaving:
            self.starts.queue.append(order)

    def on_refuse(self, order: Record, _client: connections.ClientConnection) -> None:
        """Record an end of an attempt that never started, so that it never will."""
        name = order["id"]
        if name in self.records:
            self.news[name] = self.records[name]
            return
        try:
            os.mkdir(f"{self.root}/attempts/{name}", 0o700)
        except OSError:
            pass  # it is there, or the disk is full: the record alone keeps it from ever starting
        record = {"id": name, "started_at": None, "exit_code": order.get("exit_code")}
        self.end(record, order["reason"], message=order.get("message", ""))

    def on_stop(self, order: Record, _client: connections.ClientConnection) -> None:
        """Signal an attempt; a later order can only bring the kill nearer."""
        queued = [start for start in self.starts.queue if start["id"] == order["id"]]
        if queued and order["id"] not in self.records:
            self.starts.queue.remove(queued[0])
            self.on_refuse({**order, "message": start_queue.NEVER_STARTED}, _client)
        self.starts.stop(order["id"], order["reason"])
        attempt = self.live.get(order["id"])
        if attempt is not None:
            grace_s = order.get("grace_s")
            if grace_s is None:
                grace_s = attempt.order["grace_s"]
            self.stop(attempt, order["reason"], order["signal"], float(grace_s))

    def on_renew(self, order: Record, _client: connections.ClientConnection) -> None:
        """The controller answered a request sent at ``at`` on the boot clock."""
        self.renewed_at = max(self.renewed_at, min(float(order["at"]), processes.boottime()))

    def on_forget(self, order: Record, _client: connections.ClientConnection) -> None:
        """Ends that the controller has, and whose directories are gone."""
        names = [n for n in order["ids"] if self.records.get(n, {}).get("state") == "Ended"]
        for name in names:
            del self.records[name]
        if names:
            self.journal.add({"forget": names}, sync=False)

    def on_shutdown(self, order: Record, _client: connections.ClientConnection) -> None:
        """Stop every task, then leave."""
        self.leaving = True
        self.starts.stop_all(order["reason"])
        for attempt in self.live.values():
            self.stop(attempt, order["reason"], "SIGTERM", float(order["grace_s"]))

    def stop(self, attempt: spawn.Attempt, reason: str, name: str, grace_s: float) -> None:
        """Ask an attempt to leave, and set the moment of the kill."""
        kill_at = processes.boottime() + grace_s
        if attempt.exited:
            return
        if attempt.why:
            attempt.kill_at = min(attempt.kill_at or kill_at, kill_at)
            return
        attempt.why, attempt.kill_at = reason, kill_at
        attempt.record = {**attempt.record, "state": "Stopping"}
        self.records[attempt.record["id"]] = self.news[attempt.record["id"]] = attempt.record
        number = signal.Signals.__members__.get(name, signal.SIGTERM)
        processes.kill_group(attempt.pid, number)

    def repeat(self, name: str) -> None:
        """Tell of an attempt again, as one that was ordered twice."""
        self.news[name] = self.records[name]

    def hangs(self, name: str, message: str) -> None:
        """Tell of an attempt that is long on its way to its program."""
        self.news[name] = {"id": name, "state": "Starting", "pid": 0, "message": message}

    def began(self, begun: start_queue.PendingStart, record: Record) -> None:
        """Record an attempt as running: its program has begun."""
        attempt = spawn.Attempt(begun.order, record)
        self.live[begun.name] = self.by_pid[attempt.pid] = attempt
        self.records[begun.name] = self.news[begun.name] = record
        self.journal.add({"record": record}, sync=False)

    def doomed(self, begun: start_queue.PendingStart, reason: str, message: str) -> None:
        """Kill an attempt that is on its way: from then on it never gets its program, even where
        it can't go yet. It ends as one that ran does, or when it was waited for long enough."""
        now = processes.boottime()
        # without its number: a supervisor that follows this one needn't wait for it
        record = begun.record | {"state": "Stopping", "pid": 0, "ticks": 0, **begun.kept}
        attempt = spawn.Attempt(begun.order, record)
        attempt.pid, attempt.why, attempt.message = begun.child.pid, reason, message
        attempt.kill_at, attempt.gone_by = now + KILL_AGAIN_S, now + SWEEP_S
        self.live[begun.name] = self.by_pid[attempt.pid] = attempt
        self.records[begun.name] = self.news[begun.name] = record
        self.held.kill(begun.name)
        processes.kill(attempt.pid)

    def could_not_start(self, order: Record, problem: Exception) -> None:
        """A defect, told while it is handled: it costs this attempt alone."""
        complain(f"defect in a start: {traceback.format_exc()}")
        if order["id"] not in self.records:
            record = {"id": order["id"], "started_at": None}
            record["secrets"] = bool(order.get("secrets"))
            self.end(record, "StartFailed", message=f"could not be started: {problem!r}")

    def end(self, record: Record, reason: str, *, message: str = "") -> None:
        """Make an end durable with the next flush, and have it told after that."""
        if record.get("secrets"):
            spawn.remove_secrets(self.root, record["id"])
        ended = {**record, "state": "Ended", "end_reason": reason, "ended_at": time.time()}
        ended["message"] = message
        self.records[record["id"]] = self.news[record["id"]] = ended
        self.journal.add({"record": ended}, sync=True)

    def reap(self) -> bool:
        """Collect every process that has died. A main process takes its group along."""
        any_died = False
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return any_died
            if found is None:
                return any_died
            any_died = True
            attempt = self.by_pid.pop(found.si_pid, None)
            if attempt is not None:
                processes.kill_group(attempt.pid, signal.SIGKILL)
            if found.si_pid == self.guardian.pid:
                os.waitpid(found.si_pid, 0)
                self.guardian.start()
                continue
            if self.starts.heard_of(found.si_pid):
                continue
            self.stuck.discard(found.si_pid)
            self.sweeper.forget_process(found.si_pid)
            _, status, usage = os.wait4(found.si_pid, 0)
            if attempt is not None:
                code = os.waitstatus_to_exitcode(status)
                attempt.exited, attempt.deadline = True, processes.boottime() + SWEEP_S
                attempt.record = attempt.record | {
                    "exit_code": code if code >= 0 else None,
                    "signal": -code if code < 0 else None,
                    "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
                    "max_memory_bytes": usage.ru_maxrss * 1024,
                    "read_bytes": usage.ru_inblock * 512,
                    "written_bytes": usage.ru_oublock * 512,
                }

    def settle(self) -> None:
        """Record the end of attempts whose processes are all gone."""
        gone = [attempt for attempt in self.live.values() if attempt.exited]
        if not gone:
            return
        now = processes.boottime()
        # a container's own processes tidy up after it: they have time for that
        patient = {
            attempt.record["id"]
            for attempt in gone
            if attempt.order.get("cleanup") and now < attempt.deadline - SWEEP_S / 2
        }
        left = self.sweeper.sweep(self.live, self.spared(), patient, self.held.strayed)
        for attempt in gone:
            name = attempt.record["id"]
            stays = self.held.left(name, kill=name not in patient) or name in left
            if stays and now < attempt.deadline:
                continue
            failpoints.reach("exited-not-recorded")
            self.conclude(attempt, stays=stays)

    def conclude(self, attempt: spawn.Attempt, *, stays: bool) -> None:
        """Record the end of an attempt; ``stays``: something of it could not be killed."""
        name = attempt.record["id"]
        del self.live[name]
        self.sweeper.forget(name)
        try:
            kernel = self.held.close(name, contained=bool(attempt.order.get("cleanup")))
        except Exception:  # what it used is not known then; how it ended is
            complain(f"defect in the end of {name}: {traceback.format_exc()}")
            kernel = {}
        record, reason, message = exit_reasons.of_end(attempt, kernel, stays=stays)
        self.end(record, reason, message=message)
        self.tidy_at = self.tidy_at or processes.boottime() + TIDY_S

    def spared(self) -> set[int]:
        """Children that are no orphans of tasks."""
        return {self.guardian.pid} | self.starts.way.pids() | self.stuck

    def enforce(self) -> None:
        """Act on leases that have run out, on graces that are over and on starts that hang."""
        now = processes.boottime()
        self.starts.enforce(now, self.renewed_at)
        overdue = []
        for attempt in list(self.live.values()):
            if attempt.gone_by is not None and now >= attempt.gone_by and not attempt.exited:
                self.stuck.add(attempt.pid)
                del self.by_pid[attempt.pid]
                self.conclude(attempt, stays=True)
                continue
            lease_s = attempt.lease_s
            if lease_s is not None and not attempt.why and now >= self.renewed_at + lease_s:
                order = attempt.order
                grace_s = float(order["grace_s"])
                self.stop(attempt, "LeaseExpired", order["checkpoint_signal"], grace_s)
            if attempt.kill_at is not None and now >= attempt.kill_at and not attempt.exited:
                overdue.append(attempt)
                attempt.kill_at = now + KILL_AGAIN_S
        if overdue:
            for attempt in overdue:
                self.held.kill(attempt.record["id"])
            self.sweeper.kill_trees(overdue, self.live, self.spared())

    def wait_s(self) -> float:
        """Until when nothing has to be done unless something comes in."""
        if self.starts.queue:
            return 0.0
        moments = [moment for moment in (self.retry_at, self.tidy_at) if moment]
        if self.alone_since is not None:
            moments.append(self.alone_since + ALONE_S)
        moments += [begun.due(self.renewed_at) for begun in self.starts.way]
        for attempt in self.live.values():
            if attempt.exited:
                moments.append(processes.boottime() + 0.05)
            elif attempt.kill_at is not None:
                moments.append(min(attempt.kill_at, attempt.gone_by or attempt.kill_at))
            elif attempt.lease_s is not None:
                moments.append(self.renewed_at + attempt.lease_s)
        if not moments:
            return -1.0
        # A machine that sleeps wakes with a boot clock ahead of the one that epoll waits by.
        return min(60.0, max(0.0, min(moments) - processes.boottime()) + 0.001)

    def obey(self, client: connections.ClientConnection, line: bytes) -> None:
        """Carry out one order."""
        try:
            order = json.loads(line)
            self.orders[order["op"]](order, client)
        except (ValueError, KeyError, TypeError) as problem:
            complain(f"an order was not understood: {problem!r}")
        except Exception:  # those that came with it are to be carried out
            complain(f"defect in an order: {traceback.format_exc()}")

    def publish(self) -> None:
        """Make the turn's ends durable, then tell everyone what changed."""
        try:
            if self.journal.doubtful:
                self.journal.renew(list(self.records.values()))
            self.journal.flush()
        except OSError as problem:
            complain(f"journal {self.journal.path}: {problem}; trying again in a second")
            self.retry_at = processes.boottime() + 1.0
            return
        self.retry_at = 0.0
        try:
            self.journal.compact(list(self.records.values()))
        except OSError as problem:
            complain(f"journal {self.journal.path} can't be written anew: {problem}")
        if self.news:
            message = {"records": list(self.news.values())}
            self.news = {}
            self.clients.tell(message)

    def serve(self, listener: socket.socket, wakeup: int) -> None:
        """Turn after turn until told to leave."""
        self.guardian.start()
        for handle in (listener.fileno(), wakeup):
            self.clients.poller.register(handle, select.EPOLLIN)
        while not self.may_leave():
            try:
                self.turn(listener, wakeup)
            except Exception:  # the tasks of a node are worth more than a clean end
                complain(f"defect: {traceback.format_exc()}")
                time.sleep(0.1)
        processes.kill_leftovers(self.root, [], SWEEP_S)
        self.guardian.dismiss()
        self.held.leave()

    def may_leave(self) -> bool:
        """Whether it was told to leave, or is alone, and nothing keeps it: a task that lives, or an
        end that is on no disk yet. For such a one it waits a while only; its agent does as well."""
        if not self.leaving or self.live or self.starts:
            return False
        if not self.retry_at:
            return True
        now = processes.boottime()
        self.leave_at = self.leave_at or now + LAST_FLUSH_S
        return now >= self.leave_at

    def turn(self, listener: socket.socket, wakeup: int) -> None:
        """Wait for something to happen and see to it."""
        for handle, event in self.clients.poller.poll(self.wait_s()):
            if handle == wakeup:
                os.read(wakeup, 4096)
            elif handle == listener.fileno():
                self.clients.accept(listener)
            elif handle in self.starts.way:
                self.starts.hear(handle)
            elif handle in self.clients:
                client, lines = self.clients.attend(handle, event)
                for line in lines:
                    self.obey(client, line)
        self.starts.run()
        self.reap()
        self.enforce()
        self.settle()
        self.publish()
        if self.tidy_at is not None and processes.boottime() >= self.tidy_at:
            in_s = self.held.tidy()
            self.tidy_at = None if in_s is None else processes.boottime() + in_s
        if len(self.clients) or self.live or self.starts or self.retry_at:
            self.alone_since = None
        elif self.alone_since is None:
            self.alone_since = processes.boottime()
        elif processes.boottime() >= self.alone_since + ALONE_S:
            self.leaving = True


def main() -> int:
    """Take the lock of ROOT, recover, serve."""
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
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.umask(0o022)
    supervisor = Supervisor(root)
    supervisor.recover()
    os.chdir(root)
    listener = connections.listen("supervisor.sock")
    supervisor.serve(listener, read)
    os.unlink(f"{root}/supervisor.sock")
    return 0


if __name__ == "__main__":
    sys.exit(main())
