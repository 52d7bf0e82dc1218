"""Images of containers: pulled before a task starts, each once at a time for a user, in threads.

Whoever waits for an image is remembered with what is to be done when it is there or can't be had.
A pull has a time limit; what it said at its end is the reason that the task is given. One that
nobody waits for any more is asked to end, so that it takes no turn from others; what an agent that
was killed has left running is found by its environment, and ended before the next one begins.
"""

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from agents.host import processes
from agents.tasks import container_runtimes

TOGETHER_MAX = 2
LOOK_S = 60.0
#: How long a runtime that was asked to end may take for it.
ENDING_S = 10.0
#: How long one that was killed may take to be gone.
KILLED_S = 2.0
#: Commands that not even a kill ended, beside which another one is still begun.
HUNG_MAX = 16
#: How often it is seen whether anybody still waits for what a runtime fetches.
WAITED_FOR_EVERY_S = 0.5
#: Names the folder of the node for which a runtime fetches something, in its environment.
FETCHES_FOR = "MUSTER_FETCHES_FOR"
#: A word of each command that looks for an image or fetches one.
_FETCHING = frozenset({"exists", "pull", "exec", "test"})
SAID_CHARACTERS_MAX = 400
#: Called with the reason that the image can't be had, or with nothing when it is there.
Told = Callable[[str], object]


class ImageRequest(msgspec.Struct, frozen=True):
    """An image as one user has it. ``user`` is as in orders, None: the agent's own; ``timeout_s``
    is how long a pull may take, None: as long as the node says."""

    runtime: container_runtimes.Runtime
    image: str
    user: dict[str, Any] | None
    environment: tuple[tuple[str, str], ...]
    timeout_s: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What is pulled once."""
        who = self.user["name"] if self.user else ""
        return (type(self.runtime).__name__, self.image, who)


class _Waiter(msgspec.Struct, frozen=True):
    """An attempt that waits for an image, at most so long of its being pulled."""

    told: Told
    limit_s: float
    since: float


class _Fetch:
    """An image on its way: who waits for it, by attempt, and since when it is pulled, if it is."""

    def __init__(self) -> None:
        self.waiting: dict[str, _Waiter] = {}
        self.pulled_since: float | None = None


class Images:
    """Pulls under way of one node, whose folder is ``root``, and who waits for them."""

    def __init__(self, timeout_s: float, root: str) -> None:
        self._timeout_s = timeout_s
        self._root = root
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(TOGETHER_MAX)
        self._fetches: dict[tuple[str, str, str], _Fetch] = {}

    def want(self, attempt: str, wanted: ImageRequest, told: Told) -> None:
        """Have ``told`` called, from another thread, when the image is there or can't be had."""
        limit_s = wanted.timeout_s or self._timeout_s
        with self._lock:
            begun = wanted.key in self._fetches
            fetch = self._fetches.setdefault(wanted.key, _Fetch())
            fetch.waiting[attempt] = _Waiter(told, limit_s, time.monotonic())
        if not begun:
            threading.Thread(target=self._get, args=(wanted, fetch), daemon=True).start()

    def give_up(self, attempt: str) -> bool:
        """Nobody waits any more for an attempt's image; False when nobody did.

        A pull that nobody else waits for is asked to end, and is begun anew for who comes later.
        """
        with self._lock:
            found = [fetch.waiting.pop(attempt, None) for fetch in self._fetches.values()]
        return any(found)

    def waiting(self) -> dict[str, str]:
        """Attempts that wait, and for which image."""
        with self._lock:
            return {a: key[1] for key, fetch in self._fetches.items() for a in fetch.waiting}

    def _get(self, wanted: ImageRequest, fetch: _Fetch) -> None:
        while True:
            try:
                problem: str | None = self._fetch(wanted, fetch)
            except UnwantedError:
                problem = None
            except Exception as failure:  # whatever it is, those who wait have to hear of it
                problem = f"image {wanted.image}: {failure!r}"
            with self._lock:
                fetch.pulled_since = None
                if problem is None and fetch.waiting:
                    continue  # somebody has come while it was ended
                waiting = self._fetches.pop(wanted.key).waiting
                break
        for one in waiting.values():
            one.told(problem or "")

    def _fetch(self, wanted: ImageRequest, fetch: _Fetch) -> str:
        """Get an image; why it can't be had, or nothing.

        Raises:
            UnwantedError: nobody waits for it any more, or it has taken as long as any may.
        """
        look, pull = wanted.runtime.present(wanted.image), wanted.runtime.pull(wanted.image)
        environment = {**dict(wanted.environment), FETCHES_FOR: self._root}

        def is_wanted() -> bool:
            return self._is_wanted(wanted.image, fetch)

        status, said = execute(look, wanted.user, environment, LOOK_S, is_wanted)
        if status == 0:
            return ""
        if pull is None:
            return f"image {wanted.image}: {_missing(wanted, status, said)}"
        with self._turns:
            with self._lock:
                fetch.pulled_since = time.monotonic()
            # those who wait say for how long
            status, said = execute(pull, wanted.user, environment, math.inf, is_wanted)
        if status == 0:
            return ""
        return f"image {wanted.image} can't be pulled: {said or f'status {status}'}"

    def _is_wanted(self, image: str, fetch: _Fetch) -> bool:
        """Whether anybody waits for an image; who has waited too long is told, and waits no more.

        A pull that all who waited for it from its beginning have given up is not wanted either: it
        hangs, and who has come since is served better by another.
        """
        now = time.monotonic()
        late: list[_Waiter] = []
        with self._lock:
            since = fetch.pulled_since
            if since is not None:
                for attempt, one in list(fetch.waiting.items()):
                    if now - max(since, one.since) >= one.limit_s:
                        late.append(fetch.waiting.pop(attempt))
            early = [one for one in fetch.waiting.values() if since is None or one.since <= since]
            is_wanted = bool(early) or (bool(fetch.waiting) and not late)
        for one in late:
            one.told(f"image {image} was not there after {one.limit_s:g} s of pulling")
        return is_wanted


