"""Runs the commands before and after each job on this node, once for all of its tasks here.

Starts and ends of attempts come in under the agent's lock. The first task of a job that starts here
waits with all others until the commands before it have ended. The end of the last one is held back
until those after it have, and so is the success of an earlier one: what an attempt holds is free
when its end is reported. Commands run in threads; what those of the agent find is also a check of
the node, and keeps GPUs back on which they have failed.
"""

import threading
import traceback
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from agents.host import disk_space
from agents.job_commands import command_runner, failed_runs, try_notes
from agents.job_commands.failed_runs import AFTER, BEFORE
from agents.job_commands.job_task import JobTask
from agents.job_commands.job_try import Decided, JobTry, Told, not_yet, with_problem
from agents.job_commands.try_notes import Phase, TryNote
from reconciler.model.observed.health_checks import CheckResult
from reconciler.model.observed.job_commands import JobCommand, JobCommands
from reconciler.model.protocol.agent_messages import Assignment
from reconciler.model.state.identifiers import try_key_of
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason

#: How often it is looked which jobs have left without a word, such as after a restart.
LOOK_S = 1.0
#: The most characters about failed commands that an attempt's message gets.
PROBLEM_CHARACTERS_MAX = 1000


class JobFaultError(Exception):
    """A failure before a job that is the job's, because it can be caused by what its user chose."""


class NodeFacts(NamedTuple):
    """The node as the commands around jobs see it.

    Attributes:
        tasks_of: returns what is assigned here of the job of an attempt.
        may_be_here: returns False for an attempt that has ended, or never will start here.
        found: reports what a command of the agent has found as the result of a check of the node.
        is_leaving: returns True if the agent ends; the next one goes on.
        say: shows an internal error to the operator.
    """

    tasks_of: Callable[[str], list[Assignment]]
    may_be_here: Callable[[str], bool]
    found: Callable[[CheckResult], object]
    is_leaving: Callable[[], bool]
    say: Callable[[str], object]


class _Late(NamedTuple):
    """A task that waits for devices."""

    devices: tuple[int, ...]
    decided: Decided


