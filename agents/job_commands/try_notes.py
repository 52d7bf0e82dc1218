"""Notes on disk of jobs around which commands run, so that another agent goes on after this one.

A note is written before the first command runs, and deleted when nothing of the job is left to
tell. It holds no value of a secret. A command that runs is noted with its process, so that what an
agent has left is ended before the command is run again.
"""

import contextlib
import hashlib
import os
import signal
from enum import Enum
from pathlib import Path

import msgspec

from agents.host import processes
from agents.job_commands.job_task import JobTask
from reconciler.model.observed.job_commands import JobCommand


class Phase(Enum):
    """Progress of a job on a node."""

    BEFORE = "before"
    RUNNING = "running"
    AFTER = "after"
    DONE = "done"


class TryNote(msgspec.Struct, frozen=True):
    """A note of the tasks of one try of a job on this node, and of the commands around them.

    Attributes:
        key: name of the try, as `try_key_of` returns it.
        task: the task that came first.
        members: devices of each task, by attempt.
        before, after: commands as the pool had them when the first task came.
        after_ended: how many of those after the job have ended.
        problem: why some of them have failed.
        process: pid and start time of the command that runs; zeros for none.
    """

    key: str
    task: JobTask
    members: dict[str, tuple[int, ...]]
    before: tuple[JobCommand, ...] = ()
    after: tuple[JobCommand, ...] = ()
    phase: Phase = Phase.BEFORE
    after_ended: int = 0
    problem: str = ""
    process: tuple[int, int] = (0, 0)


_DECODE = msgspec.json.Decoder(TryNote).decode


class NoteFolder:
    """The folder of these notes, which only the agent's user can read."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "job-commands"
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def load(self) -> list[TryNote]:
        """Return all notes, after the commands that an earlier agent has left were ended."""
        found = []
        for path in sorted(self._folder.iterdir()):
            try:
                note = _DECODE(b"" if path.suffix else path.read_bytes())
            except (OSError, msgspec.MsgspecError):
                with contextlib.suppress(OSError):
                    path.unlink()  # of a crash while it was written
                continue
            end(note.process)
            found.append(msgspec.structs.replace(note, process=(0, 0)))
        return found

    def save(self, note: TryNote) -> None:
        """Write a note; raise OSError if that cannot be done."""
        path = self._path(note.key)
        fresh = path.with_suffix(".new")
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(msgspec.json.encode(note))
            fresh.replace(path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise

    def delete(self, key: str) -> None:
        """Delete a note."""
        with contextlib.suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / hashlib.sha256(key.encode()).hexdigest()[:32]


def start_time_of(pid: int) -> int:
    """Return the start time of a process in ticks since boot; 0 if it has gone."""
    facts = processes.process_facts(pid)
    return facts[2] if facts is not None else 0


def end(process: tuple[int, int]) -> None:
    """Kill the group of a command, unless its number has become another process's."""
    pid, started = process
    if pid > 1 and started and start_time_of(pid) == started:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
