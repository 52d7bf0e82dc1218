"""Failures of commands around jobs that nothing has made good yet, and their other runs.

A failure belongs to a command and to the GPUs of its job. No task starts on those before the
command has succeeded there: for the same job again, or for another one that had all of them. The
node's check of the command fails as long. The failures are on disk, so that no agent forgets them.
All methods are called under the agent's lock.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from agents.job_commands import command_runner, try_notes
from agents.job_commands.job_task import JobTask
from reconciler.model.observed.health_checks import CheckResult
from reconciler.model.observed.job_commands import JobCommand, JobCommands
from reconciler.model.state.identifiers import try_key_of

BEFORE, AFTER = "beforeJob", "afterJob"


class FailedRun(msgspec.Struct, frozen=True):
    """A failure of a command of the agent around a job.

    Attributes:
        command: as it runs again.
        moment: ``beforeJob`` or ``afterJob``.
        task: the job's first task here, without what only commands of the user get.
        devices: numbers of all GPUs that the job had here.
        problem: why it has failed.
    """

    command: JobCommand
    moment: str
    task: JobTask
    devices: tuple[int, ...]
    problem: str

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """Name of the command, and its GPUs: one of them is kept at a time."""
        return self.command.name, self.devices


class _Kept(msgspec.Struct, frozen=True):
    """Contents of the file. ``process`` is that of the command that runs again."""

    runs: tuple[FailedRun, ...] = ()
    process: tuple[int, int] = (0, 0)


_DECODE = msgspec.json.Decoder(_Kept).decode


class RunHooks(NamedTuple):
    """The node as failures see it.

    Attributes:
        found: reports the check of a command.
        may_run: returns False while tasks of a try are here, or commands around it, given its key.
        is_leaving: returns True if the agent ends.
        settled: called when a command has run again.
    """

    found: Callable[[CheckResult], object]
    may_run: Callable[[str], bool]
    is_leaving: Callable[[], bool]
    settled: Callable[[], object]


class FailedRuns:
    """The failures of one node. One command at a time runs again, in a thread.

    There are no more of them for a command than jobs can have GPUs of their own here, and one
    without: a failure takes the place of those whose GPUs it has, too.

    Args:
        root: the node's folder.
        lock: the agent's.
    """

    def __init__(
        self,
        root: Path,
        runner: command_runner.CommandRunner,
        hooks: RunHooks,
        lock: threading.RLock,
    ) -> None:
        self._path = root / "failed-job-commands.json"
        self._runner = runner
        self._hooks = hooks
        self._lock = lock
        #: None until the controller has told them.
        self._commands: JobCommands | None = None
        kept = self._load()
        self._runs = list(kept.runs)
        self._process = (0, 0)
        #: Failures that are to run again; after a restart all are.
        self._due = {one.key for one in self._runs}
        self._running: FailedRun | None = None
        self._tell({one.command.name for one in self._runs})

    def follow(self, commands: JobCommands) -> None:
        """Take these for the commands of the pool.

        What one has found is forgotten if it is no check of the pool any more. An edit makes no
        node well: a command that was changed runs again.
        """
        self._commands = commands
        self._compare(commands.checks)

    def forget(self, name: str) -> None:
        """Forget what a command has found, because a remedy has repaired it."""
        self._drop(lambda one: one.command.name == name)

    def note(
        self,
        command: JobCommand,
        moment: str,
        task: JobTask,
        devices: Collection[int],
        problem: str,
    ) -> None:
        """Note how a command has ended for a job with these GPUs; ``problem`` is empty if well.

        What it has found before on these GPUs, or on a part of them, holds no more.
        """
        name = command.name
        self._runs = [
            one
            for one in self._runs
            if one.command.name != name or not set(one.devices) <= set(devices)
        ]
        if problem:
            bare = msgspec.structs.replace(task, environment={}, secrets=())
            gpus = tuple(sorted(devices))
            self._runs.append(FailedRun(command, moment, bare, gpus, problem))
        self._changed({name})
        if self._commands is not None:
            self._compare(self._commands.checks)  # what ran may be of before an edit

    # Other runs ------------------------------------------------------------------------------

    def run_again(self, devices: Collection[int]) -> bool:
        """Run commands again that have failed on these GPUs. Return False if there are none."""
        found = self._on(devices)
        # of one that runs the end is soon known
        self._due |= {one.key for one in found} - ({self._running.key} if self._running else set())
        return bool(found) or self.is_open(devices)

    def is_open(self, devices: Collection[int]) -> bool:
        """Return True if commands that have failed on these GPUs are to run again, or run."""
        if self._running is not None and not set(self._running.devices).isdisjoint(devices):
            return True  # also once it has succeeded: what cleans up after it runs
        return any(one.key in self._due and self._may_run(one) for one in self._on(devices))

    def problem(self, devices: Collection[int]) -> str:
        """Return why nothing can start on these GPUs; empty if something can."""
        for one in self._on(devices):
            what = f"{one.moment} command {one.command.name}"
            gpus = ", ".join(map(str, one.devices))
            return f"{what} failed here for job {one.task.job} on GPU {gpus}: {one.problem}"
        return ""

    def turn(self) -> None:
        """Begin to run the next command again, if one is due."""
        if self._running is not None or self._commands is None or self._hooks.is_leaving():
            return
        for one in self._runs:
            if one.key in self._due and self._may_run(one):
                self._due.discard(one.key)
                self._running = one
                threading.Thread(target=self._work, args=(one,), daemon=True).start()
                return

    def _work(self, failed: FailedRun) -> None:
        try:
            self._again(failed)
        finally:
            with self._lock:
                self._running = None
                self._hooks.settled()

    def _again(self, failed: FailedRun) -> None:
        """Run a command again for its job; after one before a job, also those after it."""
        with self._lock:
            after = self._commands.after if self._commands is not None else ()
        runs = [(failed.command, failed.moment)]
        if failed.moment == BEFORE:
            runs += [(one, AFTER) for one in after if one.is_check]
        for command, moment in runs:
            end = self._runner.run(
                command,
                failed.task,
                moment,
                is_wanted=lambda: not self._hooks.is_leaving(),
                on_start=self._started,
            )
            if end.is_dropped:
                return  # the next agent runs it again
            with self._lock:
                self._process = (0, 0)
                self.note(command, moment, failed.task, failed.devices, end.problem)

    def _started(self, pid: int) -> None:
        with self._lock:
            self._process = (pid, try_notes.start_time_of(pid))
            self._save()

    # State -----------------------------------------------------------------------------------

    def _may_run(self, failed: FailedRun) -> bool:
        """Return False as long as others of its job are here, whose files it might delete."""
        return self._hooks.may_run(try_key_of(failed.task.attempt))

    def _compare(self, known: Mapping[str, JobCommand]) -> None:
        """Compare the commands that have failed with those of the pool."""
        self._drop(lambda one: one.command.name not in known)
        for index, one in enumerate(self._runs):
            now = known[one.command.name]
            if now != one.command:
                self._runs[index] = msgspec.structs.replace(one, command=now)
                self._due.add(one.key)
                self._save()

    def _on(self, devices: Collection[int]) -> list[FailedRun]:
        return [one for one in self._runs if not set(one.devices).isdisjoint(devices)]

    def _drop(self, is_over: Callable[[FailedRun], bool]) -> None:
        names = {one.command.name for one in self._runs if is_over(one)}
        if names:
            self._runs = [one for one in self._runs if not is_over(one)]
            self._changed(names)

    def _changed(self, names: Collection[str]) -> None:
        self._due &= {one.key for one in self._runs}
        self._save()
        self._tell(names)

    def _tell(self, names: Collection[str]) -> None:
        """Report the checks of commands: failed on all GPUs on which they are not made good."""
        for name in sorted(names):
            runs = [one for one in self._runs if one.command.name == name]
            result = CheckResult(name)
            if runs:
                gpus = {device for one in runs for device in one.devices}
                result = CheckResult(name, "failed", runs[-1].problem, tuple(sorted(gpus)))
            self._hooks.found(result)

    def _load(self) -> _Kept:
        """Return what an earlier agent has left, after the command that it ran was ended."""
        try:
            kept = _DECODE(self._path.read_bytes())
        except (OSError, msgspec.MsgspecError):
            return _Kept()
        try_notes.end(kept.process)
        return kept

    def _save(self) -> None:
        fresh = self._path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with contextlib.suppress(OSError):  # then only this agent remembers it
            with os.fdopen(os.open(fresh, flags, 0o600), "wb") as stream:
                stream.write(msgspec.json.encode(_Kept(tuple(self._runs), self._process)))
            fresh.replace(self._path)
