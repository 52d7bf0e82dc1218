"""Runs a program to its end, within limits of time and output, and without a shell.

The program and its limits go in, a typed result comes out. A program that has to be ended is ended
with its process group. Not for children that somebody talks to, nor for tasks.
"""

import contextlib
import enum
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

#: How often a running program is looked at.
LOOK_S = 0.05
#: How long a killed program may take to be gone.
REAP_S = 1.0
_FIRST_LOOK_S = 0.002
_READ_BYTES = 65_536


class ChildOutput(enum.Enum):
    """The treatment of one of a program's two outputs."""

    DISCARD = "discard"
    READ = "read"
    #: standard error only: read as part of standard output
    MERGE = "merge"


class Leftovers(enum.Enum):
    """The treatment of the process group of a program that has ended by itself."""

    KEEP = "keep"
    KILL = "kill"
    #: kept if the status is 0, asked to end and then killed otherwise
    END_ON_FAILURE = "end-on-failure"


class Excess(enum.Enum):
    """The treatment of a program that writes more than is kept."""

    #: the program is ended
    END_PROGRAM = "end-program"
    KEEP_BEGINNING = "keep-beginning"
    KEEP_END = "keep-end"


class ChildEnd(enum.Enum):
    """Why a program does not run any more."""

    EXITED = "exited"
    TIMED_OUT = "timed-out"
    TOO_MUCH_OUTPUT = "too-much-output"
    UNWANTED = "unwanted"


class ChildUser(NamedTuple):
    """The user that a program runs as."""

    uid: int
    gid: int
    groups: Sequence[int]

    @classmethod
    def of(cls, credentials: Mapping[str, Any] | None) -> "ChildUser | None":
        """Return the user of credentials as in start commands, or None if they are one's own."""
        if credentials is None:
            return None
        return cls(credentials["uid"], credentials["gid"], credentials["groups"])


class ChildProgram(NamedTuple):
    """A program, and how it is started.

    Attributes:
        given: what it reads on standard input; None for an empty input without a pipe.
        stdout: READ, DISCARD, or an open file that it writes to.
        stderr: the same, or MERGE.
        inherited: further descriptors that it gets.
    """

    argv: Sequence[str]
    environment: dict[str, str] | None = None
    folder: str | Path | None = None
    user: ChildUser | None = None
    given: bytes | None = None
    stdout: ChildOutput | IO[bytes] = ChildOutput.DISCARD
    stderr: ChildOutput | IO[bytes] = ChildOutput.DISCARD
    inherited: Sequence[int] = ()


class ChildLimits(NamedTuple):
    """When a program is ended, and how.

    Attributes:
        output_bytes_max: how much of each output is kept.
        excess: what happens if it writes more.
        grace_s: time between SIGTERM and SIGKILL; 0 for SIGKILL at once.
        reap_s: time for a killed program to be gone.
    """

    timeout_s: float
    output_bytes_max: int = 0
    excess: Excess = Excess.END_PROGRAM
    grace_s: float = 0.0
    reap_s: float = REAP_S
    leftovers: Leftovers = Leftovers.KEEP


class ChildResult(NamedTuple):
    """How a program ended.

    Attributes:
        status: exit status, negative for a signal; None if it was ended by a limit.
        stuck: its process, if not even SIGKILL ended it in time.
    """

    end: ChildEnd
    status: int | None
    stdout: bytes
    stderr: bytes
    stuck: subprocess.Popen[bytes] | None