class JobTries:
    """The jobs on one node around which commands run.

    Args:
        root: the node's folder.
        lock: the agent's.
    """

    def __init__(
        self,
        root: Path,
        runner: command_runner.CommandRunner,
        facts: NodeFacts,
        lock: threading.RLock,
    ) -> None:
        self._notes = try_notes.NoteFolder(root)
        self._runner = runner
        self._facts = facts
        self._lock = lock
        self._commands = JobCommands()
        self._late: dict[str, _Late] = {}
        self._work = threading.Event()
        self._tries = {note.key: JobTry(note, self._notes) for note in self._notes.load()}
        hooks = failed_runs.RunHooks(facts.found, self._is_done, facts.is_leaving, self._work.set)
        self._failed = failed_runs.FailedRuns(root, runner, hooks, lock)

    def follow(self, commands: JobCommands) -> None:
        """Run these commands around jobs that come from now on."""
        with self._lock:
            self._commands = commands
            self._failed.follow(commands)
            self._work.set()

    def repaired(self, cause: str) -> None:
        """Forget what the command has found that a remediation was for; jobs try it again."""
        with self._lock:
            self._failed.forget(cause.rpartition("/")[2])
            self._work.set()

    def _is_done(self, key: str) -> bool:
        """Return True if no command is left to run around the job of a try."""
        job_try = self._tries.get(key)
        return job_try is None or job_try.is_done

    # Starts ----------------------------------------------------------------------------------

    def await_devices(self, attempt: str, devices: tuple[int, ...], decided: Decided) -> bool:
        """Return True if a task must wait, because commands after another job use its devices.

        So it must if one has failed on them: that one runs again. ``decided`` is called with an
        empty text once they are free, or with the reason that they will not be.
        """
        with self._lock:
            self._look()
            if not self._failed.run_again(devices) and not self._blocker(attempt, devices):
                return False
            self._late[attempt] = _Late(devices, decided)
            self._work.set()
            return True

    def are_any(self, attempt: str) -> bool:
        """Return True if commands run around the job of an attempt."""
        with self._lock:
            commands = self._commands
            return bool(commands.before or commands.after or try_key_of(attempt) in self._tries)

    def tasks_of(self, attempt: str) -> list[Assignment]:
        """Return what is assigned here of the job of an attempt."""
        return self._facts.tasks_of(attempt)

    def enter(self, task: JobTask, decided: Decided) -> bool:
        """Return True if a task must wait for the commands before its job.

        Raises:
            FullDiskError: nothing can be noted of it.
        """
        with self._lock:
            key = try_key_of(task.attempt)
            job_try = self._tries.get(key)
            if job_try is not None and job_try.note.phase is Phase.AFTER:
                job_try.again[task.attempt] = task, decided
                return True
            if job_try is None or job_try.is_done:
                if not (self._commands.before or self._commands.after):
                    return False
                note = TryNote(key, task, {}, self._commands.before, self._commands.after)
                job_try = JobTry(note, self._notes)
            job_try.add(task)
            self._tries[key] = job_try
            if job_try.note.phase is not Phase.BEFORE:
                return False
            if not job_try.note.before:
                job_try.change(phase=Phase.RUNNING)
                return False
            job_try.waiting[task.attempt] = decided
            if not job_try.is_busy:
                self._begin(job_try, self._before)
            return True

    def give_up(self, attempt: str) -> bool:
        """Stop waiting for a task. Return False if it did not wait."""
        with self._lock:
            if self._late.pop(attempt, None) is not None:
                return True
            job_try = self._tries.get(try_key_of(attempt))
            if job_try is None:
                return False
            return bool(job_try.waiting.pop(attempt, None) or job_try.again.pop(attempt, None))

    def waiting(self) -> dict[str, str]:
        """Return notes of tasks that wait, by attempt."""
        with self._lock:
            notes = {
                attempt: f"commands {self._blocker(attempt, late.devices)} run on its GPUs"
                for attempt, late in self._late.items()
            }
            for job_try in self._tries.values():
                notes |= dict.fromkeys(
                    job_try.waiting, f"running {BEFORE} command {job_try.running}"
                )
        return notes

    def _blocker(self, attempt: str, devices: Collection[int]) -> str:
        """Return around which job commands use devices of a task; empty if none do."""
        own = try_key_of(attempt)
        for key, job_try in self._tries.items():
            is_over = job_try.note.phase is Phase.AFTER
            if (key == own and is_over) or (
                key != own and not set(job_try.given_up()).isdisjoint(devices)
            ):
                return f"after job {job_try.note.task.job}"
        return "that have failed" if self._failed.is_open(devices) else ""

    # Ends ------------------------------------------------------------------------------------

    def hold(self, reports: Iterable[AttemptReport], told: Told) -> list[AttemptReport]:
        """Return reports, with ends held back until the commands after their jobs have ended.

        ``told`` is then called with those ends, from another thread.
        """
        with self._lock:
            return [self._hold(report, told) for report in reports]

    def _hold(self, report: AttemptReport, told: Told) -> AttemptReport:
        job_try = self._tries.get(try_key_of(report.id))
        if report.state is not AttemptState.ENDED or job_try is None:
            return report
        if report.id not in job_try.note.members:
            return report
        job_try.ended.add(report.id)
        if job_try.is_done:
            return with_problem(report, job_try.note.problem)
        is_last = job_try.is_over(self._facts.may_be_here)
        well = report.end_reason is EndReason.EXITED and report.exit_code == 0
        if not job_try.note.after or not (is_last or (well and not job_try.note.task.elastic)):
            self._work.set()
            return report
        job_try.held[report.id] = report, told
        said = "waiting for the other tasks of its job on this node"
        if is_last:
            if not job_try.is_busy:
                self._leave(job_try)
            said = f"running {AFTER} commands"
        return not_yet(report, said)

    def turn(self, wait_s: float = LOOK_S) -> None:
        """Look which jobs have left, which devices are free, and what is to run again.

        A thread calls it all the time.
        """
        self._work.wait(wait_s)
        self._work.clear()
        with self._lock:
            self._look()

    def _look(self) -> None:
        for key, job_try in list(self._tries.items()):
            if job_try.is_busy or not job_try.is_over(self._facts.may_be_here):
                continue
            if not job_try.is_done:
                self._leave(job_try)
            elif not any(map(self._facts.may_be_here, job_try.note.members)):
                del self._tries[key]
                self._notes.delete(key)
        for attempt, late in list(self._late.items()):
            if not self._blocker(attempt, late.devices):
                del self._late[attempt]
                self._call(late.decided, self._failed.problem(late.devices))
        self._failed.turn()

    def _leave(self, job_try: JobTry) -> None:
        """Begin the commands after a job."""
        job_try.change(phase=Phase.AFTER)
        self._begin(job_try, self._after)

    # Commands --------------------------------------------------------------------------------

    def _begin(self, job_try: JobTry, work: Callable[[JobTry], None]) -> None:
        job_try.is_busy = True
        threading.Thread(target=work, args=(job_try,), daemon=True).start()

    def _before(self, job_try: JobTry) -> None:
        """Run the commands before a job, until one fails, and decide of the tasks that wait."""
        said: str | Exception = ""
        is_dropped = False
        for command in job_try.note.before:
            end = self._run(job_try, command, BEFORE, lambda: self._is_awaited(job_try))
            is_dropped = end.is_dropped
            if is_dropped:
                break
            if end.problem:
                said = f"{BEFORE} command {command.name} failed here: {end.problem}"
                if not command.is_check:
                    said = JobFaultError(said)
                break
        with self._lock:
            if is_dropped and self._facts.is_leaving():
                return  # the next agent runs it again
            job_try.is_busy = False
            if (
                is_dropped and job_try.waiting
            ):  # a task that came when the command was ended already
                self._begin(job_try, self._before)
                return
            waiting, job_try.waiting = job_try.waiting, {}
            if waiting and not said:
                job_try.change(phase=Phase.RUNNING)
            for decided in waiting.values():
                self._call(decided, said)
            self._work.set()

    def _after(self, job_try: JobTry) -> None:
        """Run the commands after a job, all of them, and report the ends that were held back."""
        for command in job_try.note.after[job_try.note.after_ended :]:
            end = self._run(job_try, command, AFTER, lambda: not self._facts.is_leaving())
            if end.is_dropped:
                return  # the next agent runs it again
            said = job_try.note.problem
            if end.problem:
                more = f"{AFTER} command {command.name} failed: {end.problem}"
                said = f"{said}; {more}" if said else more
            with self._lock:
                ended = job_try.note.after_ended + 1
                job_try.change(after_ended=ended, problem=said[:PROBLEM_CHARACTERS_MAX])
        with self._lock:
            job_try.is_busy = False
            job_try.change(phase=Phase.DONE)
            held, job_try.held = job_try.held, {}
            again, job_try.again = job_try.again, {}
            for report, told in held.values():
                self._call(told, with_problem(report, job_try.note.problem))
            for task, decided in again.values():
                self._call(self._enter_again, task, decided)
            self._work.set()

    def _enter_again(self, task: JobTask, decided: Decided) -> None:
        """Let a task in that came while the commands after its job ran, or decide against it."""
        problem: str | Exception = self._failed.problem(task.devices)
        try:
            if not problem and self.enter(task, decided):
                return
        except disk_space.FullDiskError as lack:
            problem = lack
        decided(problem)

    def _call(self, call: Callable[..., object], *args: object) -> None:
        """Tell what was waited for; an internal error of it costs no other one."""
        try:
            call(*args)
        except Exception:  # of one task; others wait for the same commands
            self._facts.say(f"internal error after commands of a job: {traceback.format_exc()}")

    def _is_awaited(self, job_try: JobTry) -> bool:
        return bool(job_try.waiting) and not self._facts.is_leaving()

    def _run(
        self, job_try: JobTry, command: JobCommand, moment: str, is_wanted: Callable[[], bool]
    ) -> command_runner.CommandEnd:
        """Run one command, and note what it has found.

        What a command of the user finds says nothing of the node: its environment, its files and
        its limits are the user's to choose.
        """

        def started(pid: int) -> None:
            with self._lock:
                job_try.change(process=(pid, try_notes.start_time_of(pid)))

        job_try.running = command.name
        task = job_try.note.task
        end = self._runner.run(command, task, moment, is_wanted=is_wanted, on_start=started)
        with self._lock:
            job_try.change(process=(0, 0))
            if command.is_check and not end.is_dropped:
                self._failed.note(command, moment, task, job_try.devices(), end.problem)
        return end
