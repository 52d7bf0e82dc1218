"""Samples the node's GPUs regularly, and remembers what a single sample cannot show.

A thread of the agent calls :meth:`GpuWatch.look`; a driver that hangs blocks only that thread. The
numbers of GPUs are saved in ``gpus.json`` in the node's folder, for one boot.
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

#: How often to check if a missing driver has been installed.
ABSENT_EVERY_S = 600.0
#: How long a starting agent waits for its GPUs before it reports without them.
FIRST_S = 5.0


class SampleSource(Protocol):
    """A source of samples, like :class:`agents.gpus.nvml_client.NvmlClient`."""

    def sample(self, *, usage: bool) -> samples.Sample:
        """Return a sample within a limited time."""

    def cut(self, order: samples.MigOrder) -> samples.MigOutcome:
        """Change the MIG layout of a GPU within a limited time."""

    def close(self) -> None:
        """Release the driver."""


class GpuLook(msgspec.Struct, frozen=True):
    """Result of one look at the GPUs.

    Attributes:
        gpus: GPUs by number.
        foreign: processes that belong to no task.
        tasks: usage of GPUs by attempts.
        again: True if a GPU was changed after the sample, so that another look is needed.
        lacking: messages about GPUs that the node must offer and does not have.
    """

    gpus: tuple[records.Gpu, ...]
    driver: devices.GpuDriver
    foreign: tuple[devices.GpuProcess, ...] = ()
    usage: tuple[devices.GpuUsage, ...] = ()
    again: bool = False
    tasks: Mapping[str, tuple[task_usage.GpuUse, ...]] = {}
    lacking: tuple[str, ...] = ()


class _Kept(msgspec.Struct, frozen=True):
    """Contents of ``gpus.json``."""

    boot_id: str
    gpus: tuple[records.Gpu, ...]


_DECODE_KEPT = msgspec.json.Decoder(_Kept).decode


class GpuWatch:
    """The GPUs of one node. Only one thread may use it at a time."""

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
        """Sample the GPUs. ``tasks`` has the main processes of live attempts."""
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
            # it is unknown who uses the GPUs: the last report stays
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
        """Release the driver."""
        self._source.close()

    def forget_events(self, uuids: Iterable[str]) -> None:
        """Forget XIDs of GPUs that were reset."""
        gone = set(uuids)
        self._xids = {uuid: xids for uuid, xids in self._xids.items() if uuid not in gone}

    def _load(self) -> tuple[records.Gpu, ...]:
        """Load the GPUs of this boot as an earlier agent knew them."""
        try:
            stored = _DECODE_KEPT((self._root / "gpus.json").read_bytes())
        except (OSError, msgspec.MsgspecError):
            return ()
        return (
            gpu_selection.only(stored.gpus, self._chosen) if stored.boot_id == self._boot_id else ()
        )

    def _save(self, known: tuple[records.Gpu, ...]) -> None:
        """Save the GPUs. A failure only costs stable numbers after a restart of the agent."""
        fresh = self._root / "gpus.json.new"
        with contextlib.suppress(OSError):
            fresh.write_bytes(msgspec.json.encode(_Kept(self._boot_id, known)))
            fresh.replace(self._root / "gpus.json")


class GpuWatcher:
    """Runs a watch for the agent. A thread calls ``turn`` again and again."""

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
        #: Set if a look is needed before the next one is due.
        self.hurry = threading.Event()
        self._taking = threading.Lock()
        #: Held while the driver is used, and by those who need nobody to use it.
        self._driver = threading.Lock()
        if watch.known:
            note = "not asked since the agent started"
            take(GpuLook(watch.known, devices.GpuDriver(devices.OK, note)))
            self._first.set()

    def turn(self) -> None:
        """Look once, pass on the result, and wait until the next look is due."""
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
        """Keep the agent from having any GPU open or changing one.

        The driver refuses to reset a GPU that another program has open. If the context ends without
        an error, the GPUs in ``reset`` have been reset.
        """
        try:
            with self._driver:
                self._watch.close()
                yield
                self._watch.forget_events(reset)
        finally:
            self.hurry.set()

    def wait_for_first(self) -> None:
        """Wait for the first look. If it takes long, log that and go on."""
        if self._first.wait(FIRST_S):
            return
        message = f"the NVIDIA driver has not answered in {FIRST_S:g} s; going on without GPUs"
        with self._taking:
            if not self._first.is_set():
                self._take(GpuLook((), devices.GpuDriver(devices.UNRESPONSIVE, message)))


def complaints(look: GpuLook) -> Iterator[str]:
    """Yield messages about a look that the operator needs."""
    if look.driver.state not in {devices.OK, "absent"}:
        yield look.driver.message
    yield from look.lacking
    for gpu in look.gpus:
        if gpu.state != devices.OK:
            yield f"GPU {gpu.index} ({gpu.uuid}) is {gpu.state}: {gpu.message}"
        if gpu.cut is not None and gpu.cut.message:
            yield f"GPU {gpu.index} ({gpu.uuid}), its MIG layout: {gpu.cut.message}"
