"""Checks before a task starts and after one has ended, as the pool of the node asks for.

A task that is to start waits here until its checks were made, in a thread of their own; all that
wait are let in, or turned away, by the same look. What has ended is looked after before anything
else starts. A failed check turns away whatever waits: its result is told before those ends are, so
that nothing is sent here again.
"""

import threading
from collections.abc import Callable

from reconciler.model.observed.health_checks import CheckPlan, CheckResult

#: Called under the agent's lock with the reason that a task may not start, or with nothing.
Decided = Callable[[str], object]
#: Makes checks and reports what they found; called without the agent's lock.
CheckNow = Callable[[CheckPlan, tuple[str, ...]], tuple[CheckResult, ...]]


class StartGate:
    """One node's. ``lock`` is the agent's, under which tasks are let in."""

    def __init__(self, check: CheckNow, lock: threading.RLock) -> None:
        self._check = check
        self._lock = lock
        self._plan: CheckPlan | None = None
        self._waiting: dict[str, Decided] = {}
        #: Whether something has ended that no look after it has begun for, and whether one goes on.
        self._left = False
        self._looking = False
        self._work = threading.Event()

    def follow(self, plan: CheckPlan | None) -> None:
        """What is to be checked from now on."""
        self._plan = plan
        self._work.set()

    def enter(self, attempt: str, decided: Decided) -> bool:
        """Whether a task has to wait for checks; then ``decided`` is called in the end."""
        plan = self._plan
        with self._lock:
            after = self._left or self._looking
            if plan is None or not (plan.before or (plan.after and after)):
                return False
            self._waiting[attempt] = decided
        self._work.set()
        return True

    def give_up(self, attempt: str) -> bool:
        """A task does not wait any more; False when it did not."""
        with self._lock:
            return self._waiting.pop(attempt, None) is not None

    def waiting(self) -> dict[str, str]:
        """Tasks that wait, with what they wait for."""
        plan = self._plan
        names = ", ".join((*plan.after, *plan.before)) if plan is not None else ""
        with self._lock:
            return dict.fromkeys(self._waiting, f"checking the node: {names}")

    def leave(self) -> None:
        """A task that had started has ended; it counts for a plan that is still to come, too."""
        with self._lock:
            self._left = True
        self._work.set()

    def turn(self, wait_s: float = 1.0) -> None:
        """One turn of the thread that makes the checks."""
        self._work.wait(wait_s)
        self._work.clear()
        plan = self._plan
        with self._lock:
            asked, left = list(self._waiting), self._left and plan is not None
            if not asked and not left:
                return
            # what ends during the look is looked after by the next one
            self._left, self._looking = self._left and not left, left
        problem = ""
        try:
            problem = self._look(plan, asked=bool(asked), left=left)
        except BaseException:
            with self._lock:
                self._left = self._left or left
            raise
        finally:
            self._looking = False
        with self._lock:
            # who came in the meantime is turned away too, but only let in by a look of its own
            for attempt in list(self._waiting) if problem else asked:
                decided = self._waiting.pop(attempt, None)
                if decided is not None:
                    decided(problem)

    def _look(self, plan: CheckPlan | None, *, asked: bool, left: bool) -> str:
        """Make the checks that are due; why nothing may start here, or nothing."""
        names = plan.after if plan is not None and left else ()
        if plan is not None and asked:
            names = tuple(dict.fromkeys((*names, *plan.before)))
        results = self._check(plan, names) if plan is not None and names else ()
        failed = [one for one in results if one.verdict == "failed"]
        return f"check {failed[0].name} failed here: {failed[0].message}" if failed else ""
