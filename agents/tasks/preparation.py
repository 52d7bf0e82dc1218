"""Runs the preparation of starts in steps, without holding the agent's lock while a step waits.

The steps of one start are a generator: it yields a :class:`Wait` for everything that may take long
or hang, and returns the command at its end. Starts run independently of each other. Stopping a
start drops its generator; a result that arrives later is ignored.
"""

import threading
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from agents.host import disk_space
from agents.supervisor.commands import AttemptCommand
from agents.tasks import start_commands
from agents.tasks.node_context import UnstartableError
from reconciler.model.state.states import EndReason

INTERNAL_ERROR = (
    "this attempt could not be started because of an internal error of the agent; see its log"
)

#: Called once, from any thread: a problem (empty or an error) and the result. Returns False if the
#: start has been stopped, so that nobody uses the result.
Resume = Callable[..., bool]


class Wait(NamedTuple):
    """Something that a start waits for without the agent's lock.

    Attributes:
        begin: starts waiting, or returns False if there is nothing to wait for.
        if_stopped: message of the attempt's end if it is stopped meanwhile.
        reason: how the attempt ends if the wait reports a problem as text.
        note: what to show meanwhile; empty if the part that is waited for shows it itself.
        cancel: called with the attempt's id if it is stopped meanwhile.
    """

    begin: Callable[[Resume], bool | None]
    if_stopped: str
    reason: EndReason = EndReason.START_FAILED
    note: str = ""
    cancel: Callable[[str], object] = lambda _: None


Steps = Generator[Wait, Any, AttemptCommand]
Send = Callable[[AttemptCommand], None]


class _Preparation:
    """One start that is being prepared."""

    def __init__(self, attempt: str, steps: Steps, send: Send) -> None:
        self.attempt = attempt
        self.steps = steps
        self.send = send
        self.wait: Wait | None = None
        self.is_stopped = False


class Preparations:
    """Starts of one node that are being prepared. All methods are called under the agent's lock."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._open: dict[str, _Preparation] = {}

    def start(self, attempt: str, steps: Steps, send: Send) -> list[AttemptCommand]:
        """Run the steps of a start. Return its command, or nothing if it has to wait.

        In that case ``send`` is called with the command, under the agent's lock, from another
        thread. A start that replaces another one of the same attempt ends that one without a
        command.
        """
        preparation = self._open[attempt] = _Preparation(attempt, steps, send)
        return self._advance(preparation)

    def stop(self, attempt: str) -> str | None:
        """Stop preparing an attempt. Return the message of its end, or None if it is unknown."""
        preparation = self._open.pop(attempt, None)
        if preparation is None or preparation.wait is None:
            return None
        preparation.is_stopped = True
        preparation.wait.cancel(attempt)
        return preparation.wait.if_stopped

    def notes(self) -> dict[str, str]:
        """Return by attempt what it waits for, unless the part that is waited for shows it."""
        return {
            attempt: preparation.wait.note
            for attempt, preparation in self._open.items()
            if preparation.wait is not None and preparation.wait.note
        }

    def _advance(
        self, preparation: _Preparation, result: Any = None, problem: Exception | None = None
    ) -> list[AttemptCommand]:
        """Run a start until it has to wait or its command is built.

        Raises:
            Exception: an internal error; the start is over.
        """
        steps = preparation.steps
        try:
            while True:
                wait = steps.send(result) if problem is None else steps.throw(problem)
                preparation.wait, result, problem = wait, None, None
                if wait.begin(self._resume_of(preparation, wait)) is not False:
                    return []
        except StopIteration as end:
            command: AttemptCommand = end.value
        except UnstartableError as refused:
            command = start_commands.refusal(preparation.attempt, refused.reason, str(refused))
        except disk_space.FullDiskError as lack:
            reason = EndReason.CHECK_FAILED  # it is the node's fault, which is looked at at once
            command = start_commands.refusal(preparation.attempt, reason, str(lack))
        except Exception:  # whatever it is, the start is over
            self._forget(preparation)
            raise
        self._forget(preparation)
        return [command]

    def _resume_of(self, preparation: _Preparation, wait: Wait) -> Resume:
        """Return the callback that continues a start whose wait has ended."""

        def resume(problem: str | Exception = "", result: Any = None) -> bool:
            with self._lock:
                is_current = self._open.get(preparation.attempt) is preparation
                if not is_current or preparation.wait is not wait:
                    return not preparation.is_stopped
                error = problem if isinstance(problem, Exception) else None
                if problem and isinstance(problem, str):
                    error = UnstartableError(problem, wait.reason)
                try:
                    commands = self._advance(preparation, result, error)
                except Exception as failure:  # whatever it is, the attempt's end must be reported
                    message = f"{INTERNAL_ERROR}: {failure!a}"
                    reason = EndReason.START_FAILED
                    commands = [start_commands.refusal(preparation.attempt, reason, message)]
                for command in commands:
                    preparation.send(command)
            return True

        return resume

    def _forget(self, preparation: _Preparation) -> None:
        if self._open.get(preparation.attempt) is preparation:
            del self._open[preparation.attempt]


def in_background(
    work: Callable[[], Any],
    *,
    limit_s: float | None = None,
    late: str = "",
    undo: Callable[[], object] = lambda: None,
) -> Callable[[Resume], bool]:
    """Return the ``begin`` of a wait for ``work``, which runs in a thread of its own.

    Args:
        limit_s: how long to wait for it; then the wait reports ``late``.
        undo: called after ``work`` if the start was stopped meanwhile.
    """

    def begin(resume: Resume) -> bool:
        timer = None if limit_s is None else threading.Timer(limit_s, resume, (late,))

        def run() -> None:
            problem: str | Exception = ""
            value = None
            try:
                value = work()
            except Exception as error:  # reported as the attempt's end
                problem = error
            if timer is not None:
                timer.cancel()
            if not resume(problem, value):
                undo()

        if timer is not None:
            timer.daemon = True
            timer.start()
        threading.Thread(target=run, daemon=True).start()
        return True

    return begin
