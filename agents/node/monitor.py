"""Watches the node: machine, GPUs, health checks, volumes, and the usage of tasks.

Several loops look, each in a thread. What they find becomes the inventory, under the agent's lock,
and changes are reported at once.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from agents.gpus import gpu_selection, gpu_watcher, mig_manager, nvml_client, simulated
from agents.health import checks, volume_checks
from agents.host import clock_skew, host_info
from agents.isolation import cgroups
from agents.logs import event_log
from agents.node import inventory, start_faults, usage_sampler
from agents.settings import AgentSettings
from reconciler.model import desired
from reconciler.model.observed.devices import GpuProcess, GpuUsage
from reconciler.model.observed.health_checks import CheckPlan, CheckResult, digest
from reconciler.model.observed.storage import VolumeState
from reconciler.model.protocol.agent_messages import Assignment
from reconciler.model.state.records import Gpu, Inventory, Isolation


class MonitorHooks(NamedTuple):
    """The agent as a monitor sees it: lookups, and callbacks for findings.

    Attributes:
        running: returns the attempts that have not ended.
        pids: returns the main processes of running tasks, by attempt.
        holders: returns the attempts that have not ended with their assignments; None if an
            assignment is not known any more. Called under the lock.
        inventory_changed: called under the lock if the inventory must be reported again.
        gpus_changed: called under the lock with the node's GPUs.
        keep_running: calls a function again and again in a thread until the agent stops.
        say: shows a message to the operator.
    """

    running: Callable[[], list[str]]
    pids: Callable[[], dict[str, int]]
    holders: Callable[[], Mapping[str, Assignment | None]]
    inventory_changed: Callable[[], None]
    gpus_changed: Callable[[tuple[Gpu, ...]], None]
    keep_running: Callable[[Callable[[], None]], None]
    say: Callable[[str], None]


class NodeMonitor:
    """The monitor of one node.

    Attributes:
        inventory: what is known of the node. It is replaced under the lock, and recognised by its
            identity.
        probe: source of GPU samples.
        volumes: checks the volumes of the node.
        cutter: applies the pool's MIG layouts.
        uses: usage of tasks.
    """

    def __init__(
        self,
        settings: AgentSettings,
        boot_id: str,
        hooks: MonitorHooks,
        lock: threading.RLock,
        leaving: threading.Event,
        *,
        skew: clock_skew.ClockSkew,
    ) -> None:
        self.inventory = inventory.inventory_of(settings)
        self.probe = nvml_client.NvmlClient()
        self._settings = settings
        self._boot_id = boot_id
        self._hooks = hooks
        self._lock = lock
        self._leaving = leaving
        self._checker = checks.Checker(settings.root, boot_id)
        self.volumes = volume_checks.VolumeChecker(checks.MountChecker(), self._know_volumes)
        self._given = gpu_selection.parts(settings.gpu_uuids)
        self.cutter = mig_manager.MigManager(
            settings.root, boot_id, hooks.holders, lock, gpus=settings.gpus, given=self._given
        )
        self._skew = skew
        self._notices: dict[str, str] = {}
        self.uses = usage_sampler.TaskUsageSampler(cgroups.token_of(str(settings.root)))
        self._on_gpus: usage_sampler.OnGpus = {}
        self._watcher_of_gpus: gpu_watcher.GpuWatcher | None = None
        self._plan: CheckPlan | None = None
        self._look_now = threading.Event()
        self._seen: tuple[GpuUsage, ...] = ()
        self._untold: tuple[GpuUsage, ...] | None = None
        #: What commands around jobs found that have failed, by name.
        self._job_commands: dict[str, CheckResult] = {}
        self._start_fault = start_faults.StartFault()

    def begin(self) -> None:
        """Find the GPUs before the first report, unless the driver takes too long."""
        if self._settings.gpus:
            self._watch_simulated_gpus()
        if not self._settings.watch_gpus:
            return
        watch = gpu_watcher.GpuWatch(
            self._settings.root, self._boot_id, self.probe, self._settings, self.cutter
        )
        watcher = self._watcher_of_gpus = self._watcher(watch)
        self._hooks.keep_running(watcher.turn)
        watcher.wait_for_first()

    def cut(self, plan: desired.MigPlan | None) -> None:
        """Apply this MIG plan from now on. Called under the lock."""
        self.cutter.follow(plan)
        if self._watcher_of_gpus is not None:
            self._watcher_of_gpus.hurry.set()

    def foreign_processes(self) -> tuple[GpuProcess, ...]:
        """Return processes on GPUs that belong to no task, as last seen."""
        with self._lock:
            return self.inventory.foreign_gpu_processes

    def gpu_uuids(self) -> dict[int, str]:
        """Return UUIDs of the real GPUs by index."""
        with self._lock:
            return {gpu.index: gpu.uuid for gpu in self.inventory.gpus if not gpu.simulated}

    def partial_gpus(self) -> frozenset[str]:
        """Return UUIDs of GPUs of which only some MIG instances belong to this node."""
        with self._lock:
            gpus = self.inventory.gpus
            return frozenset(gpu.uuid for gpu in gpus if gpu_selection.is_parted(gpu, self._given))

    @contextlib.contextmanager
    def exclusive_gpus(self, reset: Collection[str]) -> Iterator[None]:
        """Keep the agent from looking at GPUs or changing them.

        If the context ends without an error, the GPUs in ``reset`` have been reset.
        """
        watcher = self._watcher_of_gpus
        with watcher.leave_alone(reset) if watcher is not None else contextlib.nullcontext():
            yield

    def follow(self, plan: CheckPlan | None) -> None:
        """Make the checks of this plan from now on."""
        self._plan = plan
        self._look_now.set()

    def check_soon(self) -> None:
        """Make the checks now, and not only when they are due."""
        self._look_now.set()

    def set_isolation(self, isolation: Isolation) -> None:
        """Note how tasks are isolated from now on."""
        self.take_over(msgspec.structs.replace(self.inventory, isolation=isolation))

    def notice(self, text: str, of: str = "port") -> None:
        """Report a problem that does not keep tasks from running; an empty text ends it.

        Args:
            of: what the problem is about. Each subject has at most one.
        """
        with self._lock:
            self._notices.pop(of, None)
            if text:
                self._notices[of] = text
            notices = "; ".join(self._notices.values())
            self.take_over(msgspec.structs.replace(self.inventory, notice=notices))

    def kept(self, count: int, path: str) -> None:
        """Report folders that can't be deleted, of which ``path`` is the last."""
        problem = event_log.not_deleted(count, path)
        self._hooks.say(problem)
        self.notice(problem, "trash")

    def take_over(self, found: Inventory) -> bool:
        """Replace the inventory if it has changed, and report it. Called under the lock."""
        if found == self.inventory:
            return False  # the one that is held may be on its way: it is known by its identity
        self.inventory = found
        self._hooks.inventory_changed()
        return True

    def gpu_usage(self) -> tuple[GpuUsage, ...] | None:
        """Return the usage of GPUs, if it has not been reported yet. Called under the lock."""
        untold, self._untold = self._untold, None
        return untold

    def gpus_seen(self) -> tuple[GpuUsage, ...]:
        """Return the usage of GPUs at the last look."""
        return self._seen

    def refresh_host(self) -> None:
        """Read the facts about the machine again."""
        host, settings = host_info.read(), self._settings
        address = inventory.address_now(self.inventory, settings)
        with self._lock:
            self.take_over(inventory.with_host(self.inventory, host, address, settings))

    def sample_tasks(self) -> None:
        """Sample the usage of tasks, and wait until the next time."""
        pids = self._hooks.pids()
        with self._lock:
            shares = usage_sampler.gpu_shares(self._hooks.holders(), self._seen)
        self.uses.look(pids, self._on_gpus, shares)
        self._leaving.wait(usage_sampler.EVERY_S)

    def check(self) -> None:
        """Make the health checks of the plan until the agent stops."""
        while not self._leaving.is_set():
            plan = self._plan
            self._look_now.wait(plan.interval_s if plan is not None else None)
            self._look_now.clear()
            plan = self._plan
            with self._lock:
                seen = self._readings()
                idle = not self._hooks.running()
            with self._checker.turn:
                found = self._checker.look(plan, seen, idle=idle) if plan else ()
                with self._lock:
                    # what was noted during this look counts, too
                    noted = (*self._job_commands.values(), *self._start_result())
                    unwell = checks.merged(found, noted)
                    tried = plan is not None and self._checker.has_tried(plan)
                    checked = digest(plan) if plan is not None and tried else ""
                    known = msgspec.structs.replace(
                        self.inventory, checks=unwell, unchecked=False, checked=checked
                    )
                    self.take_over(known)

    def check_now(self, plan: CheckPlan, names: tuple[str, ...]) -> tuple[CheckResult, ...]:
        """Make checks before or after a job. Their results are reported before anything else."""
        with self._lock:
            seen = self._readings()
        with self._checker.turn:
            found = self._checker.gate(plan, names, seen)
            with self._lock:
                merged = checks.merged(self.inventory.checks, found)
                self.take_over(msgspec.structs.replace(self.inventory, checks=merged))
        return found

    def start_failed(self, problem: str, at: float) -> bool:
        """Report that this node could not start a task at that time, so that it gets no other.

        Return False if that does not count by its plan, or it is too long ago.
        """
        with self._lock:
            fault = start_faults.later(self._start_fault, problem, at, time.time())
            self._start_fault = fault
            counts = self._start_result()
            merged = checks.merged(self.inventory.checks, counts)
            self.take_over(msgspec.structs.replace(self.inventory, checks=merged))
        return bool(counts)

    def _start_result(self) -> tuple[CheckResult, ...]:
        return self._start_fault.result(self._plan, time.time())

    def note_command(self, result: CheckResult) -> None:
        """Report what a command around jobs has found as a check, until it has found otherwise."""
        with self._lock:
            self._job_commands.pop(result.name, None)
            if result.verdict != "healthy":
                self._job_commands[result.name] = result
            merged = checks.merged(self.inventory.checks, (result,))
            self.take_over(msgspec.structs.replace(self.inventory, checks=merged))

    def _readings(self) -> checks.Readings:
        """Return values for the checks that are already known. Called under the lock."""
        return checks.Readings(
            gpus=self.inventory.gpus,
            usage=self._seen,
            driver=self.inventory.gpu_driver,
            clock_skew=self._skew.problem,
            start=self._start_result(),
        )

    def _know_volumes(self, known: tuple[VolumeState, ...]) -> None:
        with self._lock:
            self.take_over(msgspec.structs.replace(self.inventory, volumes=known))

    def _watcher(self, watch: gpu_watcher.GpuWatch) -> gpu_watcher.GpuWatcher:
        return gpu_watcher.GpuWatcher(
            self._settings, watch, tasks=self._hooks.pids, take=self._take, leaving=self._leaving
        )

    def _watch_simulated_gpus(self) -> None:
        """Watch simulated GPUs, as soon as a file describes them or one has MIG instances."""
        source = simulated.SimulatedSamples(
            self._settings.root / simulated.FILE_NAME, self._settings.gpus
        )
        watch = gpu_watcher.GpuWatch(
            self._settings.root, self._boot_id, source, self._settings, self.cutter
        )
        watcher = self._watcher_of_gpus = self._watcher(watch)
        begun = bool(watch.known)
        if begun:
            self.cutter.know(watch.known)
        watch.known = watch.known or self._settings.gpus

        def turn() -> None:
            nonlocal begun
            begun = begun or source.exists() or self.cutter.simulates
            if begun:
                watcher.turn()
            else:
                watcher.hurry.wait(self._settings.gpu_every_s)
                watcher.hurry.clear()

        self._hooks.keep_running(turn)

    def _take(self, look: gpu_watcher.GpuLook) -> None:
        """Take over the result of a look at GPUs, and report changes at once."""
        with self._lock:
            self._untold = look.usage or self._untold
            self._seen = look.usage
            self._on_gpus = look.tasks
            if not self.take_over(inventory.with_gpus(self.inventory, look)):
                return
            self._hooks.gpus_changed(self.inventory.gpus)
        for complaint in gpu_watcher.complaints(look):
            self._hooks.say(complaint)
