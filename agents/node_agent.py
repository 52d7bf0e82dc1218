"""The agent of one node: builds its parts, runs their threads, and connects them.

The main thread reads the supervisor's reports (``main_loop``); other threads exchange
messages with the controller, watch machine and GPUs, read task metrics and clean up. What they
learn goes through the state machine under one lock, and ``step_executor`` carries out its steps.
"""

import contextlib
import os
import threading
import traceback
from collections.abc import Callable

import msgspec

from agents import (
    attempt_lifecycle,
    attempt_queries,
    controller_dialogue,
    main_loop,
    reports,
    shutdown,
    state,
    step_executor,
)
from agents.deletion import trash
from agents.host import (
    clock_skew,
    operator_log,
    shutdown_request,
)
from agents.interactive import session_process
from agents.job_commands import job_tries
from agents.job_data import reported_data
from agents.link import assignment_proofs, leader_epochs, sync
from agents.link.http_client import ControllerTarget, LinkError, RejectedError
from agents.logs import event_log, log_streamer
from agents.node import (
    agent_identity,
    cleanup,
    disk_watch,
    inventory,
    monitor,
    remediation,
    shared_folder,
)
from agents.settings import AgentSettings
from agents.supervisor import client
from agents.tasks import container_cleanup, gates, images, launcher, nccl_interfaces
from agents.tasks.node_context import NodeContext
from reconciler.model.observed.health_checks import CheckPlan
from reconciler.model.state.records import Gpu, Inventory

#: Time for an agent that restarts itself to report that first.
RESTART_DELAY_S = 1.0
#: Time for the last report to the controller before the agent ends.
LAST_REPORT_S = 2.0


