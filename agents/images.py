"""Images of containers: pulled before a task starts, each once at a time for a user, in threads.

Whoever waits for an image is remembered with what is to be done when it is there or can't be had.
A pull has a time limit; what it said at its end is the reason that the task is given.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from agents import runtimes

TOGETHER_MAX = 2
LOOK_S = 60.0
#: How long a runtime that was asked to end may take for it.
ENDING_S = 10.0
SAID_CHARACTERS_MAX = 400
#: Called with the reason that the image can't be had, or with nothing when it is there.
Told = Callable[[str], None]


class Wanted(msgspec.Struct, frozen=True):
    """An image as one user has it. ``user`` is as in orders, None: the agent's own; ``timeout_s``
    is how long a pull may take, None: as long as the node says."""

    runtime: runtimes.Runtime
    image: str
    user: dict[str, Any] | None
    environment: tuple[tuple[str, str], ...]
    timeout_s: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What is pulled once."""
        who = self.user["name"] if self.user else ""
        return (type(self.runtime).__name__, self.image, who)


class Images:
    """Pulls under way, and who waits for them, by attempt."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(TOGETHER_MAX)
        self._waiting: dict[tuple[str, str, str], dict[str, Told]] = {}

    def want(self, attempt: str, wanted: Wanted, told: Told) -> None:
        """Have ``told`` called, from another thread, when the image is there or can't be had."""
        with self._lock:
            begun = wanted.key in self._waiting
            self._waiting.setdefault(wanted.key, {})[attempt] = told
        if not begun:
            threading.Thread(target=self._get, args=(wanted,), daemon=True).start()

    def give_up(self, attempt: str) -> bool:
        """Nobody waits any more for an attempt's image; False when nobody did."""
        with self._lock:
            found = [waiting.pop(attempt, None) for waiting in self._waiting.values()]
        return any(found)

    def waiting(self) -> dict[str, str]:
        """Attempts that wait, and for which image."""
        with self._lock:
            return {a: key[1] for key, waiting in self._waiting.items() for a in waiting}

    def _get(self, wanted: Wanted) -> None:
        try:
            problem = self._fetch(wanted)
        except Exception as failure:  # whatever it is, those who wait have to hear of it
            problem = f"image {wanted.image}: {failure!r}"
        with self._lock:
            waiting = self._waiting.pop(wanted.key, {})
        for told in waiting.values():
            told(problem)

    def _fetch(self, wanted: Wanted) -> str:
        """Get an image; why it can't be had, or nothing."""
        look = wanted.runtime.present(wanted.image)
        if look is None:
            there = os.path.exists(wanted.image)  # noqa: PTH110
            return "" if there else f"image {wanted.image}: no such file on this node"
        environment = dict(wanted.environment)
        if execute(look, wanted.user, environment, LOOK_S)[0] == 0:
            return ""
        with self._turns:
            pull = wanted.runtime.pull(wanted.image)
            limit_s = wanted.timeout_s or self._timeout_s
            status, said = execute(pull, wanted.user, environment, limit_s)
        if status == 0:
            return ""
        if status is None:
            return f"image {wanted.image} was not there after {limit_s:g} s of pulling"
        return f"image {wanted.image} can't be pulled: {said or f'status {status}'}"


def execute(
    argv: list[str], user: dict[str, Any] | None, environment: dict[str, str], limit_s: float
) -> tuple[int | None, str]:
    """Run a command of a runtime as its user: status, None past its limit, and its last words."""
    as_user: dict[str, Any] = {}
    if user is not None:
        as_user = {"user": user["uid"], "group": user["gid"], "extra_groups": user["groups"]}
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=environment, cwd="/", start_new_session=True, **as_user,
        )  # fmt: skip
    except OSError as problem:
        return 127, str(problem)
    with process:
        try:
            _, told = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return None, ""
        except BaseException:
            _end(process)
            raise
    lines = told.decode(errors="replace").strip().splitlines()
    return process.returncode, (lines[-1] if lines else "")[-SAID_CHARACTERS_MAX:]


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
