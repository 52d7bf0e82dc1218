"""Samples what each task uses of the node, from ``/proc`` and control groups.

A task's processes are those in its session, descendants of its main process, and those in its
control groups, so daemons count too. CPU time and I/O of children that were waited for are included
in their parents' values by the kernel; sums never fall.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from agents.host import processes
from agents.isolation import cgroups
from reconciler.model.observed import devices, task_usage
from reconciler.model.protocol import agent_messages
from reconciler.model.state.records import AttemptReport
from reconciler.model.values.text_lines import split_lines

EVERY_S = 15.0
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Usage of GPUs by attempt, from the last look at GPUs.
OnGpus = Mapping[str, tuple[task_usage.GpuUse, ...]]
#: What is not sampled for longer counts as not measured.
GAP_S_MAX = 4 * EVERY_S


class GpuShare(NamedTuple):
    """The GPUs of a task whose utilisation is known, and how many of them are busy, in GPUs."""

    measured: float = 0.0
    busy: float = 0.0


def gpu_shares(
    holders: Mapping[str, agent_messages.Assignment | None],
    usage: Iterable[devices.GpuUsage],
) -> dict[str, GpuShare]:
    """Return the share of each attempt in the node's GPUs.

    Args:
        holders: attempts with their assignments, None if that is not known any more.
        usage: of the GPUs, at the last look.
    """
    ratios = {
        one.index: min(1.0, max(0.0, one.utilization_ratio))
        for one in usage
        if one.utilization_ratio is not None
    }
    found = {}
    for attempt, assignment in holders.items():
        seen = [ratios[one] for one in assignment.devices if one in ratios] if assignment else []
        if assignment is not None and seen:
            share = assignment.share_milli / 1000
            found[attempt] = GpuShare(share * len(seen), share * sum(seen))
    return found


class _Process(msgspec.Struct, frozen=True):
    """A process in ``/proc``. ``lives``: False if it only waits to be reaped."""

    lives: bool
    parent: int
    session: int
    cpu_s: float
    memory_bytes: int


class TaskUsageSampler:
    """The usage of live tasks. One thread looks, any thread may read: results are replaced, not
    changed.

    Args:
        token: name of the node's control groups, from ``cgroups.token_of``.
        top: folder that contains ``/proc`` and the mounts of control groups.
        clock: returns the wall clock's time.
    """

    def __init__(self, token: str, top: str = "", clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._token = token
        self._top = top
        self._found: dict[str, task_usage.TaskUse] = {}
        self._untold: tuple[task_usage.TaskUse, ...] | None = None

    def look(
        self,
        pids: Mapping[str, int],
        on_gpus: OnGpus,
        shares: Mapping[str, GpuShare] = MappingProxyType({}),
    ) -> None:
        """Sample once. ``pids`` are main processes by attempt, ``shares`` their GPUs."""
        if not pids:
            self._found, self._untold = {}, None
            return
        table = self._table()
        children: dict[int, list[int]] = {}
        sessions: dict[int, list[int]] = {}
        for pid, facts in table.items():
            children.setdefault(facts.parent, []).append(pid)
            sessions.setdefault(facts.session, []).append(pid)
        mounts = hierarchies(self._top)
        found = {}
        for name, main in pids.items():
            groups = self._groups(main, mounts)
            tracked = groups.get(cgroups.UNIFIED) or groups.get("freezer")
            members = {*sessions.get(main, ()), *(cgroups.members(tracked) if tracked else ())}
            members = {pid for pid in processes.below({main, *members}, children) if pid in table}
            use = self._use(name, members, table, groups, on_gpus.get(name, ()))
            found[name] = self._with_gpus(use, shares.get(name, GpuShare()))
        self._found, self._untold = found, tuple(found.values())[: task_usage.TASKS_MAX]

    def news(self) -> tuple[task_usage.TaskUse, ...] | None:
        """Return the usage sampled since the last call; None if nothing was."""
        untold, self._untold = self._untold, None
        return untold

    def newest(self) -> dict[str, task_usage.TaskUse]:
        """Return the last sample of each task, by attempt."""
        return dict(self._found)

    def with_use(self, report: AttemptReport) -> AttemptReport:
        """Return a report with what was sampled while the attempt ran."""
        sampled = self._found.get(report.id)
        if sampled is None:
            return report
        return msgspec.structs.replace(
            report,
            cpu_s=max(report.cpu_s, sampled.cpu_s),
            max_memory_bytes=max(report.max_memory_bytes, sampled.memory_max_bytes),
            read_bytes=max(report.read_bytes, sampled.read_bytes or 0),
            written_bytes=max(report.written_bytes, sampled.written_bytes or 0),
            measured_gpu_s=max(report.measured_gpu_s, sampled.measured_gpu_s),
            busy_gpu_s=max(report.busy_gpu_s, sampled.busy_gpu_s),
        )

    def _with_gpus(self, use: task_usage.TaskUse, share: GpuShare) -> task_usage.TaskUse:
        """Return a sample with what its GPUs did since the one before."""
        before = self._found.get(use.attempt)
        if before is None:
            return use
        since_s = use.at - before.at
        since_s = since_s if 0 < since_s <= GAP_S_MAX else 0.0
        return msgspec.structs.replace(
            use,
            measured_gpu_s=round(before.measured_gpu_s + share.measured * since_s, 3),
            busy_gpu_s=round(before.busy_gpu_s + share.busy * since_s, 3),
        )

    def _use(
        self,
        name: str,
        members: Iterable[int],
        table: Mapping[int, _Process],
        groups: Mapping[str, str],
        gpus: tuple[task_usage.GpuUse, ...],
    ) -> task_usage.TaskUse:
        own = [table[pid] for pid in members]
        before = self._found.get(name) or task_usage.TaskUse(name, 0.0)
        memory = sum(one.memory_bytes for one in own)
        most = max(memory, before.memory_max_bytes)
        of_group = _memory_of(groups)
        if of_group is not None:
            memory, most = of_group
        read, written = self._io(members)
        return task_usage.TaskUse(
            attempt=name,
            at=self._clock(),
            processes=sum(one.lives for one in own),
            cpu_s=max(before.cpu_s, round(sum(one.cpu_s for one in own), 2)),
            memory_bytes=memory,
            memory_max_bytes=most,
            read_bytes=_most(before.read_bytes, read),
            written_bytes=_most(before.written_bytes, written),
            gpus=gpus,
        )

    def _table(self) -> dict[int, _Process]:
        found = {}
        for path in Path(f"{self._top}/proc").glob("[0-9]*/stat"):
            fields = processes.read_file(str(path), 4096).rpartition(b")")[2].split()
            if len(fields) > 21:
                found[int(path.parent.name)] = _Process(
                    lives=fields[0] not in {b"Z", b"X"},
                    parent=int(fields[1]),
                    session=int(fields[3]),
                    cpu_s=sum(map(int, fields[11:15])) * _TICK_S,
                    memory_bytes=int(fields[21]) * _PAGE_BYTES,
                )
        return found

    def _io(self, members: Iterable[int]) -> tuple[int | None, int | None]:
        """Return bytes read and written by processes; None if they cannot be known."""
        usages = []
        for pid in members:
            text = processes.read_file(f"{self._top}/proc/{pid}/io", 4096).decode()
            with contextlib.suppress(ValueError):
                lines = (line.split(": ") for line in split_lines(text))
                usages.append({key: int(value) for key, value in lines})
        usages = [usage for usage in usages if usage]
        if not usages:
            return None, None
        return (
            sum(usage.get("read_bytes", 0) for usage in usages),
            sum(usage.get("write_bytes", 0) for usage in usages),
        )

    def _groups(self, pid: int, mounts: Mapping[str, tuple[str, str]]) -> dict[str, str]:
        """Return folders of the control groups of a process's task, by controller."""
        found = {}
        # whoever can create groups can give them any name
        text = os.fsdecode(processes.read_file(f"{self._top}/proc/{pid}/cgroup", 2**16))
        for line in split_lines(text):
            _, listed, path = line.split(":", 2)
            above, made, below = path.partition(f"/{self._token}/run/")
            if not made:
                continue
            group = f"{above}{made}{below.partition('/')[0]}"
            for name in listed.split(",") if listed else [cgroups.UNIFIED]:
                if name in mounts:
                    at, shown = mounts[name]
                    found[name] = at + group.removeprefix(shown.rstrip("/"))
        return found


