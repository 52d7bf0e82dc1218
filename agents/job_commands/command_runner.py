"""Runs one command around a job, within its limits, and says why it failed."""

import os
from collections.abc import Callable
from typing import NamedTuple

from agents.data import secret_store
from agents.isolation import command_cgroups, user_commands
from agents.job_commands.job_task import JobTask
from reconciler import child_process
from reconciler.model.observed.job_commands import JobCommand
from reconciler.model.observed.task_reports import told_text

#: How much of what a command writes is kept, and shown.
OUTPUT_BYTES_MAX = 4096
TAIL_CHARACTERS_MAX = 600


class CommandEnd(NamedTuple):
    """Result of a command: ``problem`` is empty if it succeeded.

    ``is_dropped`` is True if it was killed because nobody waits for it any more.
    """

    problem: str = ""
    is_dropped: bool = False


class CommandRunner:
    """Runs the commands of one node. Any thread may use it.

    If not even SIGKILL ends a command, it does not run again until its process has gone; one of the
    user, not again for that user.
    """

    def __init__(
        self, users: user_commands.UserCommands, secrets: secret_store.SecretStore
    ) -> None:
        self._users = users
        self._secrets = secrets
        self._stuck = child_process.StuckChildren()

    def run(
        self,
        command: JobCommand,
        task: JobTask,
        moment: str,
        *,
        is_wanted: Callable[[], bool],
        on_start: Callable[[int], None],
    ) -> CommandEnd:
        """Run a command to its end. An internal error is a failure.

        Args:
            moment: ``beforeJob`` or ``afterJob``; the command gets it as ``MUSTER_MOMENT``.
            on_start: called with its pid.
        """
        try:
            return self._run(command, task, moment, is_wanted, on_start)
        except Exception as failure:  # whatever it is, somebody waits for the end
            return CommandEnd(f"internal error of the agent: {failure!r}")

    def _run(
        self,
        command: JobCommand,
        task: JobTask,
        moment: str,
        is_wanted: Callable[[], bool],
        on_start: Callable[[int], None],
    ) -> CommandEnd:
        key = command.name if command.is_check else (command.name, task.user.uid)
        stuck = self._stuck.pids(key)
        if stuck:
            return CommandEnd(f"process {stuck[0]} of an earlier run can't be killed")
        try:
            program, place = self._program(command, task, moment)
            result = self._users.run_for_job(
                program,
                child_process.ChildLimits(
                    command.timeout_s,
                    OUTPUT_BYTES_MAX,
                    child_process.Excess.KEEP_END,
                    leftovers=child_process.Leftovers.KILL,
                ),
                place,
                is_wanted=is_wanted,
                on_start=on_start,
            )
        except OSError as problem:
            return CommandEnd(f"it can't be run: {problem.strerror or problem}")
        except secret_store.SecretUnavailableError as problem:
            return CommandEnd(str(problem))
        self._stuck.note(key, result)
        if result.end is child_process.ChildEnd.UNWANTED:
            return CommandEnd("it was stopped", is_dropped=True)
        return CommandEnd(_problem(command, result))

    def _program(
        self, command: JobCommand, task: JobTask, moment: str
    ) -> tuple[child_process.ChildProgram, user_commands.JobPlace]:
        """Return the program of a command, and where it runs.

        Raises:
            SecretUnavailableError: the job uses a secret that this node does not have.
        """
        told = {**task.variables, "MUSTER_MOMENT": moment, "MUSTER_COMMAND": command.name}
        user, place = None, user_commands.JobPlace("agent")
        if os.geteuid() == 0:  # no group of the agent's own comes with it
            user = child_process.ChildUser(0, 0, (0,))
        if command.run_as == "user":
            told = task.environment | self._values(task) | {"MUSTER_MOMENT": moment}
            who = task.user
            user = None
            if who.switch:
                user = child_process.ChildUser(who.uid, who.gid, who.groups)
            limits = command_cgroups.CommandLimits(
                task.memory_bytes or command_cgroups.MEMORY_BYTES_MAX,
                task.cpu_milli or command_cgroups.CPUS_MAX * 1000,
            )
            owner = f"job-{task.attempt}"
            place = user_commands.JobPlace(owner, limits, task.denied, task.restricts)
        program = child_process.ChildProgram(
            command.command,
            environment=told,
            folder="/",
            user=user,
            stdout=child_process.ChildOutput.READ,
            stderr=child_process.ChildOutput.MERGE,
        )
        return program, place

    def _values(self, task: JobTask) -> dict[str, str]:
        names = [name for name, variable in task.secrets if variable]
        found = self._secrets.fetch(task.user.name, task.user.uid, names)
        return {variable: found[name] for name, variable in task.secrets if variable}


def _problem(command: JobCommand, result: child_process.ChildResult) -> str:
    """Return why a command has failed, with the end of what it wrote; empty if it has not."""
    if result.status == 0:
        return ""
    how = f"it did not end within {command.timeout_s:g} s"
    if result.status is not None:
        signalled = result.status < 0
        how = f"signal {-result.status}" if signalled else f"status {result.status}"
    said = result.stdout.decode("utf-8", "replace").strip()[-TAIL_CHARACTERS_MAX:]
    return told_text(f"{how}: {said}" if said else how, TAIL_CHARACTERS_MAX + 100)
