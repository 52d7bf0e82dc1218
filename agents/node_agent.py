"""The agent around its state machine: threads, sockets and files.

The main thread hears the supervisor; others talk with the controller (``talking``), look at the
machine, its GPUs and its health (``noticing``), read what tasks write (``jobdata``), and delete and
prune. Whatever they learn goes through the state machine under one lock, and the steps that come
out are carried out under it too.
"""

import contextlib
import os
import select
import threading
import traceback
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from agents import reports, state
from agents.host import (
    failpoints,
    operator_log,
    parent_watch,
    processes,
    shutdown,
    shutdown_request,
    trash,
)
from agents.job_data import reported_data
from agents.link import leader_epochs, sync
from agents.link.http_client import ControllerTarget, LinkError, RejectedError
from agents.logs import event_log, log_streamer
from agents.node import agent_identity, cleanup, inventory, monitor, remediation, shared_folder
from agents.settings import AgentSettings
from agents.supervisor import client
from agents.tasks import container_cleanup, gates, images, launcher, nccl_interfaces, start_orders
from reconciler.model.observed.devices import GpuProcess
from reconciler.model.observed.health_checks import CheckPlan, CheckResult
from reconciler.model.protocol.agent_messages import Assignment, SyncRequest, SyncResponse
from reconciler.model.state.records import AttemptReport, Gpu
from reconciler.model.state.states import AttemptState, EndReason

#: An agent that is to start anew first tells that it will.
RESTART_AFTER_S = 1.0


