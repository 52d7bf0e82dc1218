"""Finds processes that tasks have left, by descent and by marks in environments. Stdlib only.

The supervisor adopts orphans of its tasks, and remembers whose they are as soon as it knows.
Without control groups this is the only way to find them; with them it is a second one.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agents.host import processes
from agents.supervisor import spawn, task_isolation

#: How long an orphan whose environment told nothing is not asked again.
UNKNOWN_S = 5.0


class OrphanFinder:
    """Known orphans and their attempts, by pid.

    Args:
        group_owner: returns the attempt in whose control groups a process is; empty if in none.
    """

    def __init__(self, root: str, group_owner: Callable[[int], str]) -> None:
        self._root = root
        self._group_owner = group_owner
        self._owners: dict[int, str] = {}
        #: Orphans whose environment named nobody, or did not come in time: when to read it again.
        self._unknown: dict[int, float] = {}

    def forget_process(self, pid: int) -> None:
        """Forget a process that was reaped."""
        self._owners.pop(pid, None)
        self._unknown.pop(pid, None)

    def forget(self, name: str) -> None:
        """Forget an attempt that is over."""
        self._owners = {p: owner for p, owner in self._owners.items() if owner != name}

    def sweep(
        self,
        live: Mapping[str, spawn.Attempt],
        spare: set[int],
        patient: set[str],
        strayed: Callable[[int], bool],
    ) -> set[str]:
        """Kill orphans of ended attempts. Return the ids of attempts that have some left.

        Args:
            spare: children that are no orphans, and are not even examined.
            patient: attempts whose processes get time to end by themselves.
            strayed: returns True for a process in no group of any task. If no live attempt can have
                left its groups, such an orphan belongs to an ended one.
        """
        left: set[str] = set()
        mains = {attempt.pid for attempt in live.values() if not attempt.exited}
        idle = not mains and not patient
        staying = [attempt.order for attempt in live.values() if not attempt.exited]
        sure = not patient and all(map(task_isolation.may_keep, staying))
        orphans = [p for p in processes.own_children() if p not in mains and p not in spare]
        for pid, owner in self._owners_of(orphans, live).items():
            attempt = live.get(owner)
            if attempt is not None and not attempt.exited:
                continue
            if owner in patient:
                left.add(owner)
            elif owner or idle:
                processes.kill(pid)
                left.add(owner)
            elif sure and strayed(pid):
                processes.kill(pid)
                left.update(name for name, attempt in live.items() if attempt.exited)
        return left

    def kill_trees(
        self,
        attempts: list[spawn.Attempt],
        live: Mapping[str, spawn.Attempt],
        spare: set[int],
    ) -> None:
        """Kill attempts with all descendants, whichever group or session they are in."""
        for attempt, victims in self.trees(attempts, live, spare):
            processes.kill_group(attempt.pid, signal.SIGKILL)
            for pid in victims:
                processes.kill(pid)

    def trees(
        self,
        attempts: list[spawn.Attempt],
        live: Mapping[str, spawn.Attempt],
        spare: set[int],
    ) -> Iterator[tuple[spawn.Attempt, set[int]]]:
        """Yield each of the attempts with the ids of all its processes, the first one included."""
        table = processes.processes()
        mains = {attempt.pid for attempt in live.values()} | spare
        orphans = [p for p, facts in table.items() if facts[0] == os.getpid() and p not in mains]
        self._owners_of(orphans, live)
        for attempt in attempts:
            name: Any = attempt.record["id"]
            roots = {attempt.pid} | {pid for pid, owner in self._owners.items() if owner == name}
            found = processes.descendants(roots, table)
            self._owners.update((pid, name) for pid in found - {attempt.pid})
            yield attempt, found

    def _owners_of(self, orphans: list[int], live: Mapping[str, spawn.Attempt]) -> dict[int, str]:
        """Return the attempts that orphans belong to; empty for one that is unknown.

        Control groups and parents decide, which nobody can keep from being read. Only what they
        leave open is looked up in environments, all together and with a time limit.
        """
        now, unread = processes.boottime(), []
        by_main = {attempt.pid: name for name, attempt in live.items()}
        for pid in orphans:
            if pid in self._owners:
                continue
            facts = processes.process_facts(pid)
            owner = self._group_owner(pid) or by_main.get(facts[1] if facts else -1, "")
            if owner:
                self._owners[pid] = owner
            elif facts is not None and now >= self._unknown.get(pid, now):
                unread.append(pid)
        named = processes.attempts_of(unread, self._root)
        self._owners.update(named)
        self._unknown.update((pid, now + UNKNOWN_S) for pid in unread if pid not in named)
        return {pid: self._owners.get(pid, "") for pid in orphans}


def used(record: Mapping[str, Any], kernel: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the usage counted by control groups, as far as they counted.

    Peak memory is taken only from them, because the main process's own value includes what the
    supervisor had when it forked.
    """
    found = {}
    if "cpu_s" in kernel:
        found["cpu_s"] = max(record.get("cpu_s", 0.0), kernel["cpu_s"])
    if kernel.get("max_memory_bytes"):
        found["max_memory_bytes"] = kernel["max_memory_bytes"]
    return found
