"""The agent around its state machine: threads, sockets and files.

The main thread hears the supervisor; one thread holds a long poll to the controller; one reports
at once what changed here; one deletes and prunes; one looks at GPUs where there may be any.
Whatever they learn goes through the state machine under one lock, and the steps that come out are
carried out under it too.
"""

import contextlib
import fcntl
import os
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from agents import (
    carrying,
    checks,
    confinement,
    crashpoints,
    epochs,
    fabric,
    gates,
    gpuwatch,
    inventory,
    jobdata,
    keeper,
    logs,
    orders,
    probe,
    processes,
    simulated,
    state,
    tasks,
    trash,
    voice,
)
from agents.link import Connection, LinkError, RejectedError, Target, packed, understand
from agents.settings import Settings
from reconciler.model.checks import Plan, Result
from reconciler.model.devices import GpuProcess, GpuUsage
from reconciler.model.records import Inventory
from reconciler.model.states import AttemptState, EndReason
from reconciler.model.wire import SyncRequest, SyncResponse

#: Changes that come within this time of each other are one report.
BATCH_S = 0.012
#: After so long without a report the first change is told at once.
QUIET_S = 0.05
BACKOFF_S_MIN = 0.2
BACKOFF_S_MAX = 10.0
#: How much longer than it asked the server to wait the agent waits for the answer.
ANSWER_SLACK_S = 15.0
#: A server that answers polls at once with nothing new is asked no faster than this.
POLL_GAP_S = 0.05
ROTATE_EVERY_S = 5.0
PRUNE_EVERY_S = 300.0
#: An agent that is to start anew first tells that it will.
RESTART_AFTER_S = 1.0


class OccupiedError(Exception):
    """Another agent works in this root."""


