"""Decides which processes of a task get the signal that asks it to save. Standard library only.

The signal is for processes that do something about it: others would only die of it, and take along
what saves, as ``tee`` does that prints for it, or a worker that loads data. A process that was
forked by one with a handler and runs no program of its own has the same handler, but not as its
own: it would save a second time into the same files.

The first process always gets it, and so does each between it and one that saves: a shell must not
go on with its next line. If the first process dies of it, what is left of the task goes on for the
grace.
"""

import signal
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agents.host import processes

#: The receivers that a job can name; empty: the process group, without any of this.
MAIN, ALL = "main", "all"


class SignalFacts(NamedTuple):
    """The facts of a process that decide if a signal is for it.

    Attributes:
        group: its process group.
        handles: True if it has a handler. Who blocks it has none: shells do so while they fork.
        stack: where its stack starts, which is random for each program and the same after a fork;
            0: not known.
    """

    parent: int
    group: int
    handles: bool
    stack: int


def facts_of(pids: Iterable[int], number: int) -> dict[int, SignalFacts]:
    """Return the facts of those of the processes that live. No process can make this wait."""
    found = {}
    for pid in pids:
        fields = processes.read_file(f"/proc/{pid}/stat", 4096).rpartition(b")")[2].split()
        if len(fields) < 26 or fields[0] in {b"Z", b"X"}:
            continue
        handles = _handles(processes.read_file(f"/proc/{pid}/status", 2**16), number)
        found[pid] = SignalFacts(int(fields[1]), int(fields[2]), handles, int(fields[25]))
    return found


def _handles(status: bytes, number: int) -> bool:
    """Return True if the status of a process says that it has a handler for a signal."""
    for line in status.split(b"\n"):
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def receivers(main: int, task: Mapping[int, SignalFacts], to: str) -> list[int]:
    """Return the processes of a task that get the signal, each after those above it.

    So no shell goes on with its next line because the one that it runs has died of the signal.

    Args:
        main: the first process of the task.
        task: all its processes.
        to: ``main``: those that handle it in the first one's process group, as with Ctrl-C in a
            terminal; only if there are none, those anywhere. ``all``: those anywhere, forks
            included. If there are none at all, the whole task shall die of it.
    """
    if to == ALL:
        told = {pid for pid, facts in task.items() if facts.handles}
    else:
        own = {pid for pid in task if _handles_itself(pid, task)}
        group = {pid for pid in own if task[pid].group == main}
        told = group or own
    above = {pid: _above(pid, task) for pid in told or task}
    found = {main, *above}.union(*above.values())
    return sorted(found, key=lambda pid: (pid != main, len(_above(pid, task)), pid))


def _above(pid: int, task: Mapping[int, SignalFacts]) -> list[int]:
    """Return the processes of a task that one of it descends from."""
    found = [pid]
    while found[-1] in task and (parent := task[found[-1]].parent) in task and parent not in found:
        found.append(parent)
    return found[1:]


def _handles_itself(pid: int, task: Mapping[int, SignalFacts]) -> bool:
    """Return True if a process handles the signal, and is not merely the fork of one that does."""
    facts = task[pid]
    parent = task.get(facts.parent)
    is_fork = parent is not None and parent.handles and 0 != facts.stack == parent.stack
    return facts.handles and not is_fork


def number_of(name: str) -> int:
    """Return the number of a signal; that of SIGTERM for a name that this system does not have."""
    return signal.Signals.__members__.get(name, signal.SIGTERM)
