"""What an agent notices of its node beside its tasks: machine, GPUs, and whether it is well.

Loops look, each in a thread that the agent keeps going; what they find becomes the inventory,
under the agent's lock, and what is new of it is told at once.
"""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from agents.gpus import gpu_selection, gpu_watcher, mig_manager, nvml_client, simulated
from agents.health import checks, volume_checks
from agents.host import clock_skew, host_info
from agents.isolation import cgroups
from agents.node import inventory, usage_sampler
from agents.settings import AgentSettings
from reconciler.model import desired
from reconciler.model.observed.devices import GpuProcess, GpuUsage
from reconciler.model.observed.health_checks import CheckPlan, CheckResult
from reconciler.model.observed.storage import VolumeState
from reconciler.model.protocol.agent_messages import Assignment
from reconciler.model.state.records import Gpu, Inventory, Isolation


class MonitorHooks(NamedTuple):
    """What a monitor needs to know of the agent, and calls when it has found something.

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
    """One node's.

    Attributes:
        inventory: what is known of the node; replaced under the lock, and known by its identity.
        probe: asks the driver.
        volumes: looks at those that the node is to have.
        cutter: has devices cut as the pool says.
        uses: what tasks use.
    """

    def __init__(
        self,
        settings: AgentSettings,
        boot_id: str,
        hooks: MonitorHooks,
        lock: threading.RLock,
        leaving: threading.Event,
        *,
        skew: clock_skew.Skew,
    ) -> None:
        self.inventory = inventory.inventory_of(settings)
        self.probe = nvml_client.NvmlClient()
        self._settings = settings
        self._boot_id = boot_id
        self._hooks = hooks
        self._lock = lock
        self._leaving = leaving
        self._checker = checks.Checker(settings.root, boot_id)
        self.volumes = volume_checks.Volumes(checks.Mounts(), self._know_volumes)
        self._given = gpu_selection.parts(settings.gpu_uuids)
        self.cutter = mig_manager.MigManager(
            settings.root, boot_id, hooks.holders, lock, gpus=settings.gpus, given=self._given
        )
        self._skew = skew
        self._notices: dict[str, str] = {}
        self.uses = usage_sampler.Uses(cgroups.token_of(str(settings.root)))
        self._on_gpus: usage_sampler.OnGpus = {}
        self._watcher_of_gpus: gpu_watcher.GpuWatcher | None = None
        self._plan: CheckPlan | None = None
        self._look_now = threading.Event()
        self._seen: tuple[GpuUsage, ...] = ()
        self._untold: tuple[GpuUsage, ...] | None = None

    def begin(self) -> None:
        """Know the GPUs before the first report, unless the driver takes long over them."""
        if self._settings.gpus:
            self._begin_simulating()
        if not self._settings.watch_gpus:
            return
        watch = gpu_watcher.GpuWatch(
            self._settings.root, self._boot_id, self.probe, self._settings, self.cutter
        )
        watcher = self._watcher_of_gpus = self._watcher(watch)
        self._hooks.keep_running(watcher.turn)
        watcher.wait_for_first()

    def cut(self, plan: desired.MigPlan | None) -> None:
        """How devices are to be cut from now on; called under the lock."""
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
        """Nobody here looks at GPUs meanwhile, or changes them; where it ends well those of these
        UUIDs were reset."""
        watcher = self._watcher_of_gpus
        with watcher.leave_alone(reset) if watcher is not None else contextlib.nullcontext():
            yield

    def follow(self, plan: CheckPlan | None) -> None:
        """What is to be checked from now on."""
        self._plan = plan
        self._look_now.set()

    def hold_by(self, isolation: Isolation) -> None:
        """This is how tasks are held from now on."""
        self.take_over(msgspec.structs.replace(self.inventory, isolation=isolation))

    def notice(self, text: str, of: str = "port") -> None:
        """What keeps no task from running and yet is to be known of something; empty: nothing any
        more."""
        with self._lock:
            self._notices.pop(of, None)
            if text:
                self._notices[of] = text
            told = "; ".join(self._notices.values())
            self.take_over(msgspec.structs.replace(self.inventory, notice=told))

    def take_over(self, found: Inventory) -> bool:
        """Take over an inventory that says something new, under the lock, and have it told."""
        if found == self.inventory:
            return False  # the one that is held may be on its way: it is known by its identity
        self.inventory = found
        self._hooks.inventory_changed()
        return True

    def gpu_usage(self) -> tuple[GpuUsage, ...] | None:
        """What GPUs do, as far as it was not told yet; asked under the lock."""
        untold, self._untold = self._untold, None
        return untold

    def gpus_seen(self) -> tuple[GpuUsage, ...]:
        """What GPUs did when they were last looked at."""
        return self._seen

    def look_at_host(self) -> None:
        """Notice what has changed of the machine itself."""
        host, settings = host_info.read(), self._settings
        address = inventory.address_now(self.inventory, settings)
        with self._lock:
            self.take_over(inventory.with_host(self.inventory, host, address, settings))

    def look_at_tasks(self) -> None:
        """Sample what tasks use, and wait until the next time."""
        self.uses.look(self._hooks.pids(), self._on_gpus)
        self._leaving.wait(usage_sampler.EVERY_S)

    def check(self) -> None:
        """Look at the node's health as its pool asks for; what changes is told at once."""
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
                    told = checks.unwell(found)
                    known = msgspec.structs.replace(self.inventory, checks=told, unchecked=False)
                    self.take_over(known)

    def check_now(self, plan: CheckPlan, names: tuple[str, ...]) -> tuple[CheckResult, ...]:
        """Make checks before or after a job; what they found is told before anything else."""
        with self._lock:
            seen = self._readings()
        with self._checker.turn:
            found = self._checker.gate(plan, names, seen)
            with self._lock:
                told = checks.merged(self.inventory.checks, found)
                self.take_over(msgspec.structs.replace(self.inventory, checks=told))
        return found

    def _readings(self) -> checks.Readings:
        """What is known already of what checks judge; asked under the lock."""
        return checks.Readings(
            gpus=self.inventory.gpus,
            usage=self._seen,
            driver=self.inventory.gpu_driver,
            clock_skew=self._skew.problem,
        )

    def _know_volumes(self, known: tuple[VolumeState, ...]) -> None:
        with self._lock:
            self.take_over(msgspec.structs.replace(self.inventory, volumes=known))

    def _watcher(self, watch: gpu_watcher.GpuWatch) -> gpu_watcher.GpuWatcher:
        return gpu_watcher.GpuWatcher(
            self._settings, watch, tasks=self._hooks.pids, take=self._take, leaving=self._leaving
        )

    def _begin_simulating(self) -> None:
        """Look at simulated GPUs, from when a file says something of them or one is cut."""
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
        """Take over what a look at GPUs found; what changed is reported at once."""
        with self._lock:
            self._untold = look.usage or self._untold
            self._seen = look.usage
            self._on_gpus = look.tasks
            if not self.take_over(inventory.with_gpus(self.inventory, look)):
                return
            self._hooks.gpus_changed(self.inventory.gpus)
        for complaint in gpu_watcher.complaints(look):
            self._hooks.say(complaint)
