"""Looks at the node's GPUs again and again, and remembers what one sample can't tell.

A thread of the agent calls :meth:`Watch.look`; what a driver that hangs keeps waiting is that
thread and nothing else. What is remembered across the agent's life, the numbers of devices, lies
in ``gpus.json`` of the node's root and holds for one boot.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from agents.gpus import gpu_inventory, gpu_selection, mig_manager, process_owners, samples
from agents.host import host_info, processes
from agents.settings import AgentSettings
from reconciler.model.observed import devices, task_usage
from reconciler.model.state import records

#: How often it is looked whether a driver has come where there was none.
ABSENT_EVERY_S = 600.0
#: How long an agent that starts waits to know its devices before it says what it has.
FIRST_S = 5.0


class SampleSource(Protocol):
    """Where samples come from: :class:`agents.gpus.nvml_client.Probe`."""

    def sample(self, *, usage: bool) -> samples.Sample:
        """A sample, in a bounded time."""

    def cut(self, order: samples.MigOrder) -> samples.MigOutcome:
        """Change the MIG layout of a device, in a bounded time."""

    def close(self) -> None:
        """Let go of the driver."""


class GpuLook(msgspec.Struct, frozen=True):
    """What a look found. ``gpus`` by number; ``foreign`` are processes that are no task's.

    ``tasks``: what attempts have on devices.

    ``again``: a device was changed since, and is to be looked at.

    ``lacking``: what the node is to offer and does not have, in words.
    """

    gpus: tuple[records.Gpu, ...]
    driver: devices.GpuDriver
    foreign: tuple[devices.GpuProcess, ...] = ()
    usage: tuple[devices.GpuUsage, ...] = ()
    again: bool = False
    tasks: Mapping[str, tuple[task_usage.GpuUse, ...]] = {}
    lacking: tuple[str, ...] = ()


class _Kept(msgspec.Struct, frozen=True):
    """What ``gpus.json`` holds."""

    boot_id: str
    gpus: tuple[records.Gpu, ...]


_DECODE_KEPT = msgspec.json.Decoder(_Kept).decode


class GpuWatch:
    """One node's GPUs. Not for two threads at once."""

    def __init__(
        self,
        root: Path,
        boot_id: str,
        source: SampleSource,
        settings: AgentSettings,
        cutter: mig_manager.MigManager | None = None,
    ) -> None:
        self._cutter = cutter
        self._root = root
        self._boot_id = boot_id
        self._source = source
        self._chosen = settings.gpu_uuids
        self._usage = settings.gpu_usage
        self._seen: dict[tuple[str, int], gpu_inventory.ForeignProcess] = {}
        self._xids: dict[str, tuple[devices.Xid, ...]] = {}
        self._shared_cgroup = process_owners.cgroup_of(os.getpid())
        self.known = self._load()

    def look(self, tasks: Mapping[str, int]) -> GpuLook:
        """What the devices are and do now; ``tasks`` maps live attempts to main processes."""
        sample = self._source.sample(usage=self._usage)
        sample = gpu_selection.chosen(sample, self._chosen, self.known)
        known = gpu_inventory.merge(self.known, sample, host_info.numa_of_pci)
        known = gpu_selection.only(known, self._chosen)
        again = False
        if self._cutter is not None and sample.driver == devices.OK:
            known, again = self._cutter.turn(sample, known, self._source)
        if known != self.known:
            self._save(known)
        self.known = known
        driver = gpu_inventory.driver_of(sample)
        if sample.driver != devices.OK:
            # nobody knows who is on the devices: what was told stays told
            return GpuLook(known, driver, gpu_inventory.told(self._seen))
        pids = {process.pid for device in sample.devices for process in device.processes}
        table = process_owners.read(pids, tasks, str(self._root)) if pids else {}
        self._seen, owned = gpu_inventory.attribute(
            sample,
            known,
            table,
            tasks,
            self._seen,
            shared_cgroup=self._shared_cgroup,
            clocks=(time.time(), processes.boottime()),
        )
        self._xids = gpu_inventory.count_events(self._xids, sample.events)
        foreign = gpu_inventory.told(self._seen)
        lacking = tuple(gpu_selection.lacking(self._chosen, known))
        if not self._usage:
            return GpuLook(known, driver, foreign, again=again, tasks=owned, lacking=lacking)
        found = gpu_inventory.usage_of(sample, known, owned=owned, foreign=foreign, xids=self._xids)
        if self._cutter is not None:
            found = self._cutter.with_attempts(found)
        return GpuLook(known, driver, foreign, found, again, owned, lacking)

    def close(self) -> None:
        """Let go of the driver."""
        self._source.close()

    def forget_events(self, uuids: Iterable[str]) -> None:
        """Devices were reset: what they told before is over."""
        gone = set(uuids)
        self._xids = {uuid: xids for uuid, xids in self._xids.items() if uuid not in gone}

    def _load(self) -> tuple[records.Gpu, ...]:
        """The devices of this boot as an earlier agent of the node knew them."""
        try:
            kept = _DECODE_KEPT((self._root / "gpus.json").read_bytes())
        except (OSError, msgspec.MsgspecError):
            return ()
        return gpu_selection.only(kept.gpus, self._chosen) if kept.boot_id == self._boot_id else ()

    def _save(self, known: tuple[records.Gpu, ...]) -> None:
        """Losing this costs numbers that stay the same, and only when the agent starts anew."""
        fresh = self._root / "gpus.json.new"
        with contextlib.suppress(OSError):
            fresh.write_bytes(msgspec.json.encode(_Kept(self._boot_id, known)))
            fresh.replace(self._root / "gpus.json")