class Agent:
    """One node's agent."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.root = settings.root
        self.lock = threading.RLock()
        self.leaving = threading.Event()
        self.changed = threading.Event()
        self.clean = threading.Event()
        self.look_now = threading.Event()
        self.plan: Plan | None = None
        self.gpu_seen: tuple[GpuUsage, ...] = ()
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.incarnation = os.urandom(8).hex()
        self.sequence = 0
        token = tasks.read_token(settings.token_file) if settings.token_file else ""
        self.target = Target(settings.server, token)
        self.target.parts()
        self.voice = voice.Voice(settings.name, settings.log_format)
        self.say = self.voice.say
        self._orphaned = False
        self._restarting = False

    def prepare(self) -> None:
        """Take the root and find out what the node is."""
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._lock_file = os.open(self.root / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OccupiedError(
                f"another agent works in {self.root} (it holds agent.lock); stop it, or give this "
                "one a root of its own"
            ) from None
        shared = self.settings.shared or self.root / "shared"
        shared.mkdir(parents=True, exist_ok=True)
        for folder in ("attempts", "logs", "trash"):
            (self.root / folder).mkdir(mode=0o711, exist_ok=True)
        self.inventory = inventory.inventory_of(self.settings)
        self.boot_id = inventory.boot_id_of(self.settings)
        self.state = state.NodeState(self.boot_id, epochs.load(self.root, self.voice))
        self.gpu_usage: tuple[GpuUsage, ...] | None = None
        self.probe = probe.Probe()
        self.keeper = keeper.Keeper(self.root, self.settings.isolation)
        self.trash = trash.Trash(self.root / "trash")
        place = tasks.Place(
            name=self.settings.name,
            root=str(self.root),
            shared=os.path.realpath(shared),
            gpus=self.inventory.gpus,
            as_root=self.inventory.runs_as_root,
            podman=self.settings.podman,
            fabric=fabric.settings(
                self.inventory.host, fabric.interface_of(self.inventory.address)
            ),
        )
        self.carrier = carrying.Carrier(self.settings, place, self.trash, self.lock)
        self.checker = checks.Checker(self.root)
        self.gate = self.carrier.gate = gates.Gate(self, self.lock)
        self.words = jobdata.Words(self.root, place.shared)
        self.orders = orders.Orders(self.root, self.boot_id, self, self.changed.set)
        if self.orders.reports():
            self.state.remedies = None
        self.sampler = inventory.Sampler(self.root)
        self.followers = logs.Followers(
            self.root / "logs", self.settings.name, self.target, self._has_ended
        )

    def run(self) -> int:
        """Work until told to leave."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.leave())
        self.prepare()
        self._begin_watching_gpus()
        self._meet_supervisor()
        for work in (
            self._poll,
            self._report,
            self._tidy,
            self.orders.work,
            self._check,
            self.gate.turn,
            *self.words.loops(self.lock, self.state, self.leaving),
        ):
            threading.Thread(target=self._keep_at, args=(work,), daemon=True).start()
        self.clean.set()
        self._listen()
        if self._orphaned or (self.settings.stop_tasks_on_exit and not self._restarting):
            self._stop_all()
        return 0

    def leave(self) -> None:
        """Have every loop end."""
        self.leaving.set()
        self.changed.set()
        self.clean.set()
        with contextlib.suppress(OSError):
            os.write(self.wake_write, b"x")

    def _keep_at(self, work: Callable[[], None]) -> None:
        """A thread's life: a defect costs one round, not the agent."""
        while not self.leaving.is_set():
            try:
                work()
            except Exception:  # said in full, and tried again
                self.say(f"defect in {work.__name__}: {traceback.format_exc()}")
                self.leaving.wait(1.0)

    # The supervisor --------------------------------------------------------------------------

    def _meet_supervisor(self) -> None:
        """Reach the supervisor, however long it takes, and match what it has."""
        while not self.leaving.is_set():
            try:
                reports = self.keeper.connect(self.leaving)
            except (keeper.KeeperError, OSError) as problem:
                if not self.leaving.is_set():
                    self.say(f"{problem}; trying again")
                self.leaving.wait(BACKOFF_S_MAX)
                continue
            with self.lock:
                isolation = self.carrier.supervised(self.keeper.hello)
                self._has_changed(msgspec.structs.replace(self.inventory, isolation=isolation))
                self.carry_out(self.state.supervisor_up(reports))
            return

    def _listen(self) -> None:
        """The main thread: records from the supervisor, until the agent leaves."""
        parent = self._watch_parent()
        while not self.leaving.is_set():
            poller = select.poll()
            poller.register(self.wake_read, select.POLLIN)
            if self.keeper.link is not None:
                poller.register(self.keeper.link, select.POLLIN)
            if parent is not None:
                poller.register(parent, select.POLLIN)
            for handle, _ in poller.poll():
                if handle == self.wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.wake_read, 4096)
                elif handle == parent:
                    self._outlive()
                else:
                    self._hear()

    def _hear(self) -> None:
        """Take what the supervisor says; a supervisor that is gone is replaced."""
        reports = self.keeper.receive()
        if reports is not None:
            if any(report.state is AttemptState.ENDED for report in reports):
                crashpoints.reach("exited-not-acknowledged")
            with self.lock:
                self.carrier.heard(reports)
                self.words.heard(reports)
                self.carry_out(self.state.attempts_changed(reports))
            return
        if self.leaving.is_set():
            return
        self.say("the supervisor is gone: ending what it left and starting another")
        with self.lock:
            self.state.supervisor_down()
            self.keeper.close()
        self._meet_supervisor()

    def _watch_parent(self) -> int | None:
        """A handle that becomes readable when the parent ends."""
        expected = self.settings.die_with_parent
        if expected is None:
            return None
        parent = expected or os.getppid()
        try:
            handle = os.pidfd_open(parent)
        except ProcessLookupError:
            self._outlive()
            return None
        if os.getppid() != parent:
            self._outlive()
        return handle

    def _outlive(self) -> None:
        """The parent is gone: leave, and take the tasks along."""
        self.say("the process that started this agent has ended; leaving with it")
        self._orphaned = True
        self.leave()

    def _stop_all(self) -> None:
        """End every task and the supervisor, and tell the controller if it listens."""
        grace_s = self.settings.stop_grace_s
        order = {"op": "shutdown", "reason": EndReason.DRAINED.value, "grace_s": grace_s}
        deadline = time.monotonic() + grace_s + 15.0
        if self.keeper.send([order]):
            while time.monotonic() < deadline:
                reports = self.keeper.receive()
                if reports is None:
                    break
                with self.lock:
                    self.state.attempts_changed(reports)
        for pid in processes.supervisors_of(str(self.root)):
            processes.kill(pid)
        if not processes.kill_leftovers(str(self.root), []):
            self.say("some processes of tasks can't be killed")
        if not confinement.clean_up(str(self.root)):
            self.say("some control groups of tasks can't be removed")
        connection = Connection(self.target)
        with contextlib.suppress(LinkError, RejectedError):
            self._exchange(connection, self._request(0.0, complete=True), 2.0)
        connection.close()

    # The controller --------------------------------------------------------------------------

    def _poll(self) -> None:
        """The long poll: hears at once when the controller wants something else."""
        connection = Connection(self.target)
        wait_s, failures, idle = 0.0, 0, 0
        while not self.leaving.is_set():
            request = self._request(wait_s, complete=True)
            began = time.monotonic()
            try:
                response = self._exchange(connection, request, wait_s + ANSWER_SLACK_S)
            except (LinkError, RejectedError) as problem:
                failures += 1
                wait_s = 0.0
                self.say(str(problem))
                self._back_off(failures)
                continue
            failures = 0
            at_once = time.monotonic() - began < POLL_GAP_S
            idle = idle + 1 if at_once and response.set is None else 0
            if idle > 3:
                self.leaving.wait(POLL_GAP_S)
            with self.lock:
                lease_s = self.state.lease_s_min()
            # Leases count from when a request was sent: it has to be answered in time for them.
            wait_s = max(0.0, response.poll_s)
            if lease_s is not None:
                wait_s = min(wait_s, lease_s / 4)

    def _report(self) -> None:
        """Tells at once what changed here; a burst of changes is one request."""
        connection = Connection(self.target)
        failures, told_at = 0, 0.0
        while not self.leaving.is_set():
            self.changed.wait()
            if time.monotonic() - told_at < QUIET_S:
                time.sleep(BATCH_S)
            self.changed.clear()
            if self.leaving.is_set():
                return
            request = self._request(0.0, complete=False)
            try:
                self._exchange(connection, request, ANSWER_SLACK_S)
                failures = 0
            except (LinkError, RejectedError) as problem:
                failures += 1
                self.say(str(problem))
                self.changed.set()
                self._back_off(failures)
            told_at = time.monotonic()

    def _request(self, wait_s: float, *, complete: bool) -> SyncRequest:
        """What the node says now."""
        with self.lock:
            usage = self.sampler.usage((self.keeper.pid, self.probe.pid), self._pids())
            stages = self.carrier.stages()
            self.state.stages = {name: stage for name, (stage, _) in stages.items()}
            self.state.notes = {name: note for name, (_, note) in stages.items()}
            reports, complete = self.state.reports(complete=complete)
            self.sequence += 1
            gpu_usage, self.gpu_usage = self.gpu_usage, None
            return SyncRequest(
                node=self.settings.name,
                boot_id=self.boot_id,
                incarnation=self.incarnation,
                have=self.state.have,
                wait_s=wait_s,
                complete=complete,
                sequence=self.sequence,
                attempts=tuple(self.words.with_saved(map(self.sampler.with_usage, reports))),
                inventory=self.inventory if self.state.want_inventory else None,
                usage=usage,
                gpu_usage=gpu_usage,
                remedies=self.orders.reports(),
                task_metrics=self.words.news(),
            )

    def _exchange(
        self, connection: Connection, request: SyncRequest, timeout_s: float
    ) -> SyncResponse:
        """Send a request and do what its answer asks for."""
        sent_at = processes.boottime()
        try:
            # within, too: whatever goes wrong, what was taken out of the state is not lost
            body = packed(request)
            path = f"/v1/nodes/{self.settings.name}/sync"
            response = understand(
                self.target.url, self.settings.name, *connection.post(path, body, timeout_s)
            )
        except Exception:
            with self.lock:
                self.state.not_delivered(request.attempts)
                self.words.again(request.task_metrics or ())
            raise
        with self.lock:
            if request.inventory is self.inventory:
                self.state.want_inventory = False
            if response.want_inventory:
                self.words.again()  # it is a server that knows nothing of this node yet
            self.carry_out(self.state.answered(response, sent_at))
        return response

    def _back_off(self, failures: int) -> None:
        longest = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(failures - 1, 16))
        # Spread, so that the agents of a fleet do not come back all at once.
        self.leaving.wait(longest * (0.5 + os.urandom(1)[0] / 512))

    # Carrying out ----------------------------------------------------------------------------

    def carry_out(self, steps: list[state.Step]) -> None:
        """Do what the state machine decided, orders to the supervisor in one message."""
        orders: list[dict[str, Any]] = []
        for step in steps:
            match step:
                case state.Start():
                    orders += self._start(step)
                case state.Release(attempt):
                    orders += self.carrier.release(attempt)
                case state.Refuse(attempt, reason, message):
                    orders.append(carrying.refusal(attempt, reason, message))
                case state.Stop():
                    orders.append(self.carrier.stop_order(step))
                case state.Forget(attempts):
                    crashpoints.reach("acknowledged-not-deleted")
                    self._discard(attempts)
                    orders.append({"op": "forget", "ids": list(attempts)})
                case state.SaveEpoch(epoch):
                    epochs.save(self.root, epoch)
                case state.Renew(at):
                    orders.append({"op": "renew", "at": at})
                case state.Check(plan):
                    self.plan = plan
                    self.gate.follow(plan)
                    self.look_now.set()
                case state.Remedy(remedies):
                    self.orders.take(remedies)
                case state.StreamLog(request):
                    self.followers.add(request)
                case state.ReportNow():
                    self.changed.set()
                case state.Complain(message):
                    self.say(message)
        if any(order["op"] == "start" for order in orders):
            crashpoints.reach("sent-not-spawned")
        if orders:
            self._give(orders)

    def _start(self, step: state.Start) -> list[dict[str, Any]]:
        """The orders that start an attempt; what goes wrong with one of them is its own end."""
        try:
            return self.carrier.start_or_wait(step, self._order_later)
        except Exception:  # others begin with it, and they are to start
            name = step.assignment.attempt
            self.say(f"defect in the start of {name}: {traceback.format_exc()}")
            return [carrying.refusal(name, EndReason.START_FAILED, carrying.DEFECT)]

    def _give(self, orders: list[dict[str, Any]]) -> None:
        """Give orders to the supervisor; one that can't be written down fails alone."""
        try:
            self.keeper.send(orders)
        except (UnicodeError, TypeError, ValueError):  # raised before anything of them was sent
            for order in orders:
                try:
                    self.keeper.send([order])
                except (UnicodeError, TypeError, ValueError) as problem:
                    self.say(f"order {order['op']} of {order.get('id')!a}: {problem}")
                    if order["op"] == "start":
                        reason = EndReason.START_FAILED
                        refusal = carrying.refusal(order["id"], reason, carrying.DEFECT)
                        self.keeper.send([refusal])

    def _order_later(self, order: dict[str, Any]) -> None:
        """An image that was waited for is there, or can't be had."""
        with self.lock:
            orders = self.carrier.due(order)
            if orders:
                self._give(orders)
            else:
                self.changed.set()  # its gang is to hear that it is ready

    def _discard(self, attempts: tuple[str, ...]) -> None:
        """Move directories out of the way at once; they are deleted beside the work."""
        self.words.forget(attempts)
        for attempt in attempts:
            self.carrier.images.remove_later(self.keeper.cleanups.pop(attempt, None))
            folder = f"{self.root}/attempts/{attempt}"
            try:
                if self.trash.put(folder):
                    self.clean.set()
            except FileNotFoundError:
                continue
            except OSError as problem:
                self.say(f"directory {folder} stays: {problem}")

    def _tidy(self) -> None:
        """Delete what is done with, turn logs over, and keep old logs within their limits."""
        prune_at = time.monotonic()
        left_s: float | None = None
        while not self.leaving.is_set():
            self.clean.wait(ROTATE_EVERY_S if left_s is None else min(ROTATE_EVERY_S, left_s))
            self.clean.clear()
            for problem in self.carrier.images.remove_left():
                self.say(problem)
            left_s = self.trash.empty()
            with self.lock:
                running = self.state.running()
            logs.rotate(self.root / "logs", running, self.settings.log_bytes_max)
            if time.monotonic() >= prune_at:
                self._look_at_host()
                prune_at = time.monotonic() + PRUNE_EVERY_S
                settings = self.settings
                keep = set(running)
                logs.prune(
                    self.root / "logs", keep, settings.logs_total_bytes_max, settings.logs_age_s_max
                )
            self.leaving.wait(0.05)

    # GPUs ------------------------------------------------------------------------------------

    def _begin_watching_gpus(self) -> None:
        """Know the GPUs before the first report, unless the driver takes long over them."""
        if self.settings.gpus:
            self._begin_simulating_gpus()
        if not self.settings.watch_gpus:
            return
        watcher = gpuwatch.Watcher(
            self.settings,
            gpuwatch.Watch(self.root, self.boot_id, self.probe, self.settings),
            tasks=self._pids,
            take=self._take_gpus,
            leaving=self.leaving,
        )
        threading.Thread(target=self._keep_at, args=(watcher.turn,), daemon=True).start()
        watcher.wait_for_first()

    def _begin_simulating_gpus(self) -> None:
        """Look at what a file says of simulated GPUs, from when there is one."""
        source = simulated.Source(self.root / simulated.FILE_NAME, self.settings.gpus)
        watch = gpuwatch.Watch(self.root, self.boot_id, source, self.settings)
        watcher = gpuwatch.Watcher(
            self.settings, watch, tasks=self._pids, take=self._take_gpus, leaving=self.leaving
        )

        begun = bool(watch.known)
        watch.known = watch.known or self.settings.gpus

        def turn() -> None:
            nonlocal begun
            begun = begun or source.exists()
            if begun:
                watcher.turn()
            else:
                self.leaving.wait(self.settings.gpu_every_s)

        threading.Thread(target=self._keep_at, args=(turn,), daemon=True).start()

    def foreign(self) -> tuple[GpuProcess, ...]:
        """Processes on devices that are no task's, as last seen."""
        with self.lock:
            return self.inventory.foreign_gpu_processes

    def running(self) -> list[str]:
        """Attempts that have not ended."""
        with self.lock:
            return self.state.running()

    def uuids(self) -> dict[int, str]:
        """UUIDs of the devices by their numbers; of simulated ones none."""
        with self.lock:
            return {gpu.index: gpu.uuid for gpu in self.inventory.gpus if not gpu.simulated}

    def restart(self) -> None:
        """End this agent soon, its tasks left alone: who keeps it alive starts it again."""
        self._restarting = True
        timer = threading.Timer(RESTART_AFTER_S, self.leave)
        timer.daemon = True
        timer.start()

    def _take_gpus(self, look: gpuwatch.Look) -> None:
        """Take over what a look found; what changed is reported at once."""
        with self.lock:
            self.gpu_usage = look.usage or self.gpu_usage
            self.gpu_seen = look.usage
            if not self._has_changed(inventory.with_gpus(self.inventory, look)):
                return
            gpus = self.inventory.gpus
            self.carrier.place = msgspec.structs.replace(self.carrier.place, gpus=gpus)
        for complaint in gpuwatch.complaints(look):
            self.say(complaint)

    def _look_at_host(self) -> None:
        """Notice what has changed of the machine itself."""
        with self.lock:
            self._has_changed(inventory.with_host(self.inventory))

    def _has_changed(self, found: Inventory) -> bool:
        """Take over an inventory that says something new, and have it told at once."""
        if found == self.inventory:
            return False  # the one that is held may be on its way: it is known by its identity
        self.inventory = found
        self.state.want_inventory = True
        self.changed.set()
        return True

    def _check(self) -> None:
        """Look at the node's health as its pool asks for; what changes is told at once."""
        while not self.leaving.is_set():
            plan = self.plan
            self.look_now.wait(plan.interval_s if plan is not None else None)
            self.look_now.clear()
            plan = self.plan
            with self.lock:
                gpus, usage = self.inventory.gpus, self.gpu_seen
                idle = not self.state.running()
            with self.checker.turn:
                found = self.checker.look(plan, gpus, usage, idle=idle) if plan else ()
                with self.lock:
                    told = checks.unwell(found)
                    self._has_changed(msgspec.structs.replace(self.inventory, checks=told))

    def check_now(self, plan: Plan, names: tuple[str, ...]) -> tuple[Result, ...]:
        """Make checks before or after a job; what they found is told before anything else."""
        with self.lock:
            gpus, usage = self.inventory.gpus, self.gpu_seen
        with self.checker.turn:
            found = self.checker.gate(plan, names, gpus, usage)
            with self.lock:
                told = checks.merged(self.inventory.checks, found)
                self._has_changed(msgspec.structs.replace(self.inventory, checks=told))
        return found

    # Small things ----------------------------------------------------------------------------

    def _pids(self) -> dict[str, int]:
        with self.lock:
            return {n: self.keeper.pids[n] for n in self.state.running() if n in self.keeper.pids}

    def _has_ended(self, attempt: str) -> bool:
        with self.lock:
            return self.state.has_ended(attempt)
