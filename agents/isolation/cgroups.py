"""Control groups of a supervisor's tasks, in version 1 or 2. Standard library only.

Below the supervisor's own group there is ``muster-TOKEN`` with two children: one for the
supervisor and ``run`` for one group per attempt. Tasks are born in their group, so that there is no
moment without limits. With version 1, a version 2 tree next to it is used for ``cgroup.kill``, or
else the freezer. What cannot be set up is left out; ``facts`` reports the rest.
"""

# No pathlib or contextlib here: they would cost the supervisor memory.
# ruff: noqa: PTH102, PTH106, PTH110, PTH112, PTH119, PTH120, PTH208, SIM105

import errno
import os
import signal
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from agents.host import processes

UNIFIED = "unified"
#: Used controllers of version 1, each in a hierarchy that others may share.
CONTROLLERS = ("memory", "cpu", "cpuset", "devices", "pids", "freezer")
#: Controllers that a version 2 tree needs to be used for limits.
NEEDED = ("memory", "cpu", "pids")
REMOVE_S = 10.0
#: Name of the supervisor's own group. It must stay: groups outlive upgrades of the agent.
SUPERVISOR_GROUP = "keeper"
#: Name of the group of what the agent runs as users and is no task (``command_cgroups``).
COMMANDS_GROUP = "commands"
#: Attributes that can note a group's folder: the first that the kernel lets us write.
MARKS = ("trusted.muster_root", "user.muster_root")
#: A file for trees in tests: only root can create files here, and the kernel refuses.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


def write(path: str, text: str) -> None:
    """Write a value to a control file."""
    handle = os.open(path, _FLAGS, 0o644)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def read(path: str) -> str:
    """Return the contents of a control file; empty if it does not exist."""
    return processes.read_file(path, 2**16).decode(errors="replace")


def token_of(root: str) -> str:
    """Return the name of a node's groups, unique on the machine."""
    return f"muster-{zlib.crc32(os.fsencode(root)):08x}"


def discover(top: str = "") -> dict[str, str]:
    """Return the folder of this process's group in each hierarchy, by controller or ``unified``."""
    own: dict[str, str] = {}
    for line in read(f"{top}/proc/self/cgroup").split("\n")[:-1]:
        _, listed, path = line.split(":", 2)
        for name in listed.split(",") if listed else [UNIFIED]:
            own[name] = path
    found: dict[str, str] = {}
    for line in read(f"{top}/proc/self/mountinfo").split("\n")[:-1]:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in {"cgroup", "cgroup2"}:
            continue
        names = [UNIFIED] if kind[0] == "cgroup2" else kind[2].split(",")
        for name in names:
            if name in own and name not in found:
                found[name] = _below(f"{top}{fields[4]}", fields[3], own[name])
    return {n: p for n, p in found.items() if n == UNIFIED or n in CONTROLLERS}


def _below(mount: str, mounted: str, own: str) -> str:
    """Return the path of a group in a mount that may show only part of the hierarchy."""
    inside = own.removeprefix(mounted) if mounted != "/" else own
    folder = os.path.normpath(f"{mount}/{inside}")
    return folder if folder.startswith(mount) and os.path.isdir(folder) else mount


def mounts(top: str = "") -> list[str]:
    """Return all mount points of hierarchies."""
    lines = [line.partition(" - ") for line in read(f"{top}/proc/self/mountinfo").split("\n")[:-1]]
    return [
        f"{top}{before.split()[4]}"
        for before, _, after in lines
        if after.startswith(("cgroup ", "cgroup2 "))
    ]


def by_hierarchy(folders: Iterable[str], top: str = "") -> dict[str, str]:
    """Return groups by the controller, or ``unified``, of the hierarchy that each is in.

    A group whose hierarchy is not used, or not mounted here, is left out.
    """
    kinds = {}
    for line in read(f"{top}/proc/self/mountinfo").split("\n")[:-1]:
        before, _, after = line.partition(" - ")
        kind = after.split()
        if len(kind) > 2 and kind[0] in {"cgroup", "cgroup2"}:
            names = [UNIFIED] if kind[0] == "cgroup2" else kind[2].split(",")
            kinds[f"{top}{before.split()[4]}"] = names
    found: dict[str, str] = {}
    for folder in folders:
        above = [mount for mount in kinds if folder.startswith(f"{mount}/")]
        for name in kinds[max(above, key=len)] if above else ():
            if name == UNIFIED or name in CONTROLLERS:
                found.setdefault(name, folder)
    return found