class GpuWatcher:
    """Runs a watch for the agent: ``turn`` again and again, in a thread of its own."""

    def __init__(
        self,
        settings: AgentSettings,
        watch: GpuWatch,
        *,
        tasks: Callable[[], Mapping[str, int]],
        take: Callable[[GpuLook], None],
        leaving: threading.Event,
    ) -> None:
        self._every_s = settings.gpu_every_s
        self._watch = watch
        self._tasks = tasks
        self._take = take
        self._leaving = leaving
        self._first = threading.Event()
        #: There is something to look for before the next look is due.
        self.hurry = threading.Event()
        self._taking = threading.Lock()
        #: Held by whoever asks the driver for something, or wants nobody to.
        self._driver = threading.Lock()
        if watch.known:
            note = "not asked since the agent started"
            take(GpuLook(watch.known, devices.GpuDriver(devices.OK, note)))
            self._first.set()

    def turn(self) -> None:
        """Look once, say what was found, and wait until the next look is due."""
        with self._driver:
            look = self._watch.look(self._tasks())
        with self._taking:
            self._take(look)
            self._first.set()
        if not look.again and not self._leaving.is_set():
            self.hurry.wait(ABSENT_EVERY_S if look.driver.state == "absent" else self._every_s)
        self.hurry.clear()

    @contextlib.contextmanager
    def leave_alone(self, reset: Collection[str] = ()) -> Iterator[None]:
        """Nothing of the agent has a device open meanwhile, or changes one: the driver refuses to
        reset a device that another program holds, were it only to look at it. Where it ends well
        the devices of the UUIDs ``reset`` were reset."""
        try:
            with self._driver:
                self._watch.close()
                yield
                self._watch.forget_events(reset)
        finally:
            self.hurry.set()

    def wait_for_first(self) -> None:
        """Wait for the first look; where it takes long, it is said so and nothing more waits."""
        if self._first.wait(FIRST_S):
            return
        message = f"the NVIDIA driver has not answered in {FIRST_S:g} s; going on without GPUs"
        with self._taking:
            if not self._first.is_set():
                self._take(GpuLook((), devices.GpuDriver(devices.UNRESPONSIVE, message)))


def complaints(look: GpuLook) -> Iterator[str]:
    """What of a look the operator of the node has to know."""
    if look.driver.state not in {devices.OK, "absent"}:
        yield look.driver.message
    yield from look.lacking
    for gpu in look.gpus:
        if gpu.state != devices.OK:
            yield f"GPU {gpu.index} ({gpu.uuid}) is {gpu.state}: {gpu.message}"
        if gpu.cut is not None and gpu.cut.message:
            yield f"GPU {gpu.index} ({gpu.uuid}), its MIG layout: {gpu.cut.message}"