def _missing(wanted: ImageRequest, status: int | None, said: str) -> str:
    """Why a file can't be an image here; who runs it is the one who looked."""
    if status is None:
        return f"the file system it is on has not answered in {LOOK_S:g} s"
    if status == 1:
        who = f" that {wanted.user['name']} may read" if wanted.user else ""
        return f"no such file{who} on this node"
    return said or f"looking for it ended with status {status}"


#: Those that not even a kill ended.
_HUNG: list[subprocess.Popen[bytes]] = []
_HUNG_LOCK = threading.Lock()


class UnwantedError(Exception):
    """Nobody waits any more for what a command was to do; it has been ended."""


def execute(
    argv: list[str],
    user: dict[str, Any] | None,
    environment: dict[str, str],
    limit_s: float,
    is_wanted: Callable[[], bool] | None = None,
) -> tuple[int | None, str]:
    """Run a command of a runtime as its user: status, None past its limit, and its last words.

    One that not even a kill ends, as where its storage hangs, is waited for no longer than that;
    where many of those are left none is begun beside them.

    Raises:
        UnwantedError: ``is_wanted``, which is asked again and again, said no before its end.
    """
    if is_wanted is not None and not is_wanted():
        raise UnwantedError
    as_user: dict[str, Any] = {}
    if user is not None:
        as_user = {"user": user["uid"], "group": user["gid"], "extra_groups": user["groups"]}
    stuck = _stuck()
    if len(stuck) >= HUNG_MAX:
        return 126, f"{len(stuck)} commands hang and can't be killed, as process {stuck[0]}"
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=environment, cwd="/", start_new_session=True, **as_user,
        )  # fmt: skip
    except OSError as problem:
        return 127, str(problem)
    try:
        told = _communicate(process, limit_s, is_wanted)
    except subprocess.TimeoutExpired:
        _end(process)
        return None, ""
    except BaseException:
        _end(process)
        raise
    lines = told.decode(errors="replace").strip().splitlines()
    return process.returncode, (lines[-1] if lines else "")[-SAID_CHARACTERS_MAX:]


def _communicate(
    process: subprocess.Popen[bytes], limit_s: float, is_wanted: Callable[[], bool] | None
) -> bytes:
    """What a process says until its end.

    Raises:
        subprocess.TimeoutExpired: it takes too long. UnwantedError: nobody waits any more.
    """
    if is_wanted is None:
        return process.communicate(timeout=limit_s)[1]
    ends_at = time.monotonic() + limit_s
    while True:
        left_s = ends_at - time.monotonic()
        try:
            return process.communicate(timeout=max(0.0, min(left_s, WAITED_FOR_EVERY_S)))[1]
        except subprocess.TimeoutExpired:
            if left_s <= WAITED_FOR_EVERY_S:
                raise
            if not is_wanted():
                raise UnwantedError from None


def end_left(root: str) -> list[str]:
    """End what fetches images for a node that has no agent: nobody would limit it any more.

    Called before the node's agent begins, and after the last one. What could not be ended, in
    words: a node works all the same.
    """
    left = _fetching_for(root)
    for number, limit_s in ((signal.SIGTERM, ENDING_S), (signal.SIGKILL, KILLED_S)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)
        ends_at = time.monotonic() + limit_s
        while left & _fetching_for(root) and time.monotonic() < ends_at:
            time.sleep(processes.PASS_S)
    return [
        f"process {pid} of an earlier agent, which fetches an image, can't be killed"
        for pid in sorted(left & _fetching_for(root))
    ]


def _fetching_for(root: str) -> set[int]:
    """Runtimes that fetch, each the leader of its group. What else bears the mark is not theirs
    to end: what podman keeps for a user was started by whichever command came first."""
    mark = os.fsencode(f"{FETCHES_FOR}={root}")
    return {
        pid
        for pid in processes.processes()
        if mark in processes.read_file(f"/proc/{pid}/environ").split(b"\0")
        and not _FETCHING.isdisjoint(processes.command_of(pid))
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a runtime, and all that is in its session's group, to end; end what is there then.

    One that is killed while it pulls or removes leaves layers behind that bear no name.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # what it says meanwhile is taken, or it could wait for ever to say it
            process.communicate(timeout=ENDING_S)
    if process.stderr is not None:
        process.stderr.close()
    if process.poll() is None:
        with _HUNG_LOCK:
            _HUNG.append(process)


def _stuck() -> list[int]:
    """Commands that were killed and have not gone since."""
    with _HUNG_LOCK:
        _HUNG[:] = [one for one in _HUNG if one.poll() is None]
        return [one.pid for one in _HUNG]
