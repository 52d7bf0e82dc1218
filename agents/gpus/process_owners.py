"""Finds the attempt that a process on a GPU belongs to.

Facts about the processes and their ancestors are read from ``/proc`` once; the rest is pure. A
process belongs to an attempt if it is in its session, descends from its main process, is in its
cgroup, or was started with the attempt's name by the same user. The last finds daemons that left
the session.
"""

import os
import pwd
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from agents.host import processes
from reconciler.model.values.text_lines import split_lines

ANCESTORS_MAX = 64
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Facts(msgspec.Struct, frozen=True):
    """Facts about one process. ``attempt``: the attempt that its initial environment names."""

    parent: int
    session: int
    ticks: int
    uid: int = -1
    name: str = ""
    attempt: str = ""
    cgroup: str = ""


def owner_of(
    pid: int, table: Mapping[int, Facts], tasks: Mapping[str, int], shared_cgroup: str = "/"
) -> str:
    """Return the attempt that a process belongs to; empty if it belongs to none.

    Args:
        tasks: main processes of live attempts.
        shared_cgroup: cgroup of the agent, which tells nothing about owners.
    """
    facts = table.get(pid)
    if facts is None:
        return ""
    by_main = {main: attempt for attempt, main in tasks.items()}
    step, at = 0, pid
    while at in table and step < ANCESTORS_MAX:
        if at in by_main:
            return by_main[at]
        at, step = table[at].parent, step + 1
    if facts.session in by_main:
        return by_main[facts.session]
    for attempt, main in tasks.items():
        of_task = table.get(main)
        if of_task is None:
            continue
        if facts.attempt == attempt and facts.uid == of_task.uid:
            return attempt
        own = of_task.cgroup not in {"", "/", shared_cgroup}
        if own and f"{facts.cgroup}/".startswith(f"{of_task.cgroup}/"):
            return attempt
    return ""


def read(pids: Iterable[int], tasks: Mapping[str, int], root: str) -> dict[int, Facts]:
    """Return facts about processes and their ancestors, without those that are gone.

    Only the processes themselves are asked for the attempt that their environment names, because
    nobody looks for their ancestors' and a process can make its reader wait.
    """
    pids = list(pids)
    named = processes.attempts_of(pids, root)
    table: dict[int, Facts] = {}
    pending = [*pids, *tasks.values()]
    for _ in range(ANCESTORS_MAX):
        following = []
        for pid in pending:
            if pid > 0 and pid not in table:
                facts = facts_of(pid, named.get(pid, ""))
                if facts is not None:
                    table[pid] = facts
                    following.append(facts.parent)
        if not following:
            break
        pending = following
    return table


def facts_of(pid: int, attempt: str) -> Facts | None:
    """Return facts about one process, which names an attempt; None if it is gone."""
    basic = processes.process_facts(pid)
    if basic is None:
        return None
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None
    return Facts(
        *basic,
        uid=uid,
        name=name_of(pid),
        attempt=attempt,
        cgroup=cgroup_of(pid),
    )


def name_of(pid: int) -> str:
    """Return the program of a process without its arguments, which may hold secrets."""
    try:
        return Path(Path(f"/proc/{pid}/exe").readlink()).name
    except OSError:
        return processes.read_file(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()


def cgroup_of(pid: int) -> str:
    """Return the cgroup of a process: of version 2, else of the first hierarchy that limits it."""
    lines = split_lines(processes.read_file(f"/proc/{pid}/cgroup").decode("utf-8", "replace"))
    paths = [line.split(":", 2)[2] for line in lines if line.count(":") >= 2]
    deep = [path for path in paths if path != "/"]
    return deep[0] if deep else "/"


def user_name(uid: int) -> str:
    """Return the name of a user, or its number if it has no name."""
    if uid < 0:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def started_at(facts: Facts, now: float, boottime: float) -> float:
    """Return when a process started, by the wall clock."""
    return now - boottime + facts.ticks / _TICKS_PER_S
