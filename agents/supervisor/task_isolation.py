"""Isolates the tasks of one supervisor by control groups and private folders, as far as possible.

Attempts are started, checked and killed through it. If the host offers nothing it does nothing;
then only process groups and marks in environments are left. Standard library only.
"""

# No pathlib or contextlib here: they would cost the supervisor memory.
# ruff: noqa: PTH105, PTH110, PTH123

import errno
import json
import os
import resource
import signal
import time
from typing import Any, Literal

from agents.host import processes
from agents.isolation import (
    attempt_cgroups,
    cgroups,
    local_filesystems,
    mount_namespace,
    task_privileges,
)
from agents.supervisor import orders, reaper, spawn

#: Variable in the supervisor's environment by which the agent requests an isolation.
VARIABLE = "MUSTER_ISOLATION"
PROCESS_GROUP = "process-group"
CONTROL_GROUP = "control group of the task"
#: File in a node's root that lists its groups, for a supervisor after a crash.
FILE = "cgroups.json"
#: If nothing was started for this long, a fork is cheaper than entering the groups of version 2:
#: the kernel waits 10 ms and more for all processors when the first process in a while enters, but
#: not for those right after it.
QUIET_S = 0.03
#: ``alone``; ``among`` others that start with it; ``beside`` others whose programs have not started
#: yet, and which share the supervisor's memory until then.
Company = Literal["alone", "among", "beside"]


