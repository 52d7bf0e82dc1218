"""The node's inventory, its usage, and the id of its boot."""

import contextlib
import os
import platform
import time
from pathlib import Path

import msgspec
import psutil

from agents.gpus import gpu_inventory, gpu_watcher
from agents.host import host_info
from agents.link import controller_address
from agents.settings import AgentSettings
from reconciler import __version__
from reconciler.model.observed.host_facts import Host
from reconciler.model.state.records import Inventory, NodeUsage
from reconciler.model.values import addresses
from reconciler.model.values.resources import Resources

VERSION = __version__
SAMPLE_EVERY_S = 15.0


def capacity_of(settings: AgentSettings, gpu_milli: int) -> Resources:
    """Return the capacity given on the command line, else what the machine has now: CPUs may go
    offline.
    """
    return Resources(
        cpu_milli=settings.cpu_milli or 1000 * (psutil.cpu_count() or 1),
        memory_bytes=settings.memory_bytes or psutil.virtual_memory().total,
        gpu_milli=gpu_milli,
    )


def inventory_of(settings: AgentSettings) -> Inventory:
    """Return what the node offers: the machine's resources unless the command line
    overrides them.
    """
    capacity = capacity_of(settings, 1000 * len(settings.gpus))
    return Inventory(
        hostname=platform.node(),
        address=controller_address.address_of(settings),
        capacity=capacity,
        gpus=settings.gpus,
        labels=settings.labels,
        kernel=platform.release(),
        agent_version=VERSION,
        virtual=settings.virtual,
        runs_as_root=os.geteuid() == 0,
        host=None if settings.virtual else host_info.read(),
        unchecked=True,
        checked="",
    )


def with_gpus(before: Inventory, look: gpu_watcher.GpuLook) -> Inventory:
    """Return the inventory with GPUs as last seen. It is equal if they have not changed."""
    capacity = before.capacity
    return msgspec.structs.replace(
        before,
        gpus=look.gpus,
        gpu_driver=look.driver,
        foreign_gpu_processes=look.foreign,
        capacity=msgspec.structs.replace(
            capacity, gpu_milli=gpu_inventory.capacity_milli(look.gpus)
        ),
    )


def boot_id_of(settings: AgentSettings) -> str:
    """Return the id of the node's boot.

    A virtual node has boots of its own. They last until the file ``boot`` in its root is removed,
    which :class:`agents.virtual.VirtualNodes` does when it kills a node.
    """
    if settings.boot_id:
        return settings.boot_id
    machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    if not settings.virtual:
        return machine
    nonce = settings.root / "boot"
    if not nonce.exists():
        fresh = nonce.with_suffix(".new")
        fresh.write_text(os.urandom(8).hex(), encoding="ascii")
        fresh.replace(nonce)
    return f"{machine}-{nonce.read_text(encoding='ascii').strip()}"


def with_host(before: Inventory, host: Host, address: str, settings: AgentSettings) -> Inventory:
    """Return the inventory with the machine as it is now; unchanged for a virtual node."""
    if before.host is None:
        return before
    capacity = capacity_of(settings, before.capacity.gpu_milli)
    return msgspec.structs.replace(before, host=host, address=address, capacity=capacity)


def address_now(before: Inventory, settings: AgentSettings) -> str:
    """Return the node's address, found again if it was loopback, as on a machine whose network came
    up after its agent.
    """
    lost = addresses.is_loopback(before.address)
    return controller_address.address_of(settings) if lost else before.address


class NodeUsageSampler:
    """Samples the node's usage, at most every 15 seconds."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process = psutil.Process()
        self._sampled_at = -SAMPLE_EVERY_S
        psutil.cpu_percent()

    def usage(self, helpers: tuple[int, ...]) -> NodeUsage | None:
        """Return a new sample if one is due, else None. ``helpers`` are processes of the agent."""
        now = time.monotonic()
        if now < self._sampled_at + SAMPLE_EVERY_S:
            return None
        self._sampled_at = now
        disk = psutil.disk_usage(str(self._root))
        cpu_s = sum(self._process.cpu_times()[:2])
        memory = self._process.memory_info().rss
        for helper in filter(None, helpers):
            with contextlib.suppress(psutil.Error, ValueError):
                process = psutil.Process(helper)
                cpu_s += sum(process.cpu_times()[:2])
                memory += process.memory_info().rss
        return NodeUsage(
            at=time.time(),
            cpu_percent=psutil.cpu_percent(),
            memory_used_bytes=psutil.virtual_memory().used,
            disk_used_bytes=disk.used,
            disk_total_bytes=disk.total,
            load_1m=os.getloadavg()[0],
            agent_cpu_s=round(cpu_s, 2),
            agent_memory_bytes=memory,
        )
