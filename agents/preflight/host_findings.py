"""Checks of the machine: Python and kernel, user, folder, processors, memory and networks."""

import contextlib
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agents.gpus import process_owners
from agents.host import disk_space
from agents.isolation import kernel_tables, project_quotas
from agents.preflight.finding import (
    NOT_EXERCISED,
    PreflightFinding,
    failed,
    gib,
    note,
    ok,
)
from reconciler.model.observed.host_facts import Host

PYTHON_MIN = (3, 11)
#: Below this a task that writes anything soon fails.
FREE_BYTES_MIN = 2**30
#: Data loaders with several processes pass batches through shared memory.
SHARED_MEMORY_BYTES_MIN = 2**30


def system(top: Path) -> Iterator[PreflightFinding]:
    """Check Python, the kernel, and what the supervisor needs of it."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= PYTHON_MIN:
        yield ok("python", version)
    else:
        wanted = ".".join(map(str, PYTHON_MIN))
        yield failed("python", version, f"To fix: use Python {wanted} or newer")
    if sys.platform != "linux":
        yield failed("kernel", platform.system(), "Nodes run on Linux only")
        return
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        yield failed(
            "kernel", f"{platform.release()} has no pidfd_open", "To fix: use Linux 5.3 or newer"
        )
    else:
        yield ok("kernel", platform.release())
    boot = top / "proc/sys/kernel/random/boot_id"
    if not boot.exists():
        yield failed("boot id", f"{boot} can't be read", "To fix: mount /proc")


def user(uid: int) -> PreflightFinding:
    """Check as which users tasks can run."""
    name = process_owners.user_name(uid)
    if uid == 0:
        return ok("user", f"{name}: tasks run as the Unix users of their owners")
    do = "To run tasks as their owners: start the agent as root"
    return note("user", f"{name}: every task runs as {name}", do)


def folder(root: Path | None) -> Iterator[PreflightFinding]:
    """Check that the node's folder exists or can be created, and has room."""
    if root is None:
        yield note("folder", "not checked", "To check it: give --root")
        return
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryDirectory(dir=existing) as trial:
            link = socket.socket(socket.AF_UNIX)
            with contextlib.closing(link):
                # the agent's sockets may lie deeper than their paths could say
                handle = os.open(trial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    link.bind(f"/proc/self/fd/{handle}/s")
                finally:
                    os.close(handle)
            Path(trial, "f").touch(0o700)
        free_bytes = shutil.disk_usage(existing).free
    except OSError as problem:
        is_full = problem.errno in disk_space.EXPLAINED
        do = "To fix: choose another --root, or make this one usable"
        if is_full:
            do = disk_space.lacking(existing, problem.errno)
        yield failed("folder", f"{root}: {problem.strerror or problem}", do)
        return
    found = f"{root}: {gib(free_bytes)} free"
    if free_bytes < FREE_BYTES_MIN:
        yield note("folder", found, "To fix: free some space, for logs and scratch files of tasks")
    else:
        yield ok("folder", found)


def quotas(root: Path | None) -> Iterator[PreflightFinding]:
    """Check if the file system itself can bound what tasks take of it."""
    if root is None:
        return
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    found = project_quotas.offer(str(existing))
    why = project_quotas.rehearse(str(existing)) if found.usable else ""
    if why:
        do = "scratchLimit holds by looks every few seconds. To fix: look at the quotas there"
        yield note("quotas", f"those of projects are there, and can't be set: {why}", do)
    elif found.usable:
        yield ok("quotas", f"scratchLimit is also set as a quota of projects; {NOT_EXERCISED}")
    else:
        do = (
            "scratchLimit holds by looks every few seconds. To fix: mount XFS or ext4 with prjquota"
        )
        yield note("quotas", f"none of projects: {found.problem}", do)


def machine(host: Host) -> Iterator[PreflightFinding]:
    """Report processors, memory and networks."""
    numa_nodes = max(1, len(host.numa))
    yield ok("cpus", f"{host.cpus} in {host.sockets} sockets, {numa_nodes} NUMA nodes")
    yield ok("memory", gib(host.memory_bytes))
    up = [link for link in host.links if link.state == "up"]
    if up:
        yield ok(
            "network", ", ".join(f"{link.name} {_speed(link.speed_bits_per_s)}" for link in up)
        )
    else:
        yield note("network", "no interface reports that it is up")
    if not host.rdma:
        yield note("rdma", "none")
        return
    active = sum(port.state == "ACTIVE" for port in host.rdma)
    found = f"{active} of {len(host.rdma)} ports are active; {NOT_EXERCISED}"
    if active == len(host.rdma):
        yield ok("rdma", found)
    else:
        yield note("rdma", found, "To fix: check cables and switches")


def shared_memory(top: Path) -> PreflightFinding:
    """Check how much tasks may share in ``/dev/shm``."""
    name = "shared memory"
    try:
        size_bytes = shutil.disk_usage(top / "dev/shm").total
    except OSError:
        return note(name, "no /dev/shm", "To fix: mount it; many data loaders need it")
    found = f"{gib(size_bytes)} in /dev/shm"
    if size_bytes < SHARED_MEMORY_BYTES_MIN:
        return note(name, found, "Data loaders with several processes may need more")
    return ok(name, found)


def tables(cpus: int, top: Path) -> PreflightFinding:
    """Check the tables of the kernel that one task, or a few, can take from all others."""
    name, tasks = "kernel tables", max(1, cpus)
    small = list(kernel_tables.too_small(tasks, top))
    if not small:
        enough = f"enough for {tasks} tasks of usual needs, one a CPU"
        return ok(name, f"{enough}; one task can still take all of a table")
    found = ", ".join(f"{table.sysctl} {number}" for table, number in small)
    counted = ", ".join(table.counts for table, _ in small)
    wanted = " ".join(f"{table.sysctl}={table.wanted(tasks)}" for table, _ in small)
    taken = f"One task, or a few, can take all {counted}"
    do = f"{taken}. To fix: sysctl -w {wanted}, and in /etc/sysctl.d"
    return note(name, f"too small for {tasks} tasks, one a CPU: {found}", do)


def _speed(bits_per_s: int | None) -> str:
    return "of unknown speed" if bits_per_s is None else f"{bits_per_s / 10**9:g} Gb/s"