class TaskIsolation:
    """Control groups and mount namespaces for tasks; either may be missing."""

    def __init__(self, root: str, asked: str) -> None:
        own = {} if asked == PROCESS_GROUP else cgroups.discover()
        self.tree = cgroups.Tree(root, own)
        self.sandbox = (
            mount_namespace.Sandbox() if asked != PROCESS_GROUP and os.geteuid() == 0 else None
        )
        self._privileges = task_privileges.tried()
        self._root = root
        self._pool = attempt_cgroups.CgroupPool(
            self.tree, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        )
        self.groups: dict[str, attempt_cgroups.AttemptCgroup] = {}
        self._over: set[str] = set()
        #: Why a running attempt could not be limited, by id.
        self._unheld: dict[str, spawn.SpawnError] = {}
        #: The hierarchy in which a child can be born in its group, if any.
        self._born_in = cgroups.UNIFIED if self._can_fork_into() else ""
        self._nearby = local_filesystems.LocalPaths(root, [reaper.SHELL])
        #: When a task was last started, by a clock that only goes forward.
        self._started_at = -QUIET_S

    def _can_fork_into(self) -> bool:
        """Return True if a child can be born in a control group, by trying it with this process's
        group.
        """
        base = self.tree.bases.get(cgroups.UNIFIED)
        if base is None:
            return False
        try:
            pid = spawn.fork_into(f"{base}/{cgroups.SUPERVISOR_GROUP}")
        except OSError:
            return False
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return True

    def recover(self) -> bool:
        """Kill and remove what an earlier supervisor left. Return False if something stays."""
        clean = True
        for base in remembered(self._root):
            if base not in self.tree.bases.values():
                clean = abandon(base) and clean
        remember(self._root, list(self.tree.bases.values()))
        if self.tree.bases:
            group = f"{self.tree.bases[self.tree.tracks]}/{cgroups.SUPERVISOR_GROUP}"
            for pid in cgroups.members(group) - {os.getpid()}:
                processes.kill(pid)  # its reaper: this does the work now
        self.tree.sweep()
        return self.tree.recover() and clean

    def reaper_arguments(self) -> tuple[str, str, list[str]]:
        """Return what the reaper needs, which has no time to find out itself.

        These are the folder of all tasks' groups, how to kill them, and all folders that were
        created; empty without groups.
        """
        if not self.tree.bases:
            return "", "", []
        bases = list(self.tree.bases.values())
        return f"{self.tree.bases[self.tree.tracks]}/run", self.tree.kills_by, bases

    def facts(self) -> dict[str, Any]:
        """Return the facts that the agent reports about isolation."""
        facts = self.tree.facts()
        facts["restricts"] = list(self._privileges.restricts)
        facts["problems"] = [*facts["problems"], *self._privileges.problems]
        if self.sandbox is not None:
            facts["views"] = self.sandbox.usable
            facts["hides_processes"] = self.sandbox.usable and self.sandbox.hides_processes
            if self.sandbox.problem:
                facts["problems"] = [*facts["problems"], self.sandbox.problem]
        return facts

    def start(
        self, order: orders.StartOrder, standard: tuple[int, int, int], company: Company = "alone"
    ) -> spawn.SpawnedChild:
        """Start a task with its groups and folders. :meth:`wait_for_start` waits for its program.

        If it turns out that a running task cannot be limited as requested, it is killed and handled
        like any other: it has ended when nothing of it is left, and :meth:`close` returns why.

        Args:
            company: how many other starts there are.

        Raises:
            SpawnError: it could not be started; nothing of it runs.
        """
        name, limits = order.id, order.limits
        if not self.tree.bases:
            return self._spawn(order, standard, None, company)
        try:
            group = self._pool.take(name, limits, keep=may_keep(order))
        except OSError as problem:
            raise spawn.node_fault(problem, CONTROL_GROUP) from None
        try:
            child = self._spawn(order, standard, group, company)
        except Exception:  # whatever it is: nobody else knows of the group
            self._pool.remove(group)
            raise
        self.groups[name] = group
        return child

    def wait_for_start(self, name: str, child: spawn.SpawnedChild) -> int:
        """Wait until the program of a task has started. Return its process id.

        Until then no task is started from inside groups.

        Raises:
            SpawnError: it could not start; nothing of it runs, and its groups are gone.
        """
        try:
            return child.wait_for_program()
        except Exception:  # whatever it is: nobody else knows of the group
            self._forget_memory(name)
            group = self.groups.pop(name, None)
            if group is not None:
                self._pool.remove(group)
            raise

    def _spawn(
        self,
        order: orders.StartOrder,
        standard: tuple[int, int, int],
        group: attempt_cgroups.AttemptCgroup | None,
        company: Company,
    ) -> spawn.SpawnedChild:
        """Start a task with the private folders that its order requests, if possible."""
        view = order.private
        if not view or self.sandbox is None or not self.sandbox.usable:
            _write_files(self._root, order, in_memory=True)
            return self._spawn_in(order, standard, group, company)
        if order.secrets:
            view = {**view, "memory": f"{self._root}/attempts/{order.id}/secrets"}
        try:
            self.sandbox.enter(view, order.id)
        except OSError as problem:
            self._forget_memory(order.id)
            raise spawn.node_fault(problem, "the task's own folders") from None
        try:
            _write_files(self._root, order, in_memory=True)
            return self._spawn_in(order, standard, group, company)
        except Exception:  # whatever it is, no process of it uses its memory
            self._forget_memory(order.id)
            raise
        finally:
            _come_home(self.sandbox)

    def _spawn_in(
        self,
        order: orders.StartOrder,
        standard: tuple[int, int, int],
        group: attempt_cgroups.AttemptCgroup | None,
        company: Company,
    ) -> spawn.SpawnedChild:
        """Start a task in its groups.

        What might hang is forked, so that only the child waits, and what is restricted, because
        only the child may be. A forked child enters its groups by itself, before it switches user:
        otherwise memory of the supervisor would be charged to the task for ever.
        """
        taken = self.taken_from(order)
        forks = self.always_forks(order) or not self._is_near(order)
        if group is None:
            if forks:
                return spawn.spawn_as(order, standard, [], privileges=taken)
            return spawn.SpawnedChild(spawn.spawn(order, standard))
        now = time.monotonic()
        quiet, self._started_at = now - self._started_at >= QUIET_S, now
        born_in = group.folders.get(self._born_in, "")
        if forks or company == "beside" or (born_in and quiet and company == "alone"):
            try:
                group.bound(order.limits)
            except Exception as problem:  # whatever limits contain, no task starts without them
                raise _unbound(problem) from None
            entries = group.entries(but=self._born_in if born_in else "")
            return spawn.spawn_as(order, standard, entries, born_in, taken)
        return spawn.SpawnedChild(self._spawn_from_within(order, standard, group))

    def taken_from(self, order: orders.StartOrder) -> task_privileges.Privileges:
        """Return what is taken from a task."""
        is_restricted = order.privileges == task_privileges.RESTRICTED
        return self._privileges if is_restricted else spawn.UNRESTRICTED

    def always_forks(self, order: orders.StartOrder) -> bool:
        """Return True if a task never starts from inside its groups."""
        return order.user is not None or bool(self.taken_from(order).restricts)

    def _is_near(self, order: orders.StartOrder) -> bool:
        """Return True if nothing that a start accesses can hang."""
        path = order.env.get("PATH", os.defpath)
        return self._nearby.has(order.id, order.cwd, order.argv[0], path)

    def _spawn_from_within(
        self,
        order: orders.StartOrder,
        standard: tuple[int, int, int],
        group: attempt_cgroups.AttemptCgroup,
    ) -> int:
        """Enter the groups, start the task and return. This is cheaper than a fork for
        many starts.
        """
        try:
            group.enter()
            pid = spawn.spawn(order, standard)
        finally:
            _come_back(group)
        name = order.id
        try:
            if not group.bound(order.limits):
                group.kill()
                self._over.add(name)
        except Exception as problem:  # it runs: an exception would leave it to nobody
            self._unheld[name] = _unbound(problem)
            group.kill()
            processes.kill_group(pid, signal.SIGKILL)
        return pid

    def left(self, name: str, *, kill: bool) -> bool:
        """Return True if an attempt has processes. They are killed, or get time to end."""
        group = self.groups.get(name)
        if group is None or group.is_empty():
            return False
        if kill:
            group.kill()
        return True

    def owner_of(self, pid: int) -> str:
        """Return the attempt in whose groups a process is; empty if in none, or in an old one's."""
        name = self.tree.group_of(pid)
        return next((a for a, group in self.groups.items() if name and group.name == name), "")

    def strayed(self, pid: int) -> bool:
        """Return True if a process is in no group of any task.

        Only a task that can write to the files of groups gets there, see :func:`may_keep`.
        """
        return self.tree.group_of(pid) == ""

    def kill(self, name: str) -> None:
        """Kill all processes in an attempt's groups."""
        if name in self.groups:
            self.groups[name].kill()

    def close(self, name: str, *, contained: bool) -> dict[str, Any]:
        """Release the groups of an attempt that has ended. Return the kernel's counters.

        ``unheld`` in the result is why it could not be limited and was killed.
        """
        self._forget_memory(name)
        group = self.groups.pop(name, None)
        if group is None:
            return {}
        found = group.outcome()
        if name in self._unheld:
            found["unheld"] = self._unheld.pop(name)
        if name in self._over:  # it used more than its limit before there was one
            self._over.remove(name)
            found["oom_kills"] = max(1, found.get("oom_kills", 0))
        self._pool.give_back(group, time.monotonic())
        if contained:
            self.tree.drop_elsewhere(name)
        return found

    def _forget_memory(self, name: str) -> None:
        """Release the memory that an attempt has shared with its gang."""
        if self.sandbox is not None and self.sandbox.memory is not None:
            self.sandbox.memory.forget(name)

    def tidy(self) -> float | None:
        """Remove unused groups. Return in how many seconds to do so again."""
        now = time.monotonic()
        again = self._pool.tidy(now)
        return None if again is None else max(0.0, again - now)

    def leave(self) -> None:
        """Remove everything, because the supervisor ends in order."""
        if self.tree.bases:
            self._pool.forget()
            self.tree.leave()
            remember(self._root, [])


