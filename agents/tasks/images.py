"""Pulls container images before tasks start, once at a time for each image and user, in threads.

A pull has a time limit; its last output is the reason for a failure. A pull that nobody waits for
is ended. Pulls that an earlier agent left are found by their environment and ended before the next
one starts.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agents.host import disk_space, process_memory, processes
from agents.isolation import user_commands
from agents.supervisor import task_isolation
from agents.tasks import container_runtimes
from reconciler import child_process
from reconciler.model.values.text_lines import split_lines

TOGETHER_MAX = 2
LOOK_S = 60.0
#: Time for a runtime to end after it was asked to.
ENDING_S = 10.0
#: Time for a killed runtime to end.
KILLED_S = 2.0
#: Commands that SIGKILL did not end, beside which another one is still started.
HUNG_MAX = 16
#: How much of a command's last output is kept.
OUTPUT_BYTES_MAX = 16 * 2**10
#: Variable in a runtime's environment that names the folder of the node it fetches for.
FETCHES_FOR = "MUSTER_FETCHES_FOR"
#: Words of commands that look for an image or fetch one.
_FETCHING = frozenset({"exists", "pull", "exec", "test"})
SAID_CHARACTERS_MAX = 400
#: Called with the reason that an image cannot be used, or an empty text.
Told = Callable[[str | Exception], object]


class ImageRequest(msgspec.Struct, frozen=True):
    """An image for one user.

    Attributes:
        user: credentials as in start commands; None for the agent's own user.
        timeout_s: time limit of a pull; None for the node's.
    """

    runtime: container_runtimes.Runtime
    image: str
    user: Mapping[str, Any] | None
    environment: tuple[tuple[str, str], ...]
    timeout_s: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Identity of a pull: requests with the same key share one."""
        who = self.user["name"] if self.user else ""
        return (type(self.runtime).__name__, self.image, who)


class _Waiter(msgspec.Struct, frozen=True):
    """An attempt that waits for an image, with its time limit."""

    told: Told
    limit_s: float
    since: float


class _Fetch:
    """A running fetch of an image, with the attempts that wait for it and the start of its pull."""

    def __init__(self) -> None:
        self.waiting: dict[str, _Waiter] = {}
        self.pulled_since: float | None = None


class UnwantedError(Exception):
    """The end of a command whose result is no longer wanted."""