def hierarchies(top: str = "") -> dict[str, tuple[str, str]]:
    """Return mount point and visible part of each hierarchy, by controller or ``unified``."""
    found: dict[str, tuple[str, str]] = {}
    text = processes.read_file(f"{top}/proc/self/mountinfo", 2**22).decode("utf-8", "replace")
    for line in split_lines(text):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in {"cgroup", "cgroup2"}:
            continue
        for name in [cgroups.UNIFIED] if kind[0] == "cgroup2" else kind[2].split(","):
            found.setdefault(name, (f"{top}{fields[4]}", fields[3]))
    return found


def _memory_of(groups: Mapping[str, str]) -> tuple[int, int] | None:
    """Return current and peak memory of the limiting control group; None if there is none."""
    old, new = groups.get("memory"), groups.get(cgroups.UNIFIED)
    if old is not None:
        names = ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "total_inactive_file")
        folder = old
    elif new is not None and os.path.exists(f"{new}/memory.current"):  # noqa: PTH110
        names = ("memory.current", "memory.peak", "inactive_file")
        folder = new
    else:
        return None
    used, most = (cgroups.number(cgroups.read(f"{folder}/{name}")) for name in names[:2])
    cached = cgroups.value(cgroups.read(f"{folder}/memory.stat"), names[2])
    if not used and not most:
        return None
    return max(0, used - cached), max(used, most)


def _most(before: int | None, now: int | None) -> int | None:
    return before if now is None else max(before or 0, now)
