"""Finds and kills processes by ``/proc``. Standard library only: the supervisor imports it.

A process belongs to an attempt if it descends from the attempt's main process, or if the
environment it was started with names the attempt and this node's root. Environments and command
lines are never read here but by a child with a time limit (``process_memory``): a hostile process
makes whoever reads them wait for ever.
"""

# No pathlib or contextlib here: they would cost the supervisor memory.
# ruff: noqa: PTH208, SIM105

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agents.host import process_memory

#: How long a starting supervisor looks for its predecessor's groups and processes, and how long for
#: processes at the least.
RECOVERY_S, RECOVERY_S_MIN = 30.0, 2.0
#: Time between two passes over all processes.
PASS_S = 0.02
#: Variable in the environment of a container runtime that runs a task, not in the container's.
RUNTIME = "MUSTER_CONTAINER_RUNTIME"
#: Variables in the environment of each task that name its node's folder and its attempt.
_ROOT, _ATTEMPT = "MUSTER_NODE_ROOT", "MUSTER_ATTEMPT"
#: Name of a process that was forked for a task and has not started its program: people who look for
#: what hangs see it.
BEGINS = b"muster-begins"
#: Path of the supervisor's script: now, and before it moved to its own package.
SUPERVISOR_SCRIPTS = ("/agents/supervisor/__main__.py", "/agents/supervisor.py")
#: Time for a runtime that was asked to end to finish the container that it creates.
ASKED_S = 2.0
#: (parent, session, start time in ticks since boot) of a process.
Facts = tuple[int, int, int]


def boottime() -> float:
    """Return the seconds since boot, including time asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read_file(path: str, most: int = 2**20) -> bytes:
    """Return the contents of a file in ``/proc``; empty if its process is gone or not readable."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(handle, most)
    except OSError:
        return b""
    finally:
        os.close(handle)


def process_facts(pid: int) -> Facts | None:
    """Return parent, session and start time in ticks since boot of a process; None if gone or a
    zombie.
    """
    fields = read_file(f"/proc/{pid}/stat", 4096).rpartition(b")")[2].split()
    if len(fields) < 20 or fields[0] in {b"Z", b"X"}:
        return None
    return int(fields[1]), int(fields[3]), int(fields[19])


def session_of(pid: int) -> int:
    """Return the session of a process; 0 if it is gone or a zombie."""
    facts = process_facts(pid)
    return 0 if facts is None else facts[1]


def processes() -> dict[int, Facts]:
    """Return the facts of every live process, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            facts = process_facts(int(name))
            if facts is not None:
                found[int(name)] = facts
    return found


def own_children() -> list[int]:
    """Return pids of children that this process's main thread has started."""
    try:
        handle = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY)
    except FileNotFoundError:  # a kernel without this file
        return [pid for pid, facts in processes().items() if facts[0] == os.getpid()]
    try:
        parts = []
        while part := os.read(handle, 2**16):  # the kernel returns a page at a time
            parts.append(part)
    finally:
        os.close(handle)
    return [int(pid) for pid in b"".join(parts).split()]


def descendants(roots: set[int], table: dict[int, Facts]) -> set[int]:
    """Return the roots and all processes below them."""
    children: dict[int, list[int]] = {}
    for pid, facts in table.items():
        children.setdefault(facts[0], []).append(pid)
    return below(roots, children)


def below(roots: set[int], children: Mapping[int, list[int]]) -> set[int]:
    """Return the roots and all processes below them, given the children of each process."""
    found: set[int] = set()
    pending = list(roots)
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.add(pid)
            pending.extend(children.get(pid, ()))
    return found


def attempts_of(pids: Iterable[int], root: str) -> dict[int, str]:
    """Return the attempts of this node that processes' initial environments name, by process.

    They are read with a time limit, because a process can make its readers wait for ever: one that
    does not answer in time is not in the result, nor is one that names none.
    """
    found = process_memory.read(pids, (_ROOT, _ATTEMPT))
    return {pid: name for pid, text in found.items() if (name := _attempt_in(text, root))}


