"""Starts a command in a task that runs: in its groups and namespaces, as its user. Stdlib only."""

# No pathlib here: it would cost the supervisor memory.
# ruff: noqa: PTH102, PTH116

import fcntl
import os
import struct
import termios
from typing import NamedTuple

from agents.isolation import cgroups
from agents.supervisor import orders, spawn, task_isolation
from agents.supervisor.interactive import joined_task, session_orders

#: Sooner than any task, which has 0, and later than nothing else.
OOM_SCORE_ADJ = 1000
#: Namespaces that a task may have of its own, by their names in ``/proc``.
_NAMESPACES = ("ipc", "mnt")
#: ``ioctl`` of a namespace that returns the user namespace it belongs to.
_NS_GET_USERNS = 0xB701


class RefusedError(Exception):
    """A command that is not started, with the reason for whoever asked."""


class StartedSession(NamedTuple):
    """A command that starts.

    Attributes:
        child: its process, and the pipe by which it reports.
        handles: for whoever asked: the terminal, or its standard input, output and error.
        group: folder of the control group that holds all of it; empty without groups.
    """

    child: spawn.SpawnedChild
    handles: tuple[int, ...]
    group: str


def start(
    order: session_orders.ExecOrder, attempt: spawn.Attempt, isolation: task_isolation.TaskIsolation
) -> StartedSession:
    """Start a command in a task.

    Raises:
        RefusedError: it can't be started there.
        OSError: the kernel refuses something.
    """
    task = attempt.order
    command = _in_container(order, task) if task.contained or task.cleanup else _beside(order, task)
    namespaces = _namespaces(attempt.pid) if task.private else ()
    group = ""
    given: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    try:
        group, entries = _group(order, attempt, isolation)
        given, kept = _terminal(order.size) if order.size is not None else _pipes()
        if task.user is not None:
            for handle in given:
                os.fchown(handle, task.user.uid, task.user.gid)
        child = spawn.spawn_as(
            command,
            (given[0], given[1], given[2]),
            entries,
            privileges=isolation.taken_from(task),
            around=joined_task.JoinedTask(namespaces, OOM_SCORE_ADJ, order.size is not None),
        )
    except BaseException:
        _close(kept)
        if group:
            cgroups.remove(group)
        raise
    finally:
        _close(given)
        _close(namespaces)
    return StartedSession(child, kept, group)


def _beside(order: session_orders.ExecOrder, task: orders.StartOrder) -> orders.StartOrder:
    """Return a command beside a task that is a process."""
    return task._replace(
        argv=order.argv,
        env={**task.env, **order.environment},
        cwd=order.cwd or task.cwd,
    )


def _in_container(order: session_orders.ExecOrder, task: orders.StartOrder) -> orders.StartOrder:
    """Return the command of a container's runtime that runs another one in it.

    The runtime gives it the container's namespaces, root, user and rights, and what the container
    has as its environment and working directory.

    Raises:
        RefusedError: the runtime has no such command.
    """
    words = task.enter.get("pipes" if order.size is None else "terminal")
    if not words:
        raise RefusedError(
            "commands can't join the container of this task: its runtime has none that does, or it "
            "was started by an older agent. To fix: run the job by podman, or the command as a job "
            "of its own (muster run)"
        )
    environment = {**task.enter["env"], **order.environment}
    return task._replace(argv=(*words, *order.argv), env=environment)


def _group(
    order: session_orders.ExecOrder, attempt: spawn.Attempt, isolation: task_isolation.TaskIsolation
) -> tuple[str, list[str]]:
    """Make the group of a session in that of its task.

    Return its folder, and the files by which a process enters all groups.
    """
    group = isolation.groups.get(attempt.record["id"])
    if group is None:
        return "", []
    group.doubtful = True  # nobody else gets groups in which a stranger to the task ran
    tracks = isolation.tree.tracks
    folder = f"{group.folders[tracks]}/session-{order.session}"
    os.mkdir(folder, 0o755)
    return folder, [*group.entries(but=tracks), f"{folder}/{cgroups.entry(tracks)}"]


def _namespaces(pid: int) -> tuple[int, ...]:
    """Open those namespaces of a task that are not this process's own.

    Raises:
        RefusedError: they are not those that the task was started in.
    """
    found: list[int] = []
    own_users = os.stat("/proc/self/ns/user").st_ino
    try:
        for name in _NAMESPACES:
            handle = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            found.append(handle)
            _require_ours(handle, own_users)
            if os.fstat(handle).st_ino == os.stat(f"/proc/self/ns/{name}").st_ino:
                os.close(found.pop())
    except PermissionError:
        _close(tuple(found))
        raise RefusedError("the namespaces of this task can't be entered from here") from None
    except BaseException:
        _close(tuple(found))
        raise
    return tuple(found)


def _require_ours(namespace: int, own_users: int) -> None:
    """Refuse a namespace that a user made: there files of root's could be the user's own.

    Raises:
        RefusedError: it is one.
    """
    users = fcntl.ioctl(namespace, _NS_GET_USERNS)
    try:
        is_ours = os.fstat(users).st_ino == own_users
    finally:
        os.close(users)
    if not is_ours:
        raise RefusedError(
            "the first process of this task has left the task's namespaces for its own, which "
            "commands don't join. To fix: start such programs by another process"
        )


def _terminal(size: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Make a terminal. Return handles for the command and for whoever asked."""
    master, slave = os.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    return (slave, slave, slave), (master,)


def _pipes() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Make three pipes. Return handles for the command and for whoever asked."""
    made: list[int] = []
    try:
        for _ in range(3):
            made += os.pipe()
    except OSError:
        _close(tuple(made))
        raise
    read_in, write_in, read_out, write_out, read_error, write_error = made
    return (read_in, write_out, write_error), (write_in, read_out, read_error)


def _close(handles: tuple[int, ...]) -> None:
    for handle in set(handles):
        os.close(handle)