class Agent:
    """The agent of one node."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.root = settings.root
        self.lock = threading.RLock()
        self.leaving = threading.Event()
        #: Set if there is something to report, and if there is something to delete.
        self.changed = threading.Event()
        self._delete_due = threading.Event()
        self.incarnation = os.urandom(8).hex()
        self.target = ControllerTarget(settings.server, settings.token_file, settings.ca_file)
        self.target.check()
        self._console = operator_log.Console(settings.name, settings.log_format, settings.log_level)
        self._events = event_log.EventLog(settings, self._console)
        self._epoch = leader_epochs.LeaderEpoch(self.root, self._console)
        self.supervisor = client.SupervisorClient(self.root, settings.isolation, settings.enter)
        self._wake, self._skew = main_loop.WakeUp(), clock_skew.ClockSkew()
        self._is_orphaned = self._is_restarting = False

    # Life ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Lock the root folder, learn what the node is, and build all parts."""
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._lock_file = agent_identity.take(self.root)
        self._metrics_threads = self._open_metrics_port()
        for problem in images.end_left(str(self.root)):
            self.say(problem)
        follows = agent_identity.succeed(self.root, self.incarnation)
        folder = shared_folder.SharedFolder(
            self.settings.shared or self.root / "shared", self.leaving
        )
        shared = folder.find()
        for name in ("attempts", "logs", "trash"):
            (self.root / name).mkdir(mode=0o711, exist_ok=True)
        self.boot_id = inventory.boot_id_of(self.settings)
        self.state = state.AgentState(self.boot_id, leader_epochs.load(self.root, self._console))
        self.state.proofs = assignment_proofs.load(self.root, self._console)
        self.attempts = attempt_queries.AttemptQueries(self.lock, self.state, self.supervisor)
        self._build_node_parts()
        self._build_task_parts(shared)
        self.launcher.short_paths.sweep()
        self._build_controller_parts(follows)
        if folder.problem:
            self.say(folder.problem)
            self.monitor.notice(folder.problem, "shared")
            folder.on_resolved(self._shared_folder_resolved)

    def run(self) -> int:
        """Work until told to stop. Return the exit code."""
        shutdown_request.call_on_signals(self.leave)
        self.prepare()
        self._events.begins(self.monitor.inventory)
        self.monitor.begin()
        loop = main_loop.MainLoop(
            self.supervisor,
            main_loop.SupervisorEvents(
                self.lifecycle.connected,
                self.lifecycle.reported,
                self.lifecycle.lost,
                self._parent_ended,
                self.say,
            ),
            self.leaving,
            self._wake,
            self.settings.die_with_parent,
        )
        loop.connect()
        for work in (
            self.sync.poll,
            self.sync.report,
            *self._cleanup.loops(),
            self._containers.turn,
            self.remediation.work,
            self.monitor.check,
            self.monitor.sample_tasks,
            disk_watch.DiskWatch(self.root, self.attempts, self.lifecycle, self.leaving).turn,
            self.monitor.volumes.turn,
            self._gate.turn,
            self._job_parts.turn,
            *self._job_data.loops(self.lock, self.state, self.leaving),
            *self._metrics_threads,
        ):
            self._keep_running(work)
        self._delete_due.set()
        loop.run()
        stops = self._is_orphaned or (self.settings.stop_tasks_on_exit and not self._is_restarting)
        self._events.leaves(len(self.attempts.running()), stops=stops)
        if stops:
            self._stop_all()
        return 0

    def say(self, text: str) -> None:
        """Show a problem to the operator."""
        self._console.say(text)

    def leave(self) -> None:
        """Make every thread end."""
        self.leaving.set()
        self.changed.set()
        self._delete_due.set()
        self._wake.set()

    def restart(self) -> None:
        """End this agent soon without its tasks, so that its service manager starts it again."""
        self._is_restarting = True
        timer = threading.Timer(RESTART_DELAY_S, self.leave)
        timer.daemon = True
        timer.start()

    def owns_machine(self) -> bool:
        """Return True if no other node is on this machine."""
        return not self.settings.virtual

    def _keep_running(self, work: Callable[[], None]) -> None:
        keep_running(work, self.leaving, self.say)

    def _parent_ended(self) -> None:
        """Stop with all tasks, because the process that started this agent has ended."""
        self._is_orphaned = True
        self.say("the process that started this agent has ended; stopping with all tasks")
        self.leave()

    def _stop_all(self) -> None:
        """End every task and the supervisor, and report that if the controller listens."""
        self.supervisor.end_all(self.settings.stop_grace_s, self.lifecycle.reported_last)
        with contextlib.suppress(LinkError, RejectedError):
            self.sync.report_once(LAST_REPORT_S)
        for problem in shutdown.end_everything(self.root, self.launcher.users):
            self.say(problem)
        self.launcher.short_paths.clear()

    # Parts -----------------------------------------------------------------------------------

    def _open_metrics_port(self) -> tuple[Callable[[], None], ...]:
        if self.settings.metrics is None:
            return ()
        from agents.exporter import metrics_port  # noqa: PLC0415 - most nodes have no port

        return metrics_port.open_port(
            self.settings.metrics,
            lambda: self.dialogue.snapshot(),  # noqa: PLW0108 - built later
            self.leaving,
            self._console,
            self._notice,
        )

    def _build_node_parts(self) -> None:
        """Build what watches and repairs the node."""
        hooks = monitor.MonitorHooks(
            self.attempts.running, self.attempts.pids, self.state.holders,
            self._inventory_changed, self._gpus_changed, self._keep_running, self.say,
        )  # fmt: skip
        self.monitor = monitor.NodeMonitor(
            self.settings, self.boot_id, hooks, self.lock, self.leaving, skew=self._skew
        )
        actions = remediation.NodeActions(
            foreign_processes=self.monitor.foreign_processes,
            occupants=self.attempts.occupants,
            gpu_uuids=self.monitor.gpu_uuids,
            partial_gpus=self.monitor.partial_gpus,
            exclusive_gpus=self.monitor.exclusive_gpus,
            restart=self.restart,
            owns_machine=self.owns_machine,
            stops_within=self.leaving.wait,
        )
        self.remediation = remediation.RemediationQueue(
            self.root, self.boot_id, actions, self.changed.set,
            repaired=lambda cause: self._job_parts.repaired(cause),  # noqa: PLW0108 - built later
        )  # fmt: skip
        if self.remediation.reports():
            self.state.remedies = None
        self._trash = trash.of_node(self.root, self._delete_due.set, self.monitor.kept)
        self._cleanup = cleanup.Cleanup(
            self.settings, self._trash, self.attempts.running, self.refresh_host,
            say=self.say, clean=self._delete_due, leaving=self.leaving,
        )  # fmt: skip

    def _build_task_parts(self, shared: str) -> None:
        """Build what starts tasks and cleans up after them."""
        node = _context(self.settings, str(self.root), shared, self.monitor.inventory)
        self._gate = gates.StartGate(self.monitor.check_now, self.lock)
        self.launcher = launcher.Launcher(
            self.settings, node, self._trash, self.lock,
            volumes=self.monitor.volumes, mig=self.monitor.cutter, gate=self._gate,
        )  # fmt: skip
        facts = job_tries.NodeFacts(
            self.attempts.tasks_of, self.attempts.may_begin, self.monitor.note_command,
            self.leaving.is_set, self.say,
        )  # fmt: skip
        self._job_parts = self.launcher.run_around_jobs(facts, self.lock)
        # After the launcher, which needs room on the disk more than the metrics of tasks do.
        self._job_data = reported_data.JobData(self.root, shared, as_root=node.as_root)
        self._containers = container_cleanup.ContainerRemover(
            self.root, self.say, self.attempts.may_begin, self.leaving,
            self.launcher.images.commands.execute,
        )  # fmt: skip
        log_followers = log_streamer.LogStreams(
            self.root / "logs", self.settings.name, self.target, self.attempts.has_ended
        )
        effects = step_executor.StepEffects(
            set_check_plan=self._set_check_plan,
            watch_volumes=self.monitor.volumes.follow,
            set_mig_plan=self.monitor.cut,
            set_job_commands=self._job_parts.follow,
            remediate=self.remediation.take,
            stream_log=log_followers.add,
            serve_session=session_process.of_agent(self.settings, self.target, self.say),
            report_now=self.changed.set,
            save_epoch=self._epoch.keep,
            save_proofs=assignment_proofs.ProofFile(self.root, self._console).save,
            leases_renewed=self.launcher.stager.renewed,
            discard=self._discard,
            note_containers=self._containers.note,
            say=self.say,
        )
        self.steps = step_executor.StepExecutor(
            self.supervisor, self.launcher, effects,
            lambda command: self.lifecycle.prepared(command),  # noqa: PLW0108 - built later
        )  # fmt: skip
        self.lifecycle = attempt_lifecycle.AttemptLifecycle(
            self.lock,
            self.state,
            self.supervisor,
            attempt_lifecycle.AttemptParts(
                self.launcher, self.monitor, self._job_data, self._containers,
                self._job_parts, self._cleanup.logs, self._trash, self._events,
            ),
            steps=self.steps,
            report_now=self.changed.set,
            delete_now=self._delete_due.set,
        )  # fmt: skip

    def _discard(self, attempts: tuple[str, ...]) -> None:
        for problem in self.lifecycle.discard(attempts):
            self.say(problem)

    def _build_controller_parts(self, follows: tuple[str, ...]) -> None:
        """Build what exchanges messages with the controller."""
        sources = reports.ReportSources(
            state=self.state,
            monitor=self.monitor,
            job_data=self._job_data,
            remediation=self.remediation,
            stager=self.launcher.stager,
            stages=self.launcher.stages,
            helpers=lambda: (self.supervisor.pid, self.monitor.probe.pid),
        )
        proof = agent_identity.proof_of(self.root)
        life = reports.AgentLife(self.boot_id, self.incarnation, follows, proof)
        self.dialogue = controller_dialogue.ControllerDialogue(
            self.lock,
            self.state,
            reports.Reports(self.settings, life, sources),
            steps=self.steps,
            epoch=self._epoch,
            events=self._events,
            attempts=self.attempts,
        )
        self.sync = sync.ControllerSync(
            self.dialogue.handlers(), self.settings.name, self.target, self.changed, self.leaving,
            skew=self._skew, is_guarded=os.geteuid() == 0,
        )  # fmt: skip

    # Callbacks -------------------------------------------------------------------------------

    def _notice(self, problem: str) -> None:
        self.monitor.notice(problem)

    def _inventory_changed(self) -> None:
        self.state.want_inventory = True
        self.changed.set()

    def _gpus_changed(self, gpus: tuple[Gpu, ...]) -> None:
        self.launcher.node = msgspec.structs.replace(self.launcher.node, gpus=gpus)

    def _set_check_plan(self, plan: CheckPlan | None) -> None:
        self._gate.follow(plan)
        self.monitor.follow(plan)

    def _shared_folder_resolved(self, folder: str) -> None:
        """Use the shared folder, which did not answer when the agent started."""
        with self.lock:
            self.launcher.node = msgspec.structs.replace(self.launcher.node, shared=folder)
            self._job_data.shared = folder
            self.monitor.notice("", "shared")
        self._console.tell(f"shared folder {folder} answers")

    def refresh_host(self) -> None:
        """Read the machine's facts again, and replace an outdated supervisor if it has no task."""
        with self.lock:
            if self.supervisor.outdated and not self.state.holders():
                self.supervisor.dismiss()
        self.monitor.refresh_host()
        fabric = nccl_interfaces.of_node(self.monitor.inventory, self.settings.interface)
        with self.lock:
            self.launcher.node = msgspec.structs.replace(self.launcher.node, fabric=fabric)


def _context(settings: AgentSettings, root: str, shared: str, found: Inventory) -> NodeContext:
    """Return the facts about a node that decide how its tasks start."""
    return NodeContext(
        name=settings.name,
        root=root,
        shared=shared,
        gpus=found.gpus,
        as_root=found.runs_as_root,
        podman=settings.podman,
        fabric=nccl_interfaces.of_node(found, settings.interface),
        user_limits=settings.user_limits,
    )


def keep_running(
    work: Callable[[], None], leaving: threading.Event, say: Callable[[str], None]
) -> None:
    """Call ``work`` again and again in a thread until the agent stops.

    An internal error costs one round of that thread, not the agent.
    """

    def run() -> None:
        while not leaving.is_set():
            try:
                work()
            except Exception:  # logged in full, and tried again
                say(f"internal error in {work.__name__}: {traceback.format_exc()}")
                leaving.wait(1.0)

    threading.Thread(target=run, daemon=True).start()