def _attempt_in(text: process_memory.ProcessText, root: str) -> str:
    """Return the attempt of this node that a process names; empty if it names none."""
    return text.variables.get(_ATTEMPT, "") if text.variables.get(_ROOT) == root else ""


def is_in_group(pid: int, part: str) -> bool:
    """Return True if a process is in a control group whose path has a part like ``/a/b/``.

    Reading this takes no lock that the process could hold.
    """
    lines = read_file(f"/proc/{pid}/cgroup", 2**16).split(b"\n")[:-1]
    return any(os.fsencode(part) in line + b"/" for line in lines)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process that may be gone."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def kill_group(pid: int, number: int) -> None:
    """Signal a process group that may be gone."""
    try:
        os.killpg(pid, number)
    except OSError:
        pass


def is_locked(path: str) -> bool:
    """Return True if some process holds the lock of a file."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def supervisors_of(root: str) -> list[int]:
    """Return pids of the supervisors of a root, including one that is just starting.

    A child that a supervisor has forked has its command line until it executes its program. It does
    not count, not even if it hangs and its parent is gone.
    """
    table = processes()
    found = []
    for pid, text in process_memory.read(table, ()).items():
        words = text.words
        if (
            len(words) > 1
            and words[-1] == root
            and words[-2].endswith(SUPERVISOR_SCRIPTS)
            and read_file(f"/proc/{pid}/comm", 64).strip() != BEGINS
        ):
            found.append(pid)
    return [pid for pid in sorted(found) if table[pid][0] not in found]


def ask_runtimes(
    root: str, limit_s: float = ASKED_S, pause: Callable[[float], None] = time.sleep
) -> None:
    """Ask container runtimes that run this node's tasks to end, and give them a moment.

    A runtime that is killed while it creates a container leaves an unnamed layer in its storage,
    which nobody can remove. Asked to end, it first cleans up. The container is asked as well and
    may go on: the caller kills what is left. One that does not say in time what it is is not asked.
    """
    ending = {}
    table = processes()
    for pid, text in process_memory.read(table, (_ROOT, _ATTEMPT, RUNTIME)).items():
        if _is_runtime(text) and _attempt_in(text, root):
            kill(pid, signal.SIGTERM)
            ending[pid] = table[pid][2]
    deadline = time.monotonic() + limit_s
    while ending and time.monotonic() < deadline:
        pause(PASS_S)
        facts_now = {pid: process_facts(pid) for pid in ending}
        ending = {
            pid: ticks for pid, ticks in ending.items() if (facts_now[pid] or (0, 0, 0))[2] == ticks
        }


def _is_runtime(text: process_memory.ProcessText) -> bool:
    """Return True if a process is a container runtime executing ``run``, not one of its helpers."""
    return text.variables.get(RUNTIME) == "1" and "run" in text.words


def kill_leftovers(
    root: str,
    recorded: list[dict[str, Any]],
    limit_s: float = RECOVERY_S,
    pause: Callable[[float], None] = time.sleep,
    *,
    group: str = "",
) -> bool:
    """Kill what an earlier supervisor left. Return True if two passes found nothing.

    These are recorded processes with their descendants, those in the tasks' control groups, and
    then processes whose environment names an attempt of this node.

    Args:
        group: a part of the path of every control group of a task, like ``/a/b/``; empty if
            there are none.
    """
    started = {int(record["pid"]): int(record["ticks"]) for record in recorded}
    deadline = time.monotonic() + limit_s
    clean = 0
    while clean < 2:
        table = processes()
        table.pop(os.getpid(), None)
        roots = {pid for pid, ticks in started.items() if pid in table and table[pid][2] == ticks}
        if group:
            roots |= {pid for pid in table if is_in_group(pid, group)}
        victims = descendants(roots, table)
        for pid in victims:
            kill(pid)
        victims |= descendants(set(attempts_of(table.keys() - victims, root)), table)
        for pid in victims:
            kill(pid)
            # a dying process loses its environment before its files: wait until all of it is gone
            started[pid] = table[pid][2]
        clean = 0 if victims else clean + 1
        if time.monotonic() > deadline:
            return False
        pause(PASS_S)
    return True
