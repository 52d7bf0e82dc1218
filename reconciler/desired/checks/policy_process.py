"""Judges policies in a child process with limits of time and memory.

Schemas and values go to the child, faults and violations come back. A child that reaches a limit
is replaced, and the request that it was at is refused. All threads of a process share one child.
"""

import atexit
import contextlib
import hashlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from reconciler import interpreter
from reconciler.desired.checks import policy_answers

#: The longest that one request may take.
ANSWER_S_MAX = 20.0
#: So long schemas may take that exceed a limit; after that others wait. A tenth of the time that
#: goes by is regained.
LOST_S_MAX = 30.0
_REGAINED = 0.1
_READ_BYTES = 65_536
#: The module of the child. Here it would take long to import.
_WORKER = "reconciler.desired.checks.policy_worker"
#: How a child ends that gets no memory and can't say so.
_OUT_OF_MEMORY = frozenset({-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGABRT})
#: So long objects may take on which one schema exceeds a limit: those of one owner, and all.
OWNER_LOST_S_MAX, SCHEMA_LOST_S_MAX = 10.0, 30.0
#: So many schemas that took too much are remembered with the value that they were applied to, and
#: so many owners and schemas with the time that was lost.
_ENDLESS_MAX, _LOST_MAX = 256, 4096
_FIX = "write it with fewer patterns, alternatives and references"

_decode = msgspec.json.Decoder(policy_answers.PolicyAnswer).decode


class PolicyLimitError(Exception):
    """A schema, or a value by it, takes more than a limit; the message says which."""


class UndecidedPolicyError(PolicyLimitError):
    """Nobody can tell now; the message says why."""


class LostTime:
    """Time lost to what exceeded a limit, by key, and the pauses that follow.

    A key that has lost its share is not tried again until half of it is regained.
    """

    def __init__(self) -> None:
        #: The time lost, when that was, and when the key may be tried again.
        self._lost: OrderedDict[str, tuple[float, float, float]] = OrderedDict()

    def add(self, key: str, lost_s: float, share_s: float, now: float) -> None:
        """Note time that a key has lost; ``now`` is of a clock that is never set."""
        before_s, at, until = self._lost.get(key, (0.0, now, now))
        lost_s += max(0.0, before_s - (now - at) * _REGAINED)
        if lost_s >= share_s:
            until = now + (lost_s - share_s / 2) / _REGAINED
        self._lost[key] = lost_s, now, until
        self._lost.move_to_end(key)
        while len(self._lost) > _LOST_MAX:
            self._lost.popitem(last=False)

    def pause_s(self, key: str, now: float) -> float:
        """Return how long a key must wait until it may be tried; 0: it may."""
        _, _, until = self._lost.get(key, (0.0, now, now))
        return max(0.0, until - now)


