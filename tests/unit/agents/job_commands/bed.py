"""The commands around jobs of one node: real programs run, and what comes out is noted."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agents.data.secret_store import SecretStore
from agents.isolation.user_commands import UserCommands
from agents.job_commands.command_runner import CommandRunner
from agents.job_commands.job_task import JobTask, JobUser
from agents.job_commands.job_tries import JobTries, NodeFacts
from reconciler.model.observed.health_checks import CheckResult
from reconciler.model.observed.job_commands import JobCommand, JobCommands
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason

T = TypeVar("T")
WAIT_S = 30.0
USER = JobUser("ada", 1000, 1000)


def command(name: str, script: str = "", timeout_s: float = 30.0) -> JobCommand:
    """A command of the agent that runs a shell script."""
    return JobCommand(name, ("/bin/sh", "-c", script), timeout_s)


def of_user(name: str, script: str = "") -> JobCommand:
    """A command of the job's user that runs a shell script."""
    return JobCommand(name, ("/bin/sh", "-c", script), 30.0, "user")


def task(job: str, *devices: int, index: int = 0, **fields: Any) -> JobTask:
    """A task of a job. Its agent's commands know the job as ``$MUSTER_JOB``."""
    variables = {"PATH": "/usr/bin:/bin", "MUSTER_JOB": job}
    plain = JobTask(f"{job}.1.aaaa.0.g.{index}.1", job, USER, devices=devices, variables=variables)
    return msgspec.structs.replace(plain, **fields)


def ended(one: JobTask) -> AttemptReport:
    """The report of a task that has ended with status 0."""
    return AttemptReport(one.attempt, AttemptState.ENDED, end_reason=EndReason.EXITED, exit_code=0)


class TriesBed:
    """The commands around the jobs of one node, without an agent.

    Attributes:
        tries: what is tested.
        checks: checks of the node that are not healthy, by name.
        ever_failed: names of checks that have ever failed.
        decided: what was decided of tasks that waited, by attempt.
        told: ends that were held back, by attempt.
        gone: attempts that have ended.
        said: internal errors.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checks: dict[str, CheckResult] = {}
        self.ever_failed: set[str] = set()
        self.decided: dict[str, str | Exception] = {}
        self.told: dict[str, AttemptReport] = {}
        self.gone: set[str] = set()
        self.said: list[str] = []
        self.leaving = threading.Event()
        self.lock = threading.RLock()
        self._news = threading.Condition(self.lock)
        self.tries = self._start()

    def _start(self) -> JobTries:
        leaving = self.leaving = threading.Event()
        facts = NodeFacts(
            tasks_of=lambda _: [],
            may_be_here=lambda attempt: attempt not in self.gone,
            found=self._found,
            is_leaving=leaving.is_set,
            say=self.said.append,
        )
        return JobTries(self.root, CommandRunner(UserCommands(), SecretStore()), facts, self.lock)

    def restart(self) -> None:
        """Let another agent go on after this one."""
        self.leaving.set()
        self.checks.clear()
        self.tries = self._start()

    def around(self, before: tuple[JobCommand, ...], *after: JobCommand) -> None:
        """Have the pool declare commands."""
        self.tries.follow(JobCommands(before, after))

    def enter(self, one: JobTask) -> bool:
        """Let a task in. Return True if it must wait."""
        return self.tries.enter(one, self._note(one.attempt))

    def ask(self, one: JobTask) -> bool:
        """Return True if a task must wait for its devices."""
        return self.tries.await_devices(one.attempt, one.devices, self._note(one.attempt))

    def end(self, one: JobTask) -> AttemptReport:
        """End a task with status 0. Return what is told of it at once."""
        return self.tries.hold([ended(one)], self._tell)[0]

    def run(self, one: JobTask) -> AttemptReport:
        """Run a task to its end, and the commands after its job. Return how it has ended."""
        self.enter(one)
        self.end(one)
        return self.end_of(one)

    def decision(self, one: JobTask) -> str | Exception:
        """Wait for what is decided of a task, and return it."""
        self.wait(lambda: one.attempt in self.decided, f"decision of {one.attempt}")
        return self.decided.pop(one.attempt)

    def end_of(self, one: JobTask) -> AttemptReport:
        """Wait for the end of a task that is held back, and return it."""
        report = self.wait(lambda: self.told.pop(one.attempt, None), f"end of {one.attempt}")
        self.gone.add(one.attempt)
        return report

    def wait(self, look: Callable[[], T | None], what: str) -> T:
        """Wait until a look finds something, and return it."""
        with self._news:
            found: list[T] = []

            def is_there() -> bool:
                one = look()
                if one is None or one is False:
                    return False
                found.append(one)
                return True

            assert self._news.wait_for(is_there, WAIT_S), what
            return found[0]

    def failing(self) -> dict[str, str]:
        """Return the messages of checks that have failed."""
        with self.lock:
            return {name: one.message for name, one in self.checks.items()}

    def _found(self, result: CheckResult) -> None:
        with self._news:
            self.checks.pop(result.name, None)
            if result.verdict != "healthy":
                self.checks[result.name] = result
                self.ever_failed.add(result.name)
            self._news.notify_all()

    def _note(self, attempt: str) -> Callable[[str | Exception], None]:
        def decided(problem: str | Exception) -> None:
            self.decided[attempt] = problem
            self._news.notify_all()

        return decided

    def _tell(self, report: AttemptReport) -> None:
        with self._news:
            self.told[report.id] = report
            self._news.notify_all()