class RuntimeCommands:
    """A runner of commands of container runtimes, for any thread. It counts those that hang."""

    def __init__(self, users: user_commands.UserCommands) -> None:
        self._users = users
        self._stuck = child_process.StuckChildren()

    def execute(
        self,
        argv: list[str],
        user: Mapping[str, Any] | None,
        environment: dict[str, str],
        limit_s: float,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> tuple[int | None, str]:
        """Run a runtime's command as its user. Return status and last line of output.

        The status is None if the time limit ended it. A command that not even SIGKILL ends, because
        its storage hangs, is left alone. If there are too many of those, no other is started.

        A runtime that has to be ended is asked first: one that is killed while it pulls or removes
        leaves unnamed layers. What it has started for its user ends with it, where the node has
        control groups.

        Raises:
            UnwantedError: ``is_wanted``, which is checked repeatedly, has returned False.
        """
        if not is_wanted():
            raise UnwantedError
        stuck = self._stuck.pids()
        if len(stuck) >= HUNG_MAX:
            return 126, f"{len(stuck)} commands hang and can't be killed, as process {stuck[0]}"
        program = child_process.ChildProgram(
            argv,
            environment=environment,
            folder="/",
            user=child_process.ChildUser.of(user),
            stderr=child_process.ChildOutput.READ,
        )
        limits = child_process.ChildLimits(
            limit_s,
            OUTPUT_BYTES_MAX,
            child_process.Excess.KEEP_END,
            grace_s=ENDING_S,
            reap_s=ENDING_S,
        )
        try:
            result = self._users.run(program, limits, is_wanted=is_wanted)
        except OSError as problem:
            return 127, str(problem)
        self._stuck.note(None, result)
        if result.end is child_process.ChildEnd.UNWANTED:
            raise UnwantedError
        if result.status is None:
            return None, ""
        lines = split_lines(result.stderr.decode(errors="replace").strip())
        return result.status, (lines[-1] if lines else "")[-SAID_CHARACTERS_MAX:]


class Images:
    """The running fetches of one node, whose folder is ``root``.

    Attributes:
        commands: runs the commands of runtimes.
    """

    def __init__(self, timeout_s: float, root: str, users: user_commands.UserCommands) -> None:
        self._timeout_s = timeout_s
        self._root = root
        self.commands = RuntimeCommands(users)
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(TOGETHER_MAX)
        self._fetches: dict[tuple[str, str, str], _Fetch] = {}

    def want(self, attempt: str, wanted: ImageRequest, told: Told) -> None:
        """Fetch an image, then call ``told`` from another thread, with a problem or an
        empty text.
        """
        limit_s = wanted.timeout_s or self._timeout_s
        with self._lock:
            begun = wanted.key in self._fetches
            fetch = self._fetches.setdefault(wanted.key, _Fetch())
            fetch.waiting[attempt] = _Waiter(told, limit_s, time.monotonic())
        if not begun:
            threading.Thread(target=self._get, args=(wanted, fetch), daemon=True).start()

    def give_up(self, attempt: str) -> bool:
        """Stop waiting for an attempt's image. Return False if nobody waited.

        A pull that nobody else waits for is ended, and starts again for later requests.
        """
        with self._lock:
            found = [fetch.waiting.pop(attempt, None) for fetch in self._fetches.values()]
        return any(found)

    def waiting(self) -> dict[str, str]:
        """Return the images that attempts wait for, by attempt."""
        with self._lock:
            return {a: key[1] for key, fetch in self._fetches.items() for a in fetch.waiting}

    def _get(self, wanted: ImageRequest, fetch: _Fetch) -> None:
        while True:
            try:
                problem: str | None = self._fetch(wanted, fetch)
            except UnwantedError:
                problem = None
            except Exception as failure:  # whatever it is, it must be reported
                problem = f"image {wanted.image}: {failure!r}"
            with self._lock:
                fetch.pulled_since = None
                if problem is None and fetch.waiting:
                    continue  # a new request came while it was being ended
                waiting = self._fetches.pop(wanted.key).waiting
                break
        told: str | Exception = problem or ""
        if problem and disk_space.says_full(problem):
            told = disk_space.FullDiskError(problem)
        elif problem and disk_space.says_over_quota(problem):
            told = f"{problem}; {disk_space.OVER_QUOTA}"
        for waiter in waiting.values():
            waiter.told(told)

    def _fetch(self, wanted: ImageRequest, fetch: _Fetch) -> str:
        """Fetch an image. Return a problem, or an empty text.

        Raises:
            UnwantedError: nobody waits for it any more, or all have waited too long.
        """
        look, pull = wanted.runtime.present(wanted.image), wanted.runtime.pull(wanted.image)
        environment = {**dict(wanted.environment), FETCHES_FOR: self._root}

        def is_wanted() -> bool:
            return self._is_wanted(wanted.image, fetch)

        status, said = self.commands.execute(look, wanted.user, environment, LOOK_S, is_wanted)
        if status == 0:
            return ""
        if pull is None:
            return f"image {wanted.image}: {_missing(wanted, status, said)}"
        with self._turns:
            with self._lock:
                fetch.pulled_since = time.monotonic()
            # each waiting attempt has its own time limit
            status, said = self.commands.execute(
                pull, wanted.user, environment, math.inf, is_wanted
            )
        if status == 0:
            return ""
        return f"image {wanted.image} can't be pulled: {said or f'status {status}'}"

    def _is_wanted(self, image: str, fetch: _Fetch) -> bool:
        """Return True if anybody waits for an image, after telling those that have waited too long.

        A pull also ends if everybody who waited from its start has given up: it hangs, and a new
        pull serves later requests better.
        """
        now = time.monotonic()
        late: list[_Waiter] = []
        with self._lock:
            since = fetch.pulled_since
            if since is not None:
                for attempt, waiter in list(fetch.waiting.items()):
                    if now - max(since, waiter.since) >= waiter.limit_s:
                        late.append(fetch.waiting.pop(attempt))
            early = [
                waiter
                for waiter in fetch.waiting.values()
                if since is None or waiter.since <= since
            ]
            is_wanted = bool(early) or (bool(fetch.waiting) and not late)
        for waiter in late:
            waiter.told(f"image {image} was not there after {waiter.limit_s:g} s of pulling")
        return is_wanted


def _missing(wanted: ImageRequest, status: int | None, said: str) -> str:
    """Explain why a file cannot be used as an image."""
    if status is None:
        return f"the file system it is on has not answered in {LOOK_S:g} s"
    if status == 1:
        who = f" that {wanted.user['name']} may read" if wanted.user else ""
        return f"no such file{who} on this node"
    return said or f"checking it failed with status {status}"


def end_left(root: str, pause: Callable[[float], None] = time.sleep) -> list[str]:
    """End what an agent has left of its commands as users, without daemons.

    Pulls of images are asked first. Nobody else limits how long they take.

    Called before the node's agent starts, and after the last one.

    Returns:
        What could not be ended, as messages. The node works anyway.
    """
    found = _fetching_for(root)
    left = child_process.end_groups(
        lambda: found & _fetching_for(root), grace_s=ENDING_S, reap_s=KILLED_S, pause=pause
    )
    users = user_commands.UserCommands(lambda: task_isolation.remembered(root))
    return [
        f"process {pid} of an earlier agent, which pulls an image, can't be killed"
        for pid in sorted(left)
    ] + users.clear()


def _fetching_for(root: str) -> set[int]:
    """Return pids of this node's runtimes that fetch images, each the leader of its group.

    Other processes with the same mark are left alone: podman keeps helpers for a user that the
    first command has started.
    """
    found = process_memory.read(processes.processes(), (FETCHES_FOR,))
    return {
        pid
        for pid, text in found.items()
        if text.variables.get(FETCHES_FOR) == root and not _FETCHING.isdisjoint(text.words)
    }