class Agent:
    """One node's agent."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.root = settings.root
        self.lock = threading.RLock()
        self.leaving = threading.Event()
        self.changed = threading.Event()
        self.clean = threading.Event()
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.incarnation = os.urandom(8).hex()
        token = start_orders.read_token(settings.token_file) if settings.token_file else ""
        self.target = ControllerTarget(settings.server, token)
        self.target.parts()
        self.talks = sync.ControllerSync(
            self, settings.name, self.target, self.changed, self.leaving
        )
        self.voice = operator_log.Console(settings.name, settings.log_format, settings.log_level)
        self.tells = event_log.EventLog(settings, self.voice)
        self._orphaned = self._restarting = False
        self.epoch = leader_epochs.Newest(self.root, self.voice)

    def prepare(self) -> None:
        """Take the root and find out what the node is."""
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._lock_file = agent_identity.take(self.root)
        self.port_loops = reports.open_port(
            self.settings.metrics, self._page_values, self.leaving, self.voice, self._notice
        )
        for problem in images.end_left(str(self.root)):
            self.say(problem)
        follows = agent_identity.succeed(self.root, self.incarnation)
        ours = shared_folder.SharedFolder(
            self.settings.shared or self.root / "shared", self.leaving
        )
        shared = ours.find()
        for folder in ("attempts", "logs", "trash"):
            (self.root / folder).mkdir(mode=0o711, exist_ok=True)
        self.boot_id = inventory.boot_id_of(self.settings)
        self.state = state.AgentState(self.boot_id, leader_epochs.load(self.root, self.voice))
        self.senses = monitor.NodeMonitor(
            self.settings, self.boot_id, self, self.lock, self.leaving
        )
        self.senses.skew = self.talks.skew
        found = self.senses.inventory
        self.keeper = client.SupervisorClient(
            self.root, self.settings.isolation, self.settings.enter
        )
        self.trash = trash.Trash(self.root / "trash")
        place = start_orders.NodeFolders(
            name=self.settings.name,
            root=str(self.root),
            shared=shared,
            gpus=found.gpus,
            as_root=found.runs_as_root,
            podman=self.settings.podman,
            fabric=nccl_interfaces.of_node(found),
        )
        self.carrier = launcher.Launcher(self.settings, place, self.trash, self.lock)
        self.carrier.volumes, self.carrier.cutter = self.senses.volumes, self.senses.cutter
        self.gate = self.carrier.gate = gates.StartGate(self, self.lock)
        self.words = reported_data.JobData(self.root, place.shared)
        self.orders = remediation.Orders(self.root, self.boot_id, self, self.changed.set)
        if self.orders.reports():
            self.state.remedies = None
        self.leftovers = container_cleanup.Leftovers(self.root, self, self.leaving)
        self.tidier = cleanup.Cleanup(self.settings, self, self.trash, (self.clean, self.leaving))
        self.followers = log_streamer.Followers(
            self.root / "logs", self.settings.name, self.target, self._has_ended
        )
        self.reports = reports.Reports(
            self.settings,
            reports.Life(self.boot_id, self.incarnation, follows),
            node=self.state,
            senses=self.senses,
            words=self.words,
            remedies=self.orders,
            stager=self.carrier.stager,
        )

        if ours.problem:
            self.say(ours.problem)
            self.senses.notice(ours.problem, "shared")
            ours.await_it(self._share)

    def _share(self, folder: str) -> None:
        """The shared folder answers, which did not when the agent began."""
        with self.lock:
            self.carrier.place = msgspec.structs.replace(self.carrier.place, shared=folder)
            self.words.shared = folder
            self.senses.notice("", "shared")
        self.voice.tell(f"shared folder {folder} answers")

    def _page_values(self) -> reports.Now | None:
        with self.lock:
            return self.reports.now()

    def _notice(self, text: str) -> None:
        self.senses.notice(text)

    def run(self) -> int:
        """Work until told to leave."""
        shutdown_request.heed(self.leave)
        self.prepare()
        self.tells.begins(self.senses.inventory)
        self.senses.begin()
        self._meet_supervisor()
        for work in (
            self.talks.poll,
            self.talks.report,
            self.tidier.run,
            self.leftovers.turn,
            self.orders.work,
            self.senses.check,
            self.senses.look_at_tasks,
            self.senses.volumes.turn,
            self.gate.turn,
            *self.words.loops(self.lock, self.state, self.leaving),
            *self.port_loops,
        ):
            self.keep_at(work)
        self.clean.set()
        self._listen()
        stops = self._orphaned or (self.settings.stop_tasks_on_exit and not self._restarting)
        self.tells.leaves(len(self.running()), stops=stops)
        if stops:
            self._stop_all()
        return 0

    def say(self, text: str) -> None:
        """Tell the operator of what is amiss."""
        self.voice.say(text)

    def leave(self) -> None:
        """Have every loop end."""
        self.leaving.set()
        self.changed.set()
        self.clean.set()
        with contextlib.suppress(OSError):
            os.write(self.wake_write, b"x")

    def keep_at(self, work: Callable[[], None]) -> None:
        """Have a thread do something again and again until the agent leaves."""
        threading.Thread(target=self._keep_at, args=(work,), daemon=True).start()

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
            except (client.KeeperError, OSError) as problem:
                if not self.leaving.is_set():
                    self.say(f"{problem}; trying again")
                self.leaving.wait(sync.BACKOFF_S_MAX)
                continue
            with self.lock:
                isolation = self.carrier.supervised(self.keeper.hello)
                reports = self.carrier.stager.hold(reports, self._end_later)
                self.senses.hold_by(isolation)
                self.senses.notice(event_log.OUTDATED if self.keeper.outdated else "", "supervisor")
                self.tells.supervised(reports, isolation.kind, outdated=self.keeper.outdated)
                self.carry_out(self.state.supervisor_up(reports))
            return

    def _listen(self) -> None:
        """The main thread: records from the supervisor, until the agent leaves."""
        parent = None
        try:
            parent = parent_watch.watch(self.settings.die_with_parent)
        except ProcessLookupError:
            self._outlive()
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
                failpoints.reach("exited-not-acknowledged")
                self.tidier.logs.ended()
                self.leftovers.heard(reports, self.keeper.cleanups)
            # beside the lock: what a task wrote last is up to a MiB of reading
            self.words.heard(reports)
            with self.lock:
                # within: a copy out that ends at once is told after what is said of it here
                told = self.carrier.stager.hold(reports, self._end_later)
                self.carrier.heard(reports)
                self._heard(told)
            return
        if self.leaving.is_set():
            return
        self.tells.left(dismissed=self.keeper.dismissed)
        with self.lock:
            self.keeper.dismissed = False
            self.state.supervisor_down()
            self.keeper.close()
        self._meet_supervisor()

    def _heard(self, told: list[AttemptReport]) -> None:
        """Some attempts changed: the operator hears of it, and the controller next."""
        self.tells.heard(told, self.state)
        self.carry_out(self.state.attempts_changed(told))

    def _outlive(self) -> None:
        """The parent is gone: leave, and take the tasks along."""
        self._orphaned = True
        self.say("the process that started this agent has ended; leaving with it")
        self.leave()

    def _stop_all(self) -> None:
        """End every task and the supervisor, and tell the controller if it listens."""
        self.keeper.end_all(self.settings.stop_grace_s, self._ended)
        with contextlib.suppress(LinkError, RejectedError):
            self.talks.tell_once(2.0)
        for problem in shutdown.leave_nothing(self.root):
            self.say(problem)

    def _ended(self, reports: list[AttemptReport]) -> None:
        """Some attempts have ended since the agent leaves: nothing follows from it any more."""
        with self.lock:
            self.tells.heard(reports, self.state)
            self.state.attempts_changed(reports)

    # The controller --------------------------------------------------------------------------

    def request(self, wait_s: float, *, complete: bool) -> SyncRequest:
        """What the node says now."""
        with self.lock:
            return self.reports.request(
                wait_s,
                complete=complete,
                stages=self.carrier.stages(),
                helpers=(self.keeper.pid, self.senses.probe.pid),
            )

    def not_heard(self, request: SyncRequest) -> None:
        """A request did not get through: what it said has to be said again."""
        with self.lock:
            self.state.not_delivered(request.attempts)
            self.words.again(request.task_metrics or ())

    def unreached(self, problem: Exception) -> None:
        """The controller did not answer as it should."""
        self.tells.unreached(problem, len(self.running()))

    def answered(self, request: SyncRequest, response: SyncResponse, sent_at: float) -> None:
        """Do what the answer to a request asks for."""
        self.tells.reached(response.epoch)
        with self.lock:
            self.reports.were_heard()
            if request.inventory is self.senses.inventory and response.renews:
                self.state.want_inventory = False
            if response.want_inventory:
                self.words.again()  # it is a server that knows nothing of this node yet
            waited_s = processes.boottime() - sent_at
            self.epoch.retry()
            self.carry_out(self.state.answered(response, sent_at, waited_s))

    def lease_s_min(self) -> float | None:
        """The shortest lease of what is assigned; None when nothing has one."""
        with self.lock:
            return self.state.lease_s_min()

    # Carrying out ----------------------------------------------------------------------------

    def carry_out(self, steps: list[state.Step]) -> None:
        """Do what the state machine decided, orders to the supervisor in one message."""
        orders: list[dict[str, Any]] = []
        renewed_at: float | None = None
        for step in steps:
            try:
                orders += self._orders_of(step)
            except Exception:  # those behind it are not asked for again
                self.say(f"defect in step {type(step).__name__}: {traceback.format_exc()}")
            if isinstance(step, state.Renew):
                renewed_at = step.at
        if any(order["op"] == "start" for order in orders):
            failpoints.reach("sent-not-spawned")
        if orders:
            self._give(orders)
        if renewed_at is not None:  # after the stops of what is not this node's any more
            self.carrier.stager.renewed(renewed_at)

    def _orders_of(self, step: state.Step) -> list[dict[str, Any]]:
        """What the supervisor is to do of a step; the rest of it is done here."""
        match step:
            case state.Start():
                return self._start(step)
            case state.Release(attempt):
                return self.carrier.release(attempt)
            case state.Refuse(attempt, reason, message):
                return [launcher.refusal(attempt, reason, message)]
            case state.EndAttempt():
                return [self.carrier.stop_order(step)]
            case state.Forget(attempts):
                failpoints.reach("acknowledged-not-deleted")
                self._discard(attempts)
                return [{"op": "forget", "ids": list(attempts)}]
            case state.SaveEpoch(epoch):
                self.epoch.keep(epoch)
            case state.Renew(at):
                return [{"op": "renew", "at": at}]
            case _:
                self._do(step)
        return []

    def _do(self, step: state.Step) -> None:
        """Do what the supervisor has no part in."""
        match step:
            case state.Check(plan):
                self.gate.follow(plan)
                self.senses.follow(plan)
            case state.WatchVolumes(volumes):
                self.senses.volumes.follow(volumes)
            case state.Cut(layout):
                self.senses.cut(layout)
            case state.CarryOutRemedies(remedies):
                self.orders.take(remedies)
            case state.StreamLog(request):
                self.followers.add(request)
            case state.ReportNow():
                self.changed.set()
            case state.Complain(message):
                self.say(message)

    def _start(self, step: state.Start) -> list[dict[str, Any]]:
        """The orders that start an attempt; what goes wrong with one of them is its own end."""
        try:
            return self.carrier.start_or_wait(step, self._order_later)
        except Exception:  # others begin with it, and they are to start
            name = step.assignment.attempt
            self.say(f"defect in the start of {name}: {traceback.format_exc()}")
            return [launcher.refusal(name, EndReason.START_FAILED, launcher.DEFECT)]

    def _give(self, orders: list[dict[str, Any]]) -> None:
        """Give orders to the supervisor; one that can't be written down fails alone."""
        orders = self.leftovers.note(orders)
        launcher.give(self.keeper, orders, self.say)

    def _order_later(self, order: dict[str, Any]) -> None:
        """An image that was waited for is there, or can't be had.

        It may have been asked for twice, since a supervisor has died in the meantime: what has
        begun by the other, or ended and is forgotten, does not begin again.
        """
        with self.lock:
            if not self.state.awaits(order["id"]):
                return
            orders = self.carrier.due(order)
            if orders:
                self._give(orders)
            else:
                self.changed.set()  # its gang is to hear that it is ready

    def _end_later(self, report: AttemptReport) -> None:
        """What an attempt has left was copied out, or can't be: its end is told."""
        with self.lock:
            self._heard([report])

    def _discard(self, attempts: tuple[str, ...]) -> None:
        """Move directories out of the way at once; they are deleted beside the work."""
        self.words.forget(attempts)
        for attempt in attempts:
            self.leftovers.ended(attempt, self.keeper.cleanups.pop(attempt, None))
            self.carrier.stager.cache.forget(attempt)
            folder = f"{self.root}/attempts/{attempt}"
            try:
                if self.trash.put(folder):
                    self.clean.set()
            except FileNotFoundError:
                continue
            except OSError as problem:
                self.say(f"directory {folder} stays: {problem}")

    # What others ask of the agent --------------------------------------------------------------

    def foreign(self) -> tuple[GpuProcess, ...]:
        """Processes on devices that are no task's, as last seen."""
        with self.lock:
            return self.senses.inventory.foreign_gpu_processes

    def pids(self) -> dict[str, int]:
        """Main processes of tasks that run, by attempt."""
        with self.lock:
            return {n: self.keeper.pids[n] for n in self.state.running() if n in self.keeper.pids}

    def have_told(self) -> None:
        """The inventory says something new."""
        self.state.want_inventory = True
        self.changed.set()

    def know_gpus(self, gpus: tuple[Gpu, ...]) -> None:
        """These are the GPUs from now on."""
        self.carrier.place = msgspec.structs.replace(self.carrier.place, gpus=gpus)

    def check_now(self, plan: CheckPlan, names: tuple[str, ...]) -> tuple[CheckResult, ...]:
        """Make checks before or after a job, and have what they found told."""
        return self.senses.check_now(plan, names)

    def may_begin(self, attempt: str) -> bool:
        """Whether an attempt runs here, or may be about to, as far as is known."""
        with self.lock:
            return self.state.may_begin(attempt)

    def running(self) -> list[str]:
        """Attempts that have not ended."""
        with self.lock:
            return self.state.running()

    def look_at_host(self) -> None:
        """Notice what has changed of the machine itself, and whether nobody needs an outdated
        supervisor any more."""
        with self.lock:
            if self.keeper.outdated and not self.state.holders():
                self.keeper.dismiss()
        self.senses.look_at_host()
        now = nccl_interfaces.of_node(self.senses.inventory)
        with self.lock:
            self.carrier.place = msgspec.structs.replace(self.carrier.place, fabric=now)

    def occupants(self) -> list[str]:
        """Attempts that have not ended, those that are only about to begin among them."""
        with self.lock:
            return list(self.state.holders())

    def holders(self) -> dict[str, Assignment | None]:
        """Attempts that have not ended; None: what it was given is not known any more."""
        return self.state.holders()

    def uuids(self) -> dict[int, str]:
        """UUIDs of the devices by their numbers; of simulated ones none."""
        with self.lock:
            gpus = self.senses.inventory.gpus
            return {gpu.index: gpu.uuid for gpu in gpus if not gpu.simulated}

    def parted(self) -> frozenset[str]:
        """UUIDs of devices of which the node was given MIG instances alone."""
        with self.lock:
            return self.senses.parted()

    def devices_alone(self, reset: Collection[str]) -> contextlib.AbstractContextManager[None]:
        """Nothing of this agent has a device open meanwhile; those of these UUIDs are reset."""
        return self.senses.devices_alone(reset)

    def restart(self) -> None:
        """End this agent soon, its tasks left alone: who keeps it alive starts it again."""
        self._restarting = True
        timer = threading.Timer(RESTART_AFTER_S, self.leave)
        timer.daemon = True
        timer.start()

    def is_the_machine(self) -> bool:
        """Whether no other node is on this machine."""
        return not self.settings.virtual

    def leaves_within(self, limit_s: float) -> bool:
        """Wait until this agent is told to leave, for so long; whether it was."""
        return self.leaving.wait(limit_s)

    def _has_ended(self, attempt: str) -> bool:
        with self.lock:
            return self.state.has_ended(attempt)
