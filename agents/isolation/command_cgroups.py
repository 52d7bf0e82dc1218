"""Control groups of what an agent runs as users and is no task, such as pulls of images.

Beside the groups of its tasks, a node has ``commands`` with a group for each user. That one has the
limits, which all commands of the user share. Each command has a group of its own in there. When the
command is over, all processes of that group are killed. The groups stand in the supervisor's
hierarchies: without those there are no groups here either. They go with the last command.
"""

# Paths are texts here, as in ``cgroups``.
# ruff: noqa: PTH102, PTH106, PTH110, PTH112, PTH120

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from agents.isolation import attempt_cgroups, cgroups

#: What all commands of one user together may use: memory, processes with all threads, and CPUs.
#: Against tasks they have the weight of one CPU.
MEMORY_BYTES_MAX = 8 * 2**30
PIDS_MAX = 4096
CPUS_MAX = 4
CPU_MILLI = 1000
#: How long what a command has left is waited for after it was killed.
EMPTY_S = 5.0
#: Commands of a user that have left what SIGKILL does not end, beside which another one is started.
STAYING_MAX = 16
#: Hierarchies of version 1 that hold the limits.
_LIMITING = ("memory", "pids", "cpu")
_CPU_PERIOD_US = 100_000
#: The least that the kernel accepts.
_CPU_QUOTA_US_MIN = 1000


class CommandLimits(NamedTuple):
    """Limits of all commands of one owner together: memory, and thousandths of CPUs."""

    memory_bytes: int = MEMORY_BYTES_MAX
    cpu_milli: int = CPUS_MAX * 1000


#: The limits of all commands of a user that are of no job.
USER_LIMITS = CommandLimits()


class CommandRefusedError(OSError):
    """A command that is not started, because it could not be held within its limits."""


class CommandCgroup(NamedTuple):
    """The groups of one command.

    Attributes:
        owner: name of the group with the limits.
        name: name of the command's own group in it.
        folders: folders that its processes are in, by hierarchy.
        kills_by: how all of them are killed, as in ``cgroups.kill``.
        tracks: the hierarchy by which they are found.
    """

    owner: str
    name: str
    folders: Mapping[str, str]
    kills_by: str
    tracks: str

    def entries(self) -> list[str]:
        """Return the files by which a process with one thread enters."""
        return [f"{at}/{cgroups.entry(name)}" for name, at in self.folders.items()]

    def has_exceeded_memory(self) -> bool:
        """Return True if the kernel has ended a command of this user for want of memory."""
        folder = self.folders.get("memory")
        if folder is not None:
            text = cgroups.read(f"{folder}/memory.oom_control")
        else:
            above = os.path.dirname(self.folders[self.tracks])
            text = cgroups.read(f"{above}/memory.events")
        return cgroups.value(text, "oom_kill") > 0


class _Hierarchies(NamedTuple):
    """Where the groups of a node stand, by hierarchy, and by which of them commands are found."""

    bases: Mapping[str, str]
    tracks: str
    kills_by: str