def offers(found: dict[str, str]) -> tuple[str, list[str]]:
    """Return the possible kind of isolation and its controllers. Nothing is created.

    The kind is ``cgroup-v2``, ``cgroup-v1``, or ``process-group`` if no groups can be created.
    """
    writable = {n: p for n, p in found.items() if os.access(p, os.W_OK)}
    if UNIFIED in writable:
        there = read(f"{writable[UNIFIED]}/cgroup.controllers").split()
        if all(name in there for name in NEEDED):
            return "cgroup-v2", [n for n in ("memory", "cpu", "cpuset", "pids") if n in there]
    old = [name for name in CONTROLLERS if name in writable]
    if "memory" in old or "pids" in old or "freezer" in old:
        return "cgroup-v1", old
    if UNIFIED in writable and os.path.exists(f"{writable[UNIFIED]}/cgroup.procs"):
        return "cgroup-v2", []
    return "process-group", []


def entry(hierarchy: str) -> str:
    """Return the file by which a process enters a group.

    In version 1 it enters as its only thread: moving a whole process blocks every fork and exit on
    the machine meanwhile.
    """
    return "cgroup.procs" if hierarchy == UNIFIED else "tasks"


class Tree:
    """The groups of one supervisor. ``kind`` and ``enforced`` show what could be set up."""

    def __init__(self, root: str, own: dict[str, str], top: str = "") -> None:
        self.token = token_of(root)
        self._root = root
        #: Where ``/proc`` is looked for.
        self._top = top
        self.kind, self.controllers = offers(own)
        self.bases: dict[str, str] = {}
        self.problems: list[str] = []
        self._home: dict[str, int] = {}
        if self.kind == "process-group":
            return
        wanted = [UNIFIED, *(self.controllers if self.kind == "cgroup-v1" else [])]
        for name in wanted:
            if name in own:
                self._open(name, f"{own[name]}/{self.token}")
        self._settle_on()

    def _open(self, name: str, base: str) -> None:
        """Create the three groups in one hierarchy, and enter the supervisor's."""
        try:
            for folder in (base, f"{base}/run", f"{base}/{SUPERVISOR_GROUP}"):
                _make(folder, name)
            mark(base, self._root)
            self._home[name] = os.open(f"{base}/{SUPERVISOR_GROUP}/{entry(name)}", _FLAGS, 0o644)
            os.write(self._home[name], b"0")
        except OSError as problem:
            self.problems.append(f"cgroup {base}: {os.strerror(problem.errno or 0)}")
            if name in self._home:
                os.close(self._home.pop(name))
            return
        self.bases[name] = base

    def _settle_on(self) -> None:
        """Choose what to use of the hierarchies that could be opened."""
        unified = self.bases.get(UNIFIED)
        if self.kind == "cgroup-v2" and unified is not None:
            self.controllers = self._enable(unified)
        elif self.kind == "cgroup-v1":
            self.controllers = [n for n in self.controllers if n in self.bases]
        kills = unified is not None and os.path.exists(f"{unified}/run/cgroup.kill")
        if not kills and self.kind == "cgroup-v1" and unified is not None:
            self._give_up(UNIFIED)
            unified = None
        #: The hierarchy by which the processes of an attempt are found.
        self.tracks = UNIFIED if unified is not None else "freezer"
        if kills:
            self.kills_by = "cgroup.kill"
        elif self.tracks == UNIFIED:
            self.kills_by = "cgroup.freeze"
        else:
            self.kills_by = "freezer"
        if self.tracks not in self.bases:
            self.kind, self.controllers = "process-group", []
            for name in list(self.bases):
                self._give_up(name)

    def _enable(self, base: str) -> list[str]:
        """Enable controllers for the groups of attempts, as far as the kernel allows."""
        folders = (os.path.dirname(base), base, f"{base}/run")
        if not self.controllers:
            return []
        try:
            for folder in folders:
                text = " ".join(f"+{name}" for name in self.controllers)
                write(f"{folder}/cgroup.subtree_control", text)
        except OSError as problem:
            why = os.strerror(problem.errno or 0)
            if problem.errno == errno.EBUSY:
                why = f"{folders[0]} holds processes; start the agent in a delegated group"
            self.problems.append(f"cgroup controllers {' '.join(self.controllers)}: {why}")
            return []
        return self.controllers

    def _give_up(self, name: str) -> None:
        base = self.bases.pop(name)
        os.close(self._home.pop(name))
        try:
            write(f"{os.path.dirname(base)}/cgroup.procs", str(os.getpid()))
        except OSError:
            pass
        remove(base)

    @property
    def enforced(self) -> list[str]:
        """Limits that are enforced on tasks."""
        return [name for name in self.controllers if name != "freezer"]

    def facts(self) -> dict[str, Any]:
        """Return the facts that the agent reports about control groups."""
        if self.kind == "process-group":
            return {"kind": self.kind, "enforces": [], "problems": self.problems}
        return {
            "kind": self.kind, "enforces": self.enforced, "kills": self.kills_by,
            "problems": self.problems, "path": self.path,
        }  # fmt: skip

    @property
    def path(self) -> str:
        """Path of the groups of attempts in the hierarchy that tracks processes."""
        base = self.bases[self.tracks]
        above = [mount for mount in mounts(self._top) if base.startswith(f"{mount}/")]
        return f"{base.removeprefix(max(above, key=len, default=''))}/run"

    @property
    def group_part(self) -> str:
        """A part of the path of every group of a task, like ``/a/b/``; empty without groups."""
        return f"/{self.token}/run/" if self.bases else ""

    def group_of(self, pid: int) -> str | None:
        """Return the name of a process's group among the tasks'; empty if it is in none of them.

        None if there are no groups, or no such process. Nothing that the process does delays this.
        """
        text = read(f"/proc/{pid}/cgroup")
        if not self.group_part or not text:
            return None
        names = (f"{line}/".partition(self.group_part)[2] for line in text.split("\n"))
        return next((name.partition("/")[0] for name in names if name), "")

    def drop_elsewhere(self, name: str) -> None:
        """Remove groups that a container runtime created for an attempt in other hierarchies.

        Of hierarchies that are in use too, but there the group of all attempts stays.
        """
        used = {f"{base}/run" for base in self.bases.values()}
        for mount in mounts(self._top):
            folder = f"{mount}{self.path}"
            if os.path.isdir(f"{folder}/{name}"):
                remove(f"{folder}/{name}")
                for above in () if folder in used else (folder, os.path.dirname(folder)):
                    try:
                        os.rmdir(above)
                    except OSError:
                        break

    def renew(self, hierarchy: str) -> None:
        """Create the group of all attempts again, which somebody else has removed.

        Raises:
            OSError: the kernel refuses.
        """
        _make(f"{self.bases[hierarchy]}/run", hierarchy)

    def move_supervisor_back(self, hierarchies: Iterable[str]) -> None:
        """Move this process back to the supervisor's group."""
        for hierarchy in hierarchies:
            os.write(self._home[hierarchy], b"0")

    # All of it -------------------------------------------------------------------------------

    def recover(self) -> bool:
        """Kill and remove what an earlier supervisor left. Return False if something stays.

        Processes that not even SIGKILL ends are waited for once, however many groups they are in.
        """
        clean = True
        deadline = time.monotonic() + REMOVE_S
        for name, base in self.bases.items():
            for attempt in _children(f"{base}/run"):
                folder = f"{base}/run/{attempt}"
                how = self.kills_by if name == self.tracks else ""
                clean = empty(folder, how, deadline - time.monotonic()) and clean
        for folder in elsewhere(self.bases.values()):
            clean = empty(folder, "", deadline - time.monotonic()) and clean
        return clean

    def sweep(self) -> None:
        """Remove groups of supervisors whose folders are gone."""
        for base in self.bases.values():
            above = os.path.dirname(base)
            for name in _children(above):
                if name.startswith("muster-") and name != self.token:
                    remove_deserted(f"{above}/{name}")

    def leave(self) -> None:
        """Return to the original group of this process, and remove all created groups."""
        self.recover()
        for name in list(self.bases):
            self._give_up(name)


