"""The tasks of one try of a job on this node: who waits, who has ended, and what is noted of it."""

import contextlib
from collections.abc import Callable

import msgspec

from agents.host import disk_space
from agents.job_commands import try_notes
from agents.job_commands.job_task import JobTask
from agents.job_commands.try_notes import Phase, TryNote
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState

#: Called under the agent's lock with the reason that a task may not start, or an empty text. The
#: reason is an error if it decides how the attempt ends, such as `JobFaultError`.
Decided = Callable[[str | Exception], object]
#: Called from another thread with the report of an end that was held back.
Told = Callable[[AttemptReport], object]


class JobTry:
    """The tasks of one try of a job on this node.

    Attributes:
        waiting: tasks that wait for the commands before the job.
        ended: attempts that have ended.
        held: ends that are held back until the commands after the job have ended.
        again: tasks that came while those commands ran.
        is_busy: commands run.
        running: name of the command that runs.
    """

    def __init__(self, note: TryNote, notes: try_notes.NoteFolder) -> None:
        self.note = note
        self._notes = notes
        self.waiting: dict[str, Decided] = {}
        self.ended: set[str] = set()
        self.held: dict[str, tuple[AttemptReport, Told]] = {}
        self.again: dict[str, tuple[JobTask, Decided]] = {}
        self.is_busy = False
        self.running = ""

    @property
    def is_done(self) -> bool:
        """True if no command is left to run around the job."""
        return self.note.phase is Phase.DONE

    def add(self, task: JobTask) -> None:
        """Note another task of the job.

        Raises:
            FullDiskError: that can't be written.
        """
        members = self.note.members | {task.attempt: task.devices}
        note = msgspec.structs.replace(self.note, members=members)
        try:
            self._notes.save(note)
        except OSError as problem:
            raise disk_space.FullDiskError(f"commands around the job: {problem}") from None
        self.note = note
        self.ended.discard(task.attempt)

    def change(self, **changes: object) -> None:
        """Change the note. If it can't be written, a crash may repeat a command."""
        self.note = msgspec.structs.replace(self.note, **changes)
        with contextlib.suppress(OSError):
            self._notes.save(self.note)

    def is_over(self, may_be_here: Callable[[str], bool]) -> bool:
        """Return True if no task is here any more."""
        return self.note.phase is Phase.AFTER or all(
            name in self.ended or not may_be_here(name) for name in self.note.members
        )

    def devices(self) -> set[int]:
        """Return numbers of all GPUs that the job has had here."""
        return {device for given in self.note.members.values() for device in given}

    def given_up(self) -> tuple[int, ...]:
        """Return devices of tasks that have ended, and that the commands after the job are for."""
        note = self.note
        if not note.after or self.is_done:
            return ()
        over = note.phase is Phase.AFTER
        gone = self.ended if over or not note.task.elastic else ()
        return tuple(
            device
            for name, devices in note.members.items()
            if over or name in gone
            for device in devices
        )


def not_yet(report: AttemptReport, message: str) -> AttemptReport:
    """Return the report of an end as that of a task that still stops."""
    return msgspec.structs.replace(
        report, state=AttemptState.STOPPING, ended_at=None, exit_code=None, signal=None,
        end_reason=None, message=message,
    )  # fmt: skip


def with_problem(report: AttemptReport, problem: str) -> AttemptReport:
    """Return an end with why a command after the job has failed; the result stands."""
    if not problem:
        return report
    message = f"{report.message}; {problem}" if report.message else problem
    return msgspec.structs.replace(report, message=message)