class CommandCgroups:
    """The groups of one node's commands. Any thread may use it.

    Args:
        bases: returns the folders of the node's groups, one in each hierarchy.
        top: folder in which ``/proc`` says what is mounted.
    """

    def __init__(self, bases: Callable[[], Iterable[str]], top: str = "") -> None:
        self._bases = bases
        self._top = top
        #: The last that there were: the supervisor ends before the last containers are removed.
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()
        self._staying: list[CommandCgroup] = []

    def take(
        self,
        owner: str,
        name: str = "",
        denied: Sequence[str] = (),
        limits: CommandLimits | None = None,
    ) -> CommandCgroup | None:
        """Return groups for a command, empty and with limits; None if the node has no groups.

        Args:
            owner: whose limits it shares.
            name: name of its group, in which nothing is left running; empty for one of its own.
            denied: rules of devices that it must not use.
            limits: of all commands of the owner; None for those of a user.

        Raises:
            CommandRefusedError: they cannot be made, or too much is left of earlier commands.
        """
        limits = limits or USER_LIMITS
        if name:
            self.end(owner, name)
        with self._lock:
            places = self._places()
            if places is None:
                return None
            self._retry(owner)
            try:
                group = self._group(places, owner, name or os.urandom(6).hex())
                try:
                    _make(places, group, denied, limits)
                except FileNotFoundError:  # what a dead supervisor leaves is removed meanwhile
                    self._remove(group)
                    _make(places, group, denied, limits)
            except OSError as problem:
                raise CommandRefusedError(
                    f"control group of the command: {problem.strerror}"
                ) from None
        return group

    def give_back(self, group: CommandCgroup, limit_s: float | None = None) -> bool:
        """Kill what a command has left, and remove its groups. Return False if something stays.

        That is waited for up to ``limit_s``, by default :data:`EMPTY_S`.
        """
        limit_s = EMPTY_S if limit_s is None else max(0.0, limit_s)
        if cgroups.empty(group.folders[group.tracks], group.kills_by, limit_s):
            with self._lock:
                self._remove(group)
            return True
        with self._lock:
            self._staying.append(group)
        return False

    def end(self, owner: str, name: str) -> None:
        """Kill what is in a group of that name, if there is one, and remove it."""
        with self._lock:
            places = self._places()
        if places is not None:
            self.give_back(self._group(places, owner, name))

    def clear(self, is_kept: Callable[[str], bool] = lambda _: False) -> list[str]:
        """Kill and remove what commands of an earlier agent have left.

        Args:
            is_kept: returns True for owners whose groups stay.

        Returns:
            What could not be ended, as messages.
        """
        with self._lock:
            places = self._places()
        if places is None:
            return []
        top = f"{places.bases[places.tracks]}/{cgroups.COMMANDS_GROUP}"
        left = [
            self._group(places, owner, name)
            for owner in _names(top)
            if not is_kept(owner)
            for name in _names(f"{top}/{owner}") or ["none"]
        ]
        deadline = time.monotonic() + EMPTY_S
        return [
            "a command of an earlier agent has left processes that can't be killed in the control "
            f"group {group.folders[group.tracks]}"
            for group in left
            if not self.give_back(group, deadline - time.monotonic())
        ]

    def leave(self) -> None:
        """Remove what stands for commands alone, because no supervisor is here or will come."""
        for base in self._known.values():
            cgroups.remove(base)

    def _places(self) -> _Hierarchies | None:
        found = cgroups.by_hierarchy(self._bases(), self._top)
        if found:
            self._known = found
        bases = {name: base for name, base in self._known.items() if _is_there(base)}
        if cgroups.UNIFIED in bases:
            # the file is in each group but the topmost
            kills = os.path.exists(f"{bases[cgroups.UNIFIED]}/cgroup.kill")
            how = "cgroup.kill" if kills else "cgroup.freeze"
            return _Hierarchies(bases, cgroups.UNIFIED, how)
        return _Hierarchies(bases, "freezer", "freezer") if "freezer" in bases else None

    def _group(self, places: _Hierarchies, owner: str, name: str) -> CommandCgroup:
        """Return the groups of a name, which need not be there."""
        folders = {
            hierarchy: _folder(places, hierarchy, owner)
            for hierarchy in _LIMITING
            if hierarchy in places.bases and places.tracks != hierarchy
        }
        for hierarchy in (places.tracks, "devices"):
            if hierarchy in places.bases:
                folders[hierarchy] = f"{_folder(places, hierarchy, owner)}/{name}"
        return CommandCgroup(owner, name, folders, places.kills_by, places.tracks)

    def _retry(self, owner: str) -> None:
        """Remove what could not be removed before.

        Raises:
            CommandRefusedError: too much of the owner's is still there.
        """
        again, self._staying = self._staying, []
        for group in again:
            if cgroups.empty(group.folders[group.tracks], group.kills_by, 0):
                self._remove(group)
            else:
                self._staying.append(group)
        left = sum(group.owner == owner for group in self._staying)
        if left >= STAYING_MAX:
            raise CommandRefusedError(
                f"{left} earlier commands of the same user have left processes that can't be killed"
            )

    def _remove(self, group: CommandCgroup) -> None:
        """Remove the groups of a command, and those above that nobody else needs."""
        followed = group.folders[group.tracks]
        cgroups.remove(followed)
        others = [folder for name, folder in group.folders.items() if name != group.tracks]
        for folder in others:
            if folder.endswith(f"/{group.name}"):
                cgroups.remove(folder)
        # what stands in for a command that has not begun is its group in this hierarchy
        if not _remove_above(followed, group.name):
            return
        for folder in others:
            _remove_above(folder, group.name)


