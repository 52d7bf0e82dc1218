"""Finding what a task has left without groups to look in: by descent, and by marks in environments.

The supervisor adopts orphans of its tasks; whose they were is remembered as soon as it is known.
Standard library only. It is the only net where there are no control groups, and the second one
where there are.
"""

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from agents.host import processes
from agents.supervisor import spawn, task_isolation


class OrphanFinder:
    """Orphans of attempts by pid, as far as they were seen."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._owners: dict[int, str] = {}

    def forget_process(self, pid: int) -> None:
        """A process was reaped."""
        self._owners.pop(pid, None)

    def forget(self, name: str) -> None:
        """An attempt is over."""
        self._owners = {p: owner for p, owner in self._owners.items() if owner != name}

    def sweep(
        self,
        live: Mapping[str, spawn.Attempt],
        spare: set[int],
        patient: set[str],
        strayed: Callable[[int], bool],
    ) -> set[str]:
        """Kill orphans of attempts that have ended; the ids of those that have some left.

        Children to ``spare`` are no orphans, and not even looked at. Those of ``patient`` attempts
        have time to leave by themselves. ``strayed`` tells what is in no group of any task. Where
        nothing that still runs can have left its own, such an orphan is of one that has ended,
        whichever it was.
        """
        left: set[str] = set()
        mains = {attempt.pid for attempt in live.values() if not attempt.exited}
        idle = not mains and not patient
        staying = [attempt.order for attempt in live.values() if not attempt.exited]
        sure = not patient and all(map(task_isolation.may_keep, staying))
        for pid in processes.own_children():
            if pid in mains or pid in spare:
                continue
            owner = self._owner_of(pid, live)
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
                left.update(name for name, one in live.items() if one.exited)
        return left

    def kill_trees(
        self,
        attempts: list[spawn.Attempt],
        live: Mapping[str, spawn.Attempt],
        spare: set[int],
    ) -> None:
        """Kill attempts with everything below them, whichever group or session it is in."""
        table = processes.processes()
        mains = {attempt.pid for attempt in live.values()} | spare
        for attempt in attempts:
            name: Any = attempt.record["id"]
            roots = {attempt.pid} | {pid for pid, owner in self._owners.items() if owner == name}
            roots |= {p for p, f in table.items() if f[0] == os.getpid() and p not in mains
                      and self._owner_of(p, live) == name}  # fmt: skip
            victims = processes.descendants(roots, table)
            self._owners.update((pid, name) for pid in victims - {attempt.pid})
            processes.kill_group(attempt.pid, signal.SIGKILL)
            for pid in victims:
                processes.kill(pid)

    def _owner_of(self, pid: int, live: Mapping[str, spawn.Attempt]) -> str:
        """The attempt that an orphan belongs to; empty when nothing tells."""
        owner = self._owners.get(pid, "")
        if not owner:
            owner = processes.attempt_of(pid, self._root)
            facts = processes.process_facts(pid)
            if not owner and facts is not None:
                owner = next((n for n, a in live.items() if a.pid == facts[1]), "")
            if owner:
                self._owners[pid] = owner
        return owner


def used(record: Mapping[str, Any], kernel: Mapping[str, Any]) -> dict[str, Any]:
    """What an attempt used, by its control groups as far as they know.

    Of memory their word alone counts: the most that its main process is said to have had has in it
    what the supervisor had when it began.
    """
    found = {}
    if "cpu_s" in kernel:
        found["cpu_s"] = max(record.get("cpu_s", 0.0), kernel["cpu_s"])
    if kernel.get("max_memory_bytes"):
        found["max_memory_bytes"] = kernel["max_memory_bytes"]
    return found