class StuckChildren:
    """Programs that SIGKILL did not end, for example because their storage hangs.

    Any thread may use it. They are kept, by key, until the kernel lets go of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: list[tuple[object, subprocess.Popen[bytes]]] = []

    def note(self, key: object, result: ChildResult) -> None:
        """Keep the program of a result if it is stuck."""
        if result.stuck is not None:
            with self._lock:
                self._children.append((key, result.stuck))

    def pids(self, key: object = None) -> list[int]:
        """Return the pids of programs that are still stuck: all, or those of one key."""
        with self._lock:
            self._children = [one for one in self._children if one[1].poll() is None]
            return [child.pid for noted, child in self._children if key in (None, noted)]


def run_child(
    program: ChildProgram,
    limits: ChildLimits,
    *,
    is_wanted: Callable[[], bool] = lambda: True,
    on_start: Callable[[int], None] = lambda _: None,
) -> ChildResult:
    """Run a program in a session of its own until it ends or reaches a limit.

    Only the program itself is waited for: a descendant that keeps an output open is not.

    Args:
        program: what to run.
        limits: when and how it is ended.
        is_wanted: checked again and again; False ends the program.
        on_start: called with its pid before it is given its input. An exception ends it.

    Raises:
        OSError: it cannot be started.
    """
    process = _start(program)
    pipes = _Pipes(process, program.given or b"", limits)
    files = [file for file in (program.stdout, program.stderr) if not isinstance(file, ChildOutput)]
    try:
        on_start(process.pid)
        end = _wait(process, pipes, files, limits, is_wanted)
        if end is not ChildEnd.EXITED or _ends_leftovers(limits, process.returncode):
            _end_group(process, pipes, limits)
    except BaseException:  # whatever it is, Ctrl-C too: nobody else ends the program
        _end_group(process, pipes, limits)
        raise
    finally:
        stdout, stderr = pipes.close()
    status = process.returncode if end is ChildEnd.EXITED else None
    stuck = process if process.poll() is None else None
    return ChildResult(end, status, stdout, stderr, stuck)


def _start(program: ChildProgram) -> subprocess.Popen[bytes]:
    user = program.user
    return subprocess.Popen(
        program.argv,
        stdin=subprocess.DEVNULL if program.given is None else subprocess.PIPE,
        stdout=_target(program.stdout),
        stderr=_target(program.stderr),
        bufsize=0,
        env=program.environment,
        cwd=program.folder,
        user=None if user is None else user.uid,
        group=None if user is None else user.gid,
        extra_groups=None if user is None else list(user.groups),
        pass_fds=program.inherited,
        start_new_session=True,
    )


def _target(output: ChildOutput | IO[bytes]) -> int | IO[bytes]:
    if not isinstance(output, ChildOutput):
        return output
    return {
        ChildOutput.DISCARD: subprocess.DEVNULL,
        ChildOutput.READ: subprocess.PIPE,
        ChildOutput.MERGE: subprocess.STDOUT,
    }[output]


def _ends_leftovers(limits: ChildLimits, status: int) -> bool:
    if limits.leftovers is Leftovers.END_ON_FAILURE:
        return status != 0
    return limits.leftovers is Leftovers.KILL


class _Pipes:
    """The pipes to and from a program: none of them blocks, and each output has a bound."""

    def __init__(self, process: subprocess.Popen[bytes], given: bytes, limits: ChildLimits) -> None:
        self._given = memoryview(given)
        self._limits = limits
        self._in = process.stdin
        self._outputs = (process.stdout, process.stderr)
        self._read = {pipe.fileno(): b"" for pipe in self._outputs if pipe is not None}
        self._poller = select.poll()
        for handle in self._read:
            os.set_blocking(handle, False)
            self._poller.register(handle, select.POLLIN)
        self._open = set(self._read)
        if self._in is not None:
            os.set_blocking(self._in.fileno(), False)
            self._poller.register(self._in.fileno(), select.POLLOUT)

    @property
    def are_full(self) -> bool:
        """True if an output is longer than what is kept of it."""
        return any(len(text) > self._limits.output_bytes_max for text in self._read.values())

    def move(self, within_s: float) -> None:
        """Wait for output, and for room for input, and move both. Without pipes, only wait."""
        for handle, _ in self._poller.poll(1000 * within_s):
            if handle in self._open:
                self._take(handle)
            else:
                self._give()

    def drain(self) -> None:
        """Read what the program has written before it ended."""
        for handle in tuple(self._open):
            self._take(handle)  # a pipe holds no more than one reading takes

    def close(self) -> tuple[bytes, bytes]:
        """Close the pipes. Return what was read of both outputs."""
        most = self._limits.output_bytes_max
        texts = []
        for pipe in self._outputs:
            texts.append(b"" if pipe is None else self._read[pipe.fileno()][:most])
            if pipe is not None:
                pipe.close()
        self._close_input()
        return texts[0], texts[1]

    def _take(self, handle: int) -> None:
        try:
            data = os.read(handle, _READ_BYTES)
        except BlockingIOError:
            return
        most = self._limits.output_bytes_max
        text = self._read[handle] + data
        match self._limits.excess:
            case Excess.KEEP_END:
                self._read[handle] = text[-most:]
            case Excess.KEEP_BEGINNING:
                self._read[handle] = text[:most]
            case Excess.END_PROGRAM:
                self._read[handle] = text[: most + 1]  # which shows that it was too long
        if not data:
            self._open.discard(handle)
            self._poller.unregister(handle)

    def _give(self) -> None:
        if self._in is None:
            return
        try:
            self._given = self._given[os.write(self._in.fileno(), self._given) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not read, which its status may explain
            self._given = self._given[:0]
        if not self._given:
            self._close_input()

    def _close_input(self) -> None:
        if self._in is not None:
            with contextlib.suppress(KeyError):
                self._poller.unregister(self._in.fileno())
            self._in.close()
            self._in = None


def _wait(
    process: subprocess.Popen[bytes],
    pipes: _Pipes,
    files: Sequence[IO[bytes]],
    limits: ChildLimits,
    is_wanted: Callable[[], bool],
) -> ChildEnd:
    """Wait for a program to end, or for a reason to end it."""
    ends_at = time.monotonic() + limits.timeout_s
    pause_s = _FIRST_LOOK_S
    while process.poll() is None:
        if not is_wanted():
            return ChildEnd.UNWANTED
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            return ChildEnd.TIMED_OUT
        pipes.move(min(pause_s, left_s))
        pause_s = min(2 * pause_s, LOOK_S)
        if pipes.are_full or any(
            os.fstat(file.fileno()).st_size > limits.output_bytes_max for file in files
        ):
            return ChildEnd.TOO_MUCH_OUTPUT
    pipes.drain()
    return ChildEnd.TOO_MUCH_OUTPUT if pipes.are_full else ChildEnd.EXITED


def _end_group(process: subprocess.Popen[bytes], pipes: _Pipes, limits: ChildLimits) -> None:
    """Ask a program's process group to end if there is a grace, then kill it.

    The program may have ended already: its group keeps its number while it has members, so no other
    group is hit. Output is read meanwhile, because a program that waits for a reader does not end.
    """
    if limits.grace_s:
        _signal(process.pid, signal.SIGTERM)
        _await(lambda: not _signal(process.pid, 0), process, pipes, limits.grace_s)
    _signal(process.pid, signal.SIGKILL)
    _await(lambda: True, process, pipes, limits.reap_s)
    pipes.drain()


def _await(
    is_group_over: Callable[[], bool],
    process: subprocess.Popen[bytes],
    pipes: _Pipes,
    limit_s: float,
) -> None:
    """Wait until a program and its group are over, or for ``limit_s``."""
    ends_at = time.monotonic() + limit_s
    pause_s = _FIRST_LOOK_S
    while process.poll() is None or not is_group_over():
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            return
        pipes.move(min(pause_s, left_s))
        pause_s = min(2 * pause_s, LOOK_S)


def _signal(group: int, number: int) -> bool:
    """Signal a process group. Return False if it has no members any more."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # members of other users are left to those
    return True


def end_groups(
    living: Callable[[], Collection[int]],
    *,
    grace_s: float,
    reap_s: float,
    pause: Callable[[float], object] = time.sleep,
) -> Collection[int]:
    """End process groups that an earlier process has left. Return those that are still there.

    Args:
        living: returns the leaders of the groups that are there, checked so that no other process
            that has the number of one meanwhile is hit.
        grace_s: time between SIGTERM and SIGKILL.
        reap_s: time for killed ones to be gone.
        pause: waits.
    """
    for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, reap_s)):
        for group in living():
            _signal(group, number)
        ends_at = time.monotonic() + limit_s
        while living() and time.monotonic() < ends_at:
            pause(LOOK_S)
    return living()
