"""Processes of sessions in containers, found by a variable of their environment. Stdlib only.

A runtime of root's puts what it starts into the control group of the container, not into that of
the session. What clears its environment and leaves its parents is not found: it ends with the task.
"""

from typing import NamedTuple

from agents.host import process_memory, processes
from agents.supervisor.interactive import port_dialer

#: Variable that names the session; whoever asked gives it to the command.
VARIABLE = "MUSTER_SESSION"
#: How often it is looked again, and for how long after the last process was found: a runtime may be
#: about to start one.
AGAIN_S, QUIET_S = 0.25, 1.0


class _Ending(NamedTuple):
    """A session whose processes are killed: the task's processes, and the times of looks."""

    pid: int
    group: str
    look_at: float
    until: float


class MarkedProcesses:
    """Sessions whose processes are being killed, by name."""

    def __init__(self) -> None:
        self._ending: dict[str, _Ending] = {}

    def __len__(self) -> int:
        return len(self._ending)

    def end(self, name: str, pid: int, group: str, at: float) -> None:
        """Kill the processes of a session from a moment of the boot clock on, until there are none.

        Args:
            name: of the session.
            pid: of the task's first process. group: folder of its control group; empty: none.
            at: when to begin.
        """
        known = self._ending.get(name)
        at = at if known is None else min(at, known.look_at)
        self._ending[name] = _Ending(pid, group, at, at + QUIET_S)

    def enforce(self, now: float) -> None:
        """Kill what is to be killed by now."""
        for name, one in list(self._ending.items()):
            if now < one.look_at:
                continue
            if now >= one.until:
                del self._ending[name]
                continue
            found = marked(name, one.pid, one.group)
            for pid in found:
                processes.kill(pid)
            until = now + QUIET_S if found else one.until
            self._ending[name] = one._replace(look_at=now + AGAIN_S, until=until)

    def moments(self) -> list[float]:
        """Return the moments of the next looks, on the boot clock."""
        return [one.look_at for one in self._ending.values()]


def marked(name: str, pid: int, group: str) -> set[int]:
    """Return the processes of a task that belong to a session.

    Args:
        name: of the session.
        pid: of the task's first process. group: folder of its control group; empty: none.
    """
    found = process_memory.read(port_dialer.task_processes(pid, group), (VARIABLE,))
    return {one for one, text in found.items() if text.variables.get(VARIABLE) == name}
