"""Starts of a supervisor: several are on their way at once, so that none waits for the last one's
program.

A task of another Unix user is forked and becomes that user by itself. While it does, on another
core, the next one is begun; an order goes in, a record of what runs comes out, or why nothing
does. Standard library only.
"""

import os
import time
from typing import Any

from agents import confinement, crashpoints, guardian, processes, spawning

Record = dict[str, Any]

#: So many tasks are on their way to their program at the most. More than there are cores for:
#: they go to their groups meanwhile, for which they wait in the kernel.
AT_ONCE = 8


class NotStartedError(Exception):
    """An attempt that does not run, nor ever will: how it ended, and what is recorded of it."""

    def __init__(self, record: Record, reason: str, message: str) -> None:
        self.record = record
        self.reason = reason
        super().__init__(message)


class Begun:
    """An attempt whose process is on its way to its program, and what is recorded of it: in any
    case, and if it runs."""

    __slots__ = ("child", "kept", "order", "record")

    def __init__(self, order: Record, record: Record, kept: Record, child: spawning.Child) -> None:
        self.order = order
        self.record = record
        self.kept = kept
        self.child = child

    @property
    def name(self) -> str:
        """Of the attempt."""
        return str(self.record["id"])


def must_wait(begun: list[Begun], order: Record) -> bool:
    """Whether one of those that were begun has to have its program before this one is begun.

    A second order for the same attempt is none for a second process. And a task of the
    supervisor's own user may be started from within its control groups: while a forked child
    still shares the supervisor's memory, what the supervisor copies of it there would be charged
    to that task for ever.
    """
    if not begun:
        return False
    if len(begun) >= AT_ONCE or order.get("user") is None:
        return True
    return order["id"] in [other.name for other in begun]


class Starter:
    """Starts attempts below a root, each once and never again."""

    def __init__(
        self, root: str, held: confinement.Confinement, guardian_name: str, null: int
    ) -> None:
        self._root = root
        self._held = held
        self._guardian = guardian_name
        self._null = null

    def begin(self, order: Record) -> Begun:
        """Make an attempt's folder and its process.

        Raises:
            NotStartedError: it could not be; nothing of it runs.
        """
        record: Record = {"id": order["id"], "started_at": time.time()}
        if order.get("secrets"):
            record["secrets"] = True
        # nothing may go wrong between a task's start and its being in the table of those that live
        kept = {"cleanup": order["cleanup"]} if order.get("cleanup") else {}
        if order.get("limits", {}).get("cpus"):
            kept["cpus"] = order["limits"]["cpus"]
        try:
            spawning.make_folder(self._root, order)
        except FileExistsError:
            raise NotStartedError(record, "Lost", "its directory was there already") from None
        except OSError as problem:
            message = f"directory of the attempt: {problem}"
            raise NotStartedError(record, "StartFailed", message) from None
        order["env"][guardian.VARIABLE] = self._guardian
        standard = [self._null]
        try:
            standard += [
                spawning.open_log(self._root, order, stream) for stream in ("stdout", "stderr")
            ]
            child = self._held.start(order, (standard[0], standard[1], standard[2]))
        except Exception as problem:  # whatever an order holds, it is one attempt's trouble
            raise _not_started(record, problem) from None
        finally:
            for handle in standard[1:]:
                os.close(handle)
        return Begun(order, record, kept, child)

    def see_begin(self, begun: Begun) -> Record:
        """Wait until an attempt's program has begun; the record of what runs.

        Raises:
            NotStartedError: it could not begin; nothing of it runs.
        """
        try:
            pid = self._held.see_begin(begun.name, begun.child)
        except Exception as problem:
            raise _not_started(begun.record, problem) from None
        crashpoints.reach("spawned-not-recorded")
        facts = processes.process_facts(pid)
        ticks = facts[2] if facts else 0
        return begun.record | {"state": "Running", "pid": pid, "ticks": ticks, **begun.kept}


def _not_started(record: Record, problem: Exception) -> NotStartedError:
    if isinstance(problem, spawning.SpawnError):
        return NotStartedError(
            record | {"exit_code": problem.exit_code}, "StartFailed", str(problem)
        )
    return NotStartedError(record, "StartFailed", f"could not be started: {problem!r}")