def _remove_above(folder: str, name: str) -> bool:
    """Remove what is above a command's group and empty. Return False if the owner's is needed."""
    owner = folder.removesuffix(f"/{name}")
    try:
        os.rmdir(owner)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(owner))
    return True


def _folder(places: _Hierarchies, hierarchy: str, owner: str) -> str:
    return f"{places.bases[hierarchy]}/{cgroups.COMMANDS_GROUP}/{owner}"


def _is_there(base: str) -> bool:
    """Return True if a group is there, or can be made again."""
    return os.path.isdir(os.path.dirname(base))


def _names(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _make(
    places: _Hierarchies, group: CommandCgroup, denied: Sequence[str], limits: CommandLimits
) -> None:
    """Create the folders of a command, with limits.

    Raises:
        OSError: the kernel refuses.
    """
    for hierarchy, folder in group.folders.items():
        above = _folder(places, hierarchy, group.owner)
        for part in (places.bases[hierarchy], os.path.dirname(above)):
            with contextlib.suppress(FileExistsError):
                os.mkdir(part)
            if hierarchy == cgroups.UNIFIED:
                _pass_on(part)
        with contextlib.suppress(FileExistsError):
            os.mkdir(above)
        _write(above, _limits(hierarchy, above, limits))
        if folder != above:
            os.mkdir(folder)
    if "devices" in group.folders:
        _write(group.folders["devices"], [("devices.deny", rule) for rule in denied])


def _pass_on(folder: str) -> None:
    """Have the groups below one in version 2 limited by what limits itself, where that is set up.

    The supervisor says what is missing.
    """
    there = cgroups.read(f"{folder}/cgroup.controllers").split()
    passed_on = cgroups.read(f"{folder}/cgroup.subtree_control").split()
    wanted = " ".join(f"+{n}" for n in cgroups.NEEDED if n in there and n not in passed_on)
    if wanted:
        with contextlib.suppress(OSError):
            cgroups.write(f"{folder}/cgroup.subtree_control", wanted)


def _limits(hierarchy: str, folder: str, limits: CommandLimits) -> attempt_cgroups.Files:
    """Return what to write to which files of a group that has the limits."""
    memory, pids = str(limits.memory_bytes), ("pids.max", str(PIDS_MAX))
    quota_us = str(max(_CPU_QUOTA_US_MIN, limits.cpu_milli * _CPU_PERIOD_US // 1000))
    if hierarchy != cgroups.UNIFIED:
        return {
            "memory": [("memory.limit_in_bytes", memory), ("?memory.memsw.limit_in_bytes", memory)],
            "pids": [pids],
            "cpu": [
                ("cpu.shares", str(attempt_cgroups.cpu_shares(CPU_MILLI))),
                ("?cpu.cfs_period_us", str(_CPU_PERIOD_US)), ("?cpu.cfs_quota_us", quota_us),
            ],
        }.get(hierarchy, [])  # fmt: skip
    files: dict[str, attempt_cgroups.Files] = {
        "memory": [("memory.max", memory), ("?memory.swap.max", "0"), ("?memory.oom.group", "1")],
        "pids": [pids],
        "cpu": [
            ("cpu.weight", str(attempt_cgroups.cpu_weight(CPU_MILLI))),
            ("?cpu.max", f"{quota_us} {_CPU_PERIOD_US}"),
        ],
    }
    there = cgroups.read(f"{folder}/cgroup.controllers").split()
    return [file for name in cgroups.NEEDED if name in there for file in files[name]]


def _write(folder: str, files: attempt_cgroups.Files) -> None:
    for name, text in files:
        try:
            cgroups.write(f"{folder}/{name.removeprefix('?')}", text)
        except OSError:
            if not name.startswith("?"):
                raise