def may_keep(order: orders.StartOrder) -> bool:
    """Return True if another attempt may reuse an attempt's groups.

    It may not reuse those of a container, which are found by the attempt's name, nor those whose
    files the task could write: its settings would hold for the next one.
    """
    user = order.user
    if order.cleanup or user is None or os.geteuid() != 0:
        return False
    return user.uid != 0 and user.gid != 0 and 0 not in user.groups


def _write_files(root: str, order: orders.StartOrder, *, in_memory: bool) -> None:
    """Write the files in the attempt's folder, then give it to its user.

    Args:
        root: of the node.
        order: of the attempt.
        in_memory: its secrets are kept in memory, which has room for these alone.

    Raises:
        SpawnError: they could not be written.
    """
    try:
        spawn.write_secrets(root, order)
        spawn.hand_over(root, order)
    except OSError as problem:
        if in_memory and problem.errno == errno.ENOSPC:  # that room is the task's own
            raise spawn.SpawnError(
                126,
                f"its {len(order.secrets)} secrets take more than {mount_namespace.KEPT_MIB} "
                "MiB together. To fix: name fewer or smaller ones",
            ) from None
        raise spawn.node_fault(problem, "folder of the attempt", on_disk=True) from None


def _unbound(problem: Exception) -> spawn.SpawnError:
    """Return the error for a limit that could not be set."""
    if isinstance(problem, OSError):
        return spawn.node_fault(problem, CONTROL_GROUP)
    return spawn.SpawnError(126, f"{CONTROL_GROUP}: {problem!r}")


def _come_home(view: mount_namespace.Sandbox) -> None:
    try:
        view.leave()
    except OSError as problem:  # all that follows would start in this task's view
        raise SystemExit(f"no way back from the folders of a task: {problem}") from None


def _come_back(group: attempt_cgroups.AttemptCgroup) -> None:
    try:
        group.move_supervisor_back()
    except OSError as problem:  # among tasks it would be killed with one of them
        raise SystemExit(f"no way back from the control groups of a task: {problem}") from None


def remembered(root: str) -> list[str]:
    """Return the folders of groups that supervisors of a root have created."""
    try:
        with open(f"{root}/{FILE}", encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return []
    name = cgroups.token_of(root)
    return [base for base in found if isinstance(base, str) and base.endswith(f"/{name}")]


def remember(root: str, bases: list[str]) -> None:
    """Note where groups are. A full disk must not prevent a supervisor from working."""
    if remembered(root) == bases:
        return
    fresh = f"{root}/{FILE}.new"
    try:
        with open(fresh, "w", encoding="utf-8") as stream:
            json.dump(bases, stream)
        os.replace(fresh, f"{root}/{FILE}")
    except OSError:
        pass  # after a crash, tasks are found by their environment anyway


def abandon(base: str) -> bool:
    """Kill and remove everything below a folder of groups. Return False if something stays."""
    hows = [how for how in ("cgroup.kill", "cgroup.freeze", "freezer.state")
            if os.path.exists(f"{base}/run/{how}")]  # fmt: skip
    how = hows[0].replace("freezer.state", "freezer") if hows else ""
    return cgroups.empty(base, how, cgroups.REMOVE_S)


def clean_up(root: str) -> bool:
    """Remove the groups of a node whose supervisor is gone for good. Return False if something
    stays.
    """
    bases = remembered(root)
    stays = [base for base in [*bases, *cgroups.elsewhere(bases)] if not abandon(base)]
    return not stays