def elsewhere(bases: Iterable[str]) -> list[str]:
    """Yield groups of the same paths in unused hierarchies.

    Container runtimes create them, and do not remove them if they are killed.
    """
    used, tops = list(bases), mounts()
    found = []
    for base in used:
        top = max((top for top in tops if base.startswith(f"{top}/")), key=len, default="")
        found += [f"{one}{base.removeprefix(top)}" for one in tops]
    return [base for base in dict.fromkeys(found) if base not in used and os.path.isdir(base)]


def _make(folder: str, hierarchy: str) -> None:
    try:
        os.mkdir(folder, 0o755)
    except FileExistsError:
        pass
    if hierarchy == "cpuset":
        inherit_cpuset(folder)


def mark(base: str, root: str) -> None:
    """Note at a node's group which folder it is for, if the kernel supports it."""
    for name in MARKS:
        try:
            os.setxattr(base, name, os.fsencode(root))
        except OSError:
            continue
        return


def marked(base: str) -> str:
    """Return the folder that a node's group is for; empty if unknown."""
    for name in MARKS:
        try:
            root = os.fsdecode(os.getxattr(base, name))
        except OSError:
            continue
        if os.path.basename(base) == token_of(root):
            return root
    return ""


def remove_deserted(base: str) -> bool:
    """Remove a node's empty group if its folder is gone. Nothing is ever killed.

    Such groups are left if supervisor and reaper were killed together and nobody uses the folder
    again. The folder may exist in another mount namespace: a live supervisor is in its own
    group, which is therefore removed first, or among its tasks.
    """
    root = marked(base)
    if not root:
        return False
    try:
        os.lstat(root)
    except FileNotFoundError:
        pass
    except OSError:
        return False  # unknown
    else:
        return False
    if members(base):
        return False
    try:
        os.rmdir(f"{base}/{SUPERVISOR_GROUP}")
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return remove(base)