class PolicyProcess:
    """A child process that is started when it is needed."""

    def __init__(self, answer_s_max: float = ANSWER_S_MAX) -> None:
        self._answer_s_max = answer_s_max
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lost_s, self._lost_at = 0.0, 0.0
        #: Why a schema can't be applied to a value, by both: a structure is tried several times.
        self._endless: OrderedDict[str, str] = OrderedDict()
        self._lost_on_objects = LostTime()

    def faults(self, schema: str) -> list[policy_answers.SchemaFault]:
        """Return the faults of a schema.

        Raises:
            PolicyLimitError: it takes too much to find out.
        """
        began = time.monotonic()
        self._lost_s = max(0.0, self._lost_s - (began - self._lost_at) * _REGAINED)
        self._lost_at = began
        if self._lost_s >= LOST_S_MAX:
            raise UndecidedPolicyError(
                f"schemas that exceed a limit took {LOST_S_MAX:g} s just now; it is checked with a "
                "later revision. To fix: correct those first"
            )
        try:
            return self._ask({"schema": schema}).faults
        except PolicyLimitError:
            self._lost_s += time.monotonic() - began
            raise

    def violations(
        self, schemas: Sequence[str], value: Any, searches_s: float, owner: str = ""
    ) -> list[policy_answers.Violation | None]:
        """Return the violation of each schema by a value; None: there is none.

        A schema that takes more than a limit counts as endless for this value, and costs other
        schemas and other values nothing. One that did so for long, with values of this owner or of
        all, is not applied for a while.

        Args:
            schemas: what to judge by.
            value: what to judge.
            searches_s: how long patterns of one schema may be searched for in all.
            owner: whose the value is; empty: nobody's.
        """
        told = [self._known(schema, value, owner) for schema in schemas]
        asked = [one for one, known in zip(schemas, told, strict=True) if known is None]
        judged = iter(self._judged(asked, value, searches_s, owner) if asked else [])
        return [next(judged) if known is None else known for known in told]

    def _known(self, schema: str, value: Any, owner: str) -> policy_answers.Violation | None:
        """Return the violation by a value that a schema is not applied to."""
        endless = self._endless.get(_key(schema, value)) if self._endless else None
        if endless is not None:
            return policy_answers.Violation(endless=endless)
        now = time.monotonic()
        of_owner_s = self._lost_on_objects.pause_s(_key(schema, owner), now)
        of_all_s = self._lost_on_objects.pause_s(_key(schema, None), now)
        pause_s = max(of_owner_s, of_all_s)
        if not pause_s:
            return None
        whose = "" if of_all_s else f" of {owner}" if owner else " without an owner"
        return policy_answers.Violation(
            paused=f"other objects{whose} took it too long just now; this one is judged by itself "
            "within minutes. To fix: correct those, or write a simpler schema",
            pause_s=pause_s,
        )

    def _judged(
        self,
        schemas: Sequence[str],
        value: Any,
        searches_s: float,
        owner: str,
        lost_s: float = 0.0,
    ) -> list[policy_answers.Violation | None]:
        """Return the same of schemas that are to be applied.

        ``lost_s`` is the time that they have taken already, together with others.
        """
        request = {"value": value, "searchesS": searches_s, "schemas": schemas}
        began = time.monotonic() - lost_s
        try:
            found = self._ask(request).violations
        except UndecidedPolicyError as error:
            return [policy_answers.Violation(slow=str(error))] * len(schemas)
        except PolicyLimitError as error:
            if len(schemas) > 1:
                lost_s = time.monotonic() - began
                alone: list[policy_answers.Violation | None] = []
                for schema in schemas:
                    alone += self._judged([schema], value, searches_s, owner, lost_s)
                    if alone[-1] is not None and alone[-1].endless:
                        lost_s = 0.0  # it has been counted
                return alone
            found = [policy_answers.Violation(endless=str(error))]
        now = time.monotonic()
        for schema, violation in zip(schemas, found, strict=True):
            if violation is not None and violation.endless:
                self._exceeded(schema, value, owner, violation.endless, now - began)
        return found

    def _exceeded(self, schema: str, value: Any, owner: str, told: str, lost_s: float) -> None:
        """Remember that a schema took too much on a value."""
        self._endless[_key(schema, value)] = told
        while len(self._endless) > _ENDLESS_MAX:
            self._endless.popitem(last=False)
        now = time.monotonic()
        self._lost_on_objects.add(_key(schema, owner), lost_s, OWNER_LOST_S_MAX, now)
        self._lost_on_objects.add(_key(schema, None), lost_s, SCHEMA_LOST_S_MAX, now)

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._end()

    def _ask(self, request: dict[str, Any]) -> policy_answers.PolicyAnswer:
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            answer = self._answered(line)
        if answer == policy_answers.OUT_OF_MEMORY:
            raise _memory()
        return _decode(answer)

    def _answered(self, line: bytes) -> bytes:
        """Return the child's answer; the child is gone after a failure."""
        if self._child is not None and (
            self._owner != os.getpid() or self._child.poll() is not None
        ):
            self._end()
        child = self._child or self._start()
        assert child.stdin is not None  # noqa: S101 - it has pipes
        assert child.stdout is not None  # noqa: S101
        try:
            child.stdin.write(line)
            child.stdin.flush()
            answer = _line(child.stdout.fileno(), time.monotonic() + self._answer_s_max)
        except BrokenPipeError:
            answer = b""
        except BaseException:  # Ctrl-C too: an answer that nobody reads would be the next one's
            self._end()
            raise
        if answer is None:
            self._end()
            raise PolicyLimitError(f"it takes longer than {self._answer_s_max:g} s: {_FIX}")
        if not answer.endswith(b"\n"):
            status = self._end()
            if status == -signal.SIGXCPU:
                seconds = policy_answers.CPU_S_MAX
                raise PolicyLimitError(f"it takes more than {seconds} s of processor time: {_FIX}")
            if status in _OUT_OF_MEMORY:
                raise _memory()
            raise PolicyLimitError(f"the process that judges it ended with {status}: {_FIX}")
        return answer.rstrip(b"\n")

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            self._child = subprocess.Popen(
                interpreter.module_command(_WORKER),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise UndecidedPolicyError(f"no process can be started to judge it: {error}") from error
        self._owner = os.getpid()
        return self._child

    def _end(self) -> int | None:
        """End the child and return its status."""
        child, self._child = self._child, None
        if child is None:
            return None
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._owner != os.getpid():
            child.returncode = 0  # a fork has no child of its parent's
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(0.05)  # it ends by itself without input, or has ended
        child.kill()
        return child.wait()


def _key(schema: str, value: Any) -> str:
    """Return what tells a schema and a value from others."""
    return hashlib.sha256(json.dumps([schema, value]).encode()).hexdigest()


def _memory() -> PolicyLimitError:
    return PolicyLimitError(
        f"it takes more than {policy_answers.MEMORY_BYTES_MAX >> 20} MiB of memory: {_FIX}"
    )


def _line(handle: int, until: float) -> bytes | None:
    """Return a line, without its end if the output ends before; None: it takes longer."""
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    found = b""
    while not found.endswith(b"\n"):
        left_s = until - time.monotonic()
        if left_s <= 0 or not poller.poll(1000 * left_s):
            return None
        data = os.read(handle, _READ_BYTES)
        if not data:
            break
        found += data
    return found


#: The child of this process.
SHARED = PolicyProcess()
atexit.register(SHARED.close)
