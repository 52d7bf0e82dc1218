"""The control groups of attempts, one in each hierarchy that an attempt needs. Stdlib only.

Creating and removing groups is expensive for the supervisor and the kernel. In version 1, groups
that an attempt leaves unchanged are therefore kept, with open files, for another attempt
(``CgroupPool``). Groups with kills, processes, subgroups or charged memory are removed; so are
groups whose files a task could write, groups of containers, and idle ones. What cannot be read does
not count as empty.
"""

# No pathlib or contextlib here: they would cost the supervisor memory.
# ruff: noqa: PTH102, PTH116

import errno
import os
from collections.abc import Sequence
from typing import Any

from agents.isolation import cgroups

#: Room for a supervisor that enters the group and forks.
PIDS_MIN = 4
#: A lower limit would kill a program before it runs.
MEMORY_BYTES_MIN = 2**20
#: Memory, mostly of files, that may still be charged to a group that is kept. The kernel does not
#: count much more precisely.
LEFT_BYTES_MAX = 2**20
#: Groups that are kept, limited also by half of the files that may be open.
KEPT_MAX = 128
#: Files that a group that is kept may have open.
_OPEN_MAX = 14
#: How long an unused group is kept.
IDLE_S = 60.0
#: What a group can be used for: which files are set, and what cannot be undone.
Shape = tuple[Any, ...]
#: Errors that show that a group does not exist any more, so that it is empty.
_GONE = frozenset({errno.ENOENT, errno.ENODEV})
#: Errors that show that a file does not exist or is not supported; others may pass.
_UNSUPPORTED = frozenset({errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL})
#: (file, value) pairs in order; a ``?`` before a file means that it may be missing.
Files = list[tuple[str, str]]


