"""Removes what containers leave in their runtime's storage, also after crashes.

A container does not remove itself, because that would be killed with its supervisor and leave
unnamed layers. Instead the command that removes it is noted on disk before it starts, one file per
attempt, until it has succeeded. So no crash of supervisor, agent or machine leaves a container
behind. Failed removals are retried less and less often. An unreadable note is reported and kept.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agents.supervisor.commands import Command
from agents.tasks import images, start_commands
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason

FOLDER = "containers"
#: Pause after a failed removal, doubled each time.
AGAIN_S_MIN, AGAIN_S_MAX = 5.0, 600.0
#: Time for all removals when a node ends with its tasks, tries of each, and the pause between them.
LAST_S = 60.0
LAST_TRIES, LAST_PAUSE_S = 3, 1.0
#: How often to check if attempts of an earlier agent may still start: less and less.
LOOK_S_MIN, LOOK_S_MAX = 1.0, 60.0

#: Runs a removal. Returns its status, None after the time limit, and its last line of output.
Execute = Callable[
    [list[str], Mapping[str, Any] | None, dict[str, str], float], tuple[int | None, str]
]


class RemovalCommand(msgspec.Struct, frozen=True):
    """A command that removes a container. ``user`` has credentials as in start commands."""

    argv: list[str]
    user: Mapping[str, Any] | None
    env: dict[str, str]

    def run(self, limit_s: float, execute: Execute) -> str:
        """Run the command. Return a problem, or an empty text."""
        status, said = execute(self.argv, self.user, self.env, limit_s)
        if status == 0:
            return ""
        if status is None:
            return f"`{' '.join(self.argv)}` did not end in {limit_s:g} s"
        return f"`{' '.join(self.argv)}`: {said or f'status {status}'}"


#: Created before there are threads.
_DECODE = msgspec.json.Decoder(RemovalCommand).decode


class ContainerRemover:
    """The noted containers of one node. One thread calls ``turn``, any thread the rest."""

    def __init__(
        self,
        root: Path,
        say: Callable[[str], None],
        may_begin: Callable[[str], bool],
        leaving: threading.Event,
        execute: Execute,
    ) -> None:
        self._folder = root / FOLDER
        self._say = say
        self._may_begin = may_begin
        self._leaving = leaving
        self._execute = execute
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._noted, unread = _read(root)
        for problem in unread:
            say(problem)
        #: Notes of an earlier agent: if no attempt of the name is left, nobody reports its end.
        self._earlier = set(self._noted)
        #: Ended attempts: when to try the removal, and how often it has failed.
        self._due: dict[str, tuple[float, int]] = {}
        self._look_s = LOOK_S_MIN

    def note(self, commands: Sequence[Command]) -> list[Command]:
        """Note the containers that commands will start. Return the commands.

        If a note cannot be written, its command becomes a refusal: on a full disk the task would
        fail anyway.
        """
        self._look_again()
        is_noted = False
        noted: list[Command] = []
        for command in commands:
            if command["op"] == "start" and (cleanup := command.get("cleanup")):
                problem = self._note(command["id"], RemovalCommand(**cleanup))
                is_noted = is_noted or not problem
                if problem:
                    reason = EndReason.CHECK_FAILED  # the note is on the node's own disk
                    noted.append(start_commands.refusal(command["id"], reason, problem))
                    continue
            noted.append(command)
        if is_noted:
            with contextlib.suppress(OSError):  # what is in the files is safe, and may be found
                _keep(self._folder, os.O_DIRECTORY)
        return noted

    def _note(self, attempt: str, removal: RemovalCommand) -> str:
        """Write a note. Return why it cannot be written, or an empty text."""
        with self._lock:
            self._earlier.discard(attempt)
            if self._noted.get(attempt) == removal:
                return ""
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                fresh = self._folder / f".{attempt}"
                fresh.write_bytes(msgspec.json.encode(removal))
                _keep(fresh)
                fresh.replace(self._folder / attempt)
            except OSError as problem:
                return f"its container's removal can't be noted: {problem}"
            self._noted[attempt] = removal
        return ""

    def heard(self, reports: Iterable[AttemptReport], cleanups: dict[str, dict[str, Any]]) -> None:
        """Note attempts that have ended, with the removal commands that the supervisor reported."""
        self._look_again()
        for report in reports:
            if report.state is AttemptState.ENDED:
                self.ended(report.id, cleanups.pop(report.id, None))

    def _look_again(self) -> None:
        """Check soon if notes of an earlier agent belong to no attempt any more."""
        if self._earlier:
            self._look_s = LOOK_S_MIN
            self._wake.set()

    def ended(self, attempt: str, cleanup: dict[str, Any] | None = None) -> None:
        """Remove what an attempt has left, because nothing of it runs any more.

        Args:
            cleanup: removal command from the supervisor's record, if an older agent noted none.
        """
        with self._lock:
            if cleanup and attempt not in self._noted:
                self._noted[attempt] = _removal(cleanup)
            if attempt not in self._noted:
                return
            self._earlier.discard(attempt)
            self._due.setdefault(attempt, (0.0, 0))
        self._wake.set()

    def turn(self) -> None:
        """Remove what is due, until the agent stops."""
        while not self._leaving.is_set():
            self._wake.wait(self._wait_s())
            self._wake.clear()
            self._find_orphans()
            now = time.monotonic()
            for attempt in [name for name, (at, _) in self._due.copy().items() if at <= now]:
                if self._leaving.is_set():
                    return
                self._remove(attempt)

    def _wait_s(self) -> float | None:
        with self._lock:
            if self._earlier:
                wait_s, self._look_s = self._look_s, min(2 * self._look_s, LOOK_S_MAX)
                return wait_s
            soonest = min((at for at, _ in self._due.values()), default=None)
        return None if soonest is None else max(0.05, soonest - time.monotonic())

    def _find_orphans(self) -> None:
        with self._lock:
            earlier = list(self._earlier)
        for attempt in earlier:
            if not self._may_begin(attempt):
                with self._lock:
                    if attempt in self._earlier:
                        self._earlier.discard(attempt)
                        self._look_s = LOOK_S_MIN
                        self._due.setdefault(attempt, (0.0, 0))

    def _remove(self, attempt: str) -> None:
        problem = self._noted[attempt].run(images.LOOK_S, self._execute)
        with self._lock:
            if not problem:
                del self._due[attempt], self._noted[attempt]
                forget(self._folder, attempt)
                return
            failures = self._due[attempt][1] + 1
            again_s = min(AGAIN_S_MAX, AGAIN_S_MIN * 2.0 ** min(failures - 1, 16))
            self._due[attempt] = (time.monotonic() + again_s, failures)
        if failures == 1:
            self._say(f"{problem}; retrying until it succeeds")


def _removal(cleanup: dict[str, Any]) -> RemovalCommand:
    return RemovalCommand(cleanup["argv"], cleanup["user"], cleanup["env"])


def read(root: Path) -> dict[str, RemovalCommand]:
    """Return the readable notes, by attempt."""
    return _read(root)[0]


def _read(root: Path) -> tuple[dict[str, RemovalCommand], list[str]]:
    """Return the notes by attempt, and messages about unreadable ones."""
    found: dict[str, RemovalCommand] = {}
    unread: list[str] = []
    try:
        paths = sorted((root / FOLDER).iterdir())
    except FileNotFoundError:
        return found, unread
    except OSError as problem:
        return found, [f"the notes of containers can't be read: {problem}"]
    for path in paths:
        if path.name.startswith("."):
            continue  # it was being written, so its container was not started
        try:
            found[path.name] = _DECODE(path.read_bytes())
        except (OSError, msgspec.MsgspecError) as problem:
            unread.append(
                f"the note of a container in {path} can't be read ({problem}): whether anything of "
                f"it is left is not known; look for {path.name} in its runtime's list (`podman ps "
                "--all`), remove it there, and then the note"
            )
    return found, unread


def _keep(path: Path, flags: int = 0) -> None:
    """Make a file, or the entries of a folder, survive a loss of power."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def forget(folder: Path, attempt: str) -> None:
    """Delete a note."""
    for name in (attempt, f".{attempt}"):
        (folder / name).unlink(missing_ok=True)


def clear(root: Path, execute: Execute, pause: Callable[[float], None] = time.sleep) -> list[str]:
    """Remove all noted containers of a node on which nothing runs any more.

    Each removal is tried a few times, all of them within :data:`LAST_S`.

    Returns:
        What could not be removed, as messages; it stays noted.
    """
    deadline = time.monotonic() + LAST_S
    noted, unread = _read(root)
    problems: dict[str, str] = dict.fromkeys(noted, "")
    for number in range(LAST_TRIES):
        if number and problems:
            pause(min(LAST_PAUSE_S, max(0.0, deadline - time.monotonic())))
        for attempt in list(problems):
            limit_s = deadline - time.monotonic()
            late = problems[attempt] or f"container of {attempt}: late"
            problems[attempt] = noted[attempt].run(limit_s, execute) if limit_s > 0 else late
            if not problems[attempt]:
                del problems[attempt]
                forget(root / FOLDER, attempt)
    return [*problems.values(), *unread]