def inherit_cpuset(folder: str) -> None:
    """Copy CPUs and memory nodes from the parent: a new group of version 1 has none."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        if not read(f"{folder}/{file}").strip():
            write(f"{folder}/{file}", read(f"{os.path.dirname(folder)}/{file}").strip())


def number(text: str) -> int:
    """Return the value of a file with one number; 0 if it holds something else."""
    return int(text) if text.strip().isdigit() else 0


def value(text: str, key: str) -> int:
    """Return the number of a key in a flat file."""
    for line in text.split("\n"):
        name, _, value = line.partition(" ")
        if name == key:
            return number(value)
    return 0


def _children(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if os.path.isdir(f"{folder}/{name}")]
    except OSError:
        return []


def members(folder: str) -> set[int]:
    """Return the processes of a group and its subgroups."""
    found = {int(word) for word in read(f"{folder}/cgroup.procs").split()}
    for name in _children(folder):
        found |= members(f"{folder}/{name}")
    return found


def kill(folder: str, how: str) -> None:
    """Kill all processes of a group and its subgroups.

    Without ``cgroup.kill`` they are frozen meanwhile, so that none is born unseen.
    """
    if how == "cgroup.kill":
        try:
            write(f"{folder}/cgroup.kill", "1")
        except OSError:
            pass
        return
    stops = {"cgroup.freeze": ("cgroup.freeze", "1", "0"),
             "freezer": ("freezer.state", "FROZEN", "THAWED")}.get(how)  # fmt: skip
    try:
        if stops:
            write(f"{folder}/{stops[0]}", stops[1])
        for pid in members(folder):
            processes.kill(pid, signal.SIGKILL)
    except OSError:
        pass
    finally:
        if stops:
            try:
                write(f"{folder}/{stops[0]}", stops[2])
            except OSError:
                pass


def empty(
    folder: str, how: str, limit_s: float, pause: Callable[[float], None] = time.sleep
) -> bool:
    """Kill the processes of a group until none is left, and remove it. Return False if it stays."""
    deadline = time.monotonic() + limit_s
    while True:
        if members(folder):
            kill(folder, how)
        if remove(folder):
            return True
        if time.monotonic() > deadline:
            return False
        pause(processes.PASS_S)


def remove(folder: str) -> bool:
    """Remove a group and its subgroups. Return False if a process keeps one."""
    for last in (False, True):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return True
        except OSError:
            if not last:
                for name in _children(folder):
                    remove(f"{folder}/{name}")
        else:
            return True
    return False