def cpu_weight(cpu_milli: int) -> int:
    """Return ``cpu.weight`` of version 2: 100, its default, for one CPU."""
    return min(10_000, max(1, cpu_milli // 10))


def cpu_shares(cpu_milli: int) -> int:
    """Return ``cpu.shares`` of version 1: 1024, its default, for one CPU."""
    return min(262_144, max(2, cpu_milli * 1024 // 1000))


def settings(tree: cgroups.Tree, limits: dict[str, Any]) -> dict[str, Files]:
    """Return by hierarchy what to write to which files before a task starts, except for memory.

    Args:
        limits: any of ``memory_bytes``, ``cpu_milli``, ``pids``, ``cpus`` (a list like ``0-3``) and
            ``deny_devices``.
    """
    cpu, cpus = limits.get("cpu_milli", 0), limits.get("cpus", "")
    pids = max(limits["pids"], PIDS_MIN) if limits.get("pids") else 0
    made: dict[str, Files] = {}
    if tree.kind == "cgroup-v2":
        files = made[cgroups.UNIFIED] = []
        has = tree.controllers
        if cpu and "cpu" in has:
            files.append(("cpu.weight", str(cpu_weight(cpu))))
        if pids and "pids" in has:
            files.append(("pids.max", str(pids)))
        if cpus and "cpuset" in has:
            files.append(("cpuset.cpus", cpus))
        return made
    if cpu and "cpu" in tree.bases:
        made["cpu"] = [("cpu.shares", str(cpu_shares(cpu)))]
    if pids and "pids" in tree.bases:
        made["pids"] = [("pids.max", str(pids))]
    if cpus and "cpuset" in tree.bases:
        made["cpuset"] = [("cpuset.cpus", cpus)]
    if limits.get("deny_devices") and "devices" in tree.bases:
        made["devices"] = [("devices.deny", rule) for rule in limits["deny_devices"]]
    return made


def memory(tree: cgroups.Tree, limits: dict[str, Any]) -> tuple[str, Files]:
    """Return the hierarchy of memory, and what to write to which files; empty without a limit."""
    text = str(max(limits.get("memory_bytes", 0), MEMORY_BYTES_MIN))
    if not limits.get("memory_bytes") or "memory" not in tree.controllers:
        return "", []
    if tree.kind == "cgroup-v2":
        files = [("memory.max", text), ("?memory.swap.max", "0"), ("?memory.oom.group", "1")]
        return cgroups.UNIFIED, files
    return "memory", [("memory.limit_in_bytes", text), ("?memory.memsw.limit_in_bytes", text)]


class AttemptCgroup:
    """The groups of one attempt, or of one after another.

    :meth:`bound` sets the memory limit, once the supervisor has left the group.
    """

    __slots__ = (
        "_files",
        "_missing",
        "_spent_us",
        "_tree",
        "doubtful",
        "folders",
        "kept",
        "name",
        "shape",
    )

    def __init__(
        self, tree: cgroups.Tree, name: str, hierarchies: Sequence[str], shape: Shape, *, kept: bool
    ) -> None:
        self._tree = tree
        self.name = name
        self.folders = {
            hierarchy: f"{tree.bases[hierarchy]}/run/{name}" for hierarchy in hierarchies
        }
        self.shape = shape
        self.kept = kept
        #: True if something happened in the group that the next attempt might notice.
        self.doubtful = False
        self._files: dict[str, int] = {}
        self._missing: set[str] = set()
        self._spent_us = 0

    def make(self) -> None:
        """Create the folders.

        Raises:
            OSError: the kernel refuses; folders created before still exist.
        """
        for hierarchy, folder in self.folders.items():
            try:
                os.mkdir(folder, 0o755)
            except FileNotFoundError:
                self._tree.renew(hierarchy)
                os.mkdir(folder, 0o755)
            if hierarchy == "cpuset":
                cgroups.inherit_cpuset(folder)

    # Files: those of a group that is kept stay open ------------------------------------------

    def _open(self, path: str) -> int:
        """Return the handle of a file of a group that is kept."""
        handle = self._files.get(path)
        if handle is None:
            flags = os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY
            handle = self._files[path] = os.open(path, flags | os.O_CLOEXEC)
        return handle

    def _write(self, path: str, text: str) -> None:
        if self.kept:
            os.write(self._open(path), text.encode())
        else:
            cgroups.write(path, text)

    def _read(self, path: str) -> str:
        if not self.kept:
            return cgroups.read(path)
        try:
            return self._read_surely(path)
        except OSError as problem:
            self.doubtful |= problem.errno not in _GONE
            return ""

    def _read_surely(self, path: str) -> str:
        """Return the contents of a file.

        Raises:
            OSError: it cannot be read.
        """
        if self.kept:
            return os.pread(self._open(path), 4096, 0).decode()
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(handle, 4096).decode()
        finally:
            os.close(handle)

    def _set(self, hierarchy: str, files: Files) -> None:
        folder = self.folders[hierarchy]
        for file, text in files:
            path = f"{folder}/{file.removeprefix('?')}"
            if path in self._missing:
                continue
            try:
                self._write(path, text)
            except OSError as problem:
                if not file.startswith("?"):
                    raise
                if problem.errno in _UNSUPPORTED:
                    self._missing.add(path)
                else:
                    self.doubtful = True

    # One attempt -----------------------------------------------------------------------------

    def set_limits(self, chosen: dict[str, Files]) -> None:
        """Apply the limits that must be set before a process enters.

        Raises:
            OSError: a requested limit cannot be set.
        """
        for hierarchy, files in chosen.items():
            self._set(hierarchy, files)

    def entries(self, but: str = "") -> list[str]:
        """Return the files by which a single-threaded process enters, except in hierarchy
        ``but``.
        """
        return [
            f"{at}/{cgroups.entry(hierarchy)}"
            for hierarchy, at in self.folders.items()
            if hierarchy != but
        ]

    def enter(self) -> None:
        """Move this process into the groups, so that its children are born there."""
        for path in self.entries():
            self._write(path, "0")

    def move_supervisor_back(self) -> None:
        """Move this process back to the supervisor's groups."""
        self._tree.move_supervisor_back(self.folders)

    def bound(self, limits: dict[str, Any]) -> bool:
        """Set the memory limit. Return False if more is already used."""
        hierarchy, files = memory(self._tree, limits)
        try:
            if hierarchy:
                self._set(hierarchy, files)
        except OSError as problem:
            if problem.errno != errno.EBUSY:
                raise
            return False
        return True

    @property
    def _followed(self) -> str:
        return self.folders[self._tree.tracks]

    def is_empty(self) -> bool:
        """Return True if no process is left, in subgroups either; False if unknown."""
        try:
            if self._tree.tracks == cgroups.UNIFIED:
                text = self._read_surely(f"{self._followed}/cgroup.events")
                return not cgroups.value(text, "populated")
            return not self._has_members(self._followed)
        except OSError as problem:
            if problem.errno in _GONE:
                return True
            self.doubtful = True
            return False

    def _has_members(self, folder: str) -> bool:
        """Return True if a group or one of its subgroups has a process.

        Raises:
            OSError: unknown.
        """
        try:
            if self._read_surely(f"{folder}/cgroup.procs").strip():
                return True
            with os.scandir(folder) as entries:
                below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as problem:
            if problem.errno in _GONE:
                return False
            raise
        return any(self._has_members(folder) for folder in below)

    def kill(self) -> None:
        """Kill all processes in the groups at once."""
        self.doubtful = True
        cgroups.kill(self._followed, self._tree.kills_by)

    def outcome(self) -> dict[str, Any]:
        """Return the kernel's counters: out-of-memory kills, peak memory, CPU time."""
        found: dict[str, Any] = {}
        of_memory, unified = self.folders.get("memory"), self.folders.get(cgroups.UNIFIED)
        if of_memory is not None:
            text = self._read(f"{of_memory}/memory.oom_control")
            found["oom_kills"] = cgroups.value(text, "oom_kill")
            text = self._read(f"{of_memory}/memory.max_usage_in_bytes")
            found["max_memory_bytes"] = cgroups.number(text)
        if unified is not None:
            if self._tree.kind == "cgroup-v2" and "memory" in self._tree.controllers:
                text = self._read(f"{unified}/memory.events")
                found["oom_kills"] = cgroups.value(text, "oom_kill")
                found["max_memory_bytes"] = cgroups.number(self._read(f"{unified}/memory.peak"))
            spent_us = cgroups.value(self._read(f"{unified}/cpu.stat"), "usage_usec")
            found["cpu_s"] = (spent_us - self._spent_us) / 1e6
            self._spent_us = spent_us
        if found.get("oom_kills"):
            self.doubtful = True
        return found

    # Its end, or its next use ----------------------------------------------------------------

    def clear(self) -> bool:
        """Reset empty groups for reuse. Return False if that is impossible and they must be
        removed.
        """
        if not self.kept or self.doubtful:
            return False
        try:
            return self._is_untouched() and self._forget_memory()
        except OSError:
            return False

    def _is_untouched(self) -> bool:
        """Return True if no process and no subgroup is left; a folder has one link for each
        subfolder.
        """
        unified, pids = self.folders.get(cgroups.UNIFIED), self.folders.get("pids")
        if unified is not None:
            text = self._read_surely(f"{unified}/cgroup.events")
            if cgroups.value(text, "populated") or cgroups.value(text, "frozen"):
                return False
        if pids is not None and self._read_surely(f"{pids}/pids.current").strip() != "0":
            return False
        return all(os.stat(folder).st_nlink == 2 for folder in self.folders.values())

    def _forget_memory(self) -> bool:
        """Remove the memory limit, and reset the peak. Return False if too much is still
        charged.
        """
        folder = self.folders.get("memory")
        if folder is None:
            return True
        peak = f"{folder}/memory.max_usage_in_bytes"
        if cgroups.number(self._read(peak)) > LEFT_BYTES_MAX:
            text = self._read(f"{folder}/memory.usage_in_bytes")
            if cgroups.number(text) > LEFT_BYTES_MAX:
                return False
        lifted = [("?memory.memsw.limit_in_bytes", "-1"), ("memory.limit_in_bytes", "-1")]
        self._set("memory", [*lifted, ("memory.max_usage_in_bytes", "0")])
        return not self.doubtful

    def close(self) -> None:
        """Close its files."""
        for handle in self._files.values():
            os.close(handle)
        self._files = {}


class CgroupPool:
    """A pool of groups for attempts. ``files_max`` limits the files it keeps open."""

    def __init__(self, tree: cgroups.Tree, files_max: int) -> None:
        self._tree = tree
        self._most = min(KEPT_MAX, files_max // 2 // _OPEN_MAX)
        self._idle: dict[Shape, list[tuple[float, AttemptCgroup]]] = {}
        self._kept = 0
        self._serial = 0
        self._remove: list[str] = []

    def take(self, name: str, limits: dict[str, Any], *, keep: bool) -> AttemptCgroup:
        """Return groups for an attempt, with limits set and no process inside.

        Args:
            keep: the groups may have another name, so that they can be reused.

        Raises:
            OSError: they cannot be created, or a requested limit cannot be set; nothing is left.
        """
        chosen = settings(self._tree, limits)
        hierarchies = [h for h in self._tree.bases if h in chosen or h == self._tree.tracks]
        if memory(self._tree, limits)[0] == "memory":
            hierarchies.append("memory")
        shape: Shape = (*hierarchies, *(text for _, text in chosen.get("devices", ())))
        keep = keep and self._tree.kind == "cgroup-v1" and self._tree.tracks == cgroups.UNIFIED
        found = self._idle.get(shape) if keep else None
        if found:
            group = found.pop()[1]
            chosen.pop("devices", None)  # they have been denied since it was created
        else:
            group = self._made(name, hierarchies, shape, keep=keep and self._kept < self._most)
        try:
            group.set_limits(chosen)
        except OSError:
            self.remove(group)
            raise
        return group

    def _made(
        self, name: str, hierarchies: Sequence[str], shape: Shape, *, keep: bool
    ) -> AttemptCgroup:
        if keep:
            self._kept += 1
            self._serial += 1
            name = f"kept-{os.getpid()}-{self._serial}"
        group = AttemptCgroup(self._tree, name, hierarchies, shape, kept=keep)
        try:
            group.make()
        except OSError:
            self.remove(group)
            raise
        return group

    def give_back(self, group: AttemptCgroup, now: float) -> None:
        """Keep the groups of an ended attempt for another one, or remove them."""
        if group.clear():
            self._idle.setdefault(group.shape, []).append((now, group))
        else:
            self.remove(group)

    def remove(self, group: AttemptCgroup) -> None:
        """Remove the groups of an attempt. Failures are retried later."""
        group.close()
        self._kept -= group.kept
        for folder in group.folders.values():
            if not cgroups.remove(folder):
                self._remove.append(folder)

    def tidy(self, now: float) -> float | None:
        """Remove idle groups, and retry failed removals. Return when to call again."""
        self._remove = [folder for folder in self._remove if not cgroups.remove(folder)]
        for shape, idle in list(self._idle.items()):
            for since, group in idle:
                if since + IDLE_S <= now:
                    self.remove(group)
            self._idle[shape] = [(since, group) for since, group in idle if since + IDLE_S > now]
            if not self._idle[shape]:
                del self._idle[shape]
        moments = [idle[0][0] + IDLE_S for idle in self._idle.values()]
        if self._remove:
            moments.append(now + 1.0)
        return min(moments, default=None)

    def forget(self) -> None:
        """Close all files; the tree removes what is left."""
        for idle in self._idle.values():
            for _, group in idle:
                group.close()
        self._idle = {}
