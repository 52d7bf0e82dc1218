"""Ends everything of a node that ends with its tasks: supervisor, processes, groups, containers.

It is used by an agent that stops with its tasks, and for virtual nodes whose agent could not.
"""

import time
from collections.abc import Callable
from pathlib import Path

from agents.host import processes
from agents.isolation import user_commands
from agents.supervisor import journal, task_isolation
from agents.tasks import container_cleanup, images

#: Time for a killed supervisor to end.
GONE_S = 10.0
#: How often to check if it has.
LOOK_S = 0.005


def end_everything(
    root: Path,
    users: user_commands.UserCommands | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> list[str]:
    """End everything of the node in ``root``. Return what could not be ended, as messages.

    Args:
        users: how the node has run commands as users, if its agent is still here.
    """
    problems = []
    # a supervisor that has ended in order has left no groups, and no word of them
    users = users or user_commands.UserCommands(lambda: task_isolation.remembered(str(root)))
    supervisors = processes.supervisors_of(str(root))
    for pid in supervisors:
        processes.kill(pid)
    deadline = time.monotonic() + GONE_S
    while supervisors and processes.is_locked(f"{root}/supervisor.lock"):
        if time.monotonic() > deadline:
            problems.append(f"supervisor {min(supervisors)} can't be killed")
            break
        pause(LOOK_S)
    processes.ask_runtimes(str(root))
    alive = journal.read(f"{root}/journal")
    recorded = [record for record in alive.values() if record["state"] != "Ended"]
    if not task_isolation.clean_up(str(root)):
        problems.append("some control groups of tasks can't be removed")
    if not processes.kill_leftovers(str(root), recorded):
        problems.append("some processes of tasks can't be killed")
    problems += images.end_left(str(root), pause)
    problems += container_cleanup.clear(root, images.RuntimeCommands(users).execute, pause)
    users.leave()
    return problems
