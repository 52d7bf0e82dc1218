"""Checks that a pool requests before a task starts and after one has ended.

Tasks wait here for checks, which run in a thread. One check admits or rejects all tasks that wait.
After a task has ended, nothing starts until its checks have run. A failed check is reported before
the rejected attempts end, so that the controller sends no more tasks here.
"""

import threading
from collections.abc import Callable

from reconciler.model.observed.health_checks import CheckPlan, CheckResult

#: Called under the agent's lock with the reason that a task may not start, or an empty text.
Decided = Callable[[str], object]
#: Makes checks and reports what they found; called without the agent's lock.
CheckNow = Callable[[CheckPlan, tuple[str, ...]], tuple[CheckResult, ...]]


class StartGate:
    """The checks around the tasks of one node. ``lock`` is the agent's; it is held for
    decisions.
    """

    def __init__(self, check: CheckNow, lock: threading.RLock) -> None:
        self._check = check
        self._lock = lock
        self._plan: CheckPlan | None = None
        self._waiting: dict[str, Decided] = {}
        #: True if a task has ended after which no check has begun; and while checks run after one.
        self._left = False
        self._looking = False
        self._work = threading.Event()

    def follow(self, plan: CheckPlan | None) -> None:
        """Make the checks of this plan from now on."""
        self._plan = plan
        self._work.set()

    def enter(self, attempt: str, decided: Decided) -> bool:
        """Return True if a task must wait for checks. ``decided`` is then called with the
        result.
        """
        plan = self._plan
        with self._lock:
            after = self._left or self._looking
            if plan is None or not (plan.before or (plan.after and after)):
                return False
            self._waiting[attempt] = decided
        self._work.set()
        return True

    def give_up(self, attempt: str) -> bool:
        """Stop waiting for a task. Return False if it did not wait."""
        with self._lock:
            return self._waiting.pop(attempt, None) is not None

    def waiting(self) -> dict[str, str]:
        """Return notes of waiting tasks, by attempt."""
        plan = self._plan
        names = ", ".join((*plan.after, *plan.before)) if plan is not None else ""
        with self._lock:
            return dict.fromkeys(self._waiting, f"checking the node: {names}")

    def leave(self) -> None:
        """Note that a started task has ended. This counts for a plan that comes later, too."""
        with self._lock:
            self._left = True
        self._work.set()

    def turn(self, wait_s: float = 1.0) -> None:
        """Make the checks that are due. A thread calls it again and again."""
        self._work.wait(wait_s)
        self._work.clear()
        plan = self._plan
        with self._lock:
            asked, left = list(self._waiting), self._left and plan is not None
            if not asked and not left:
                return
            # what ends during these checks is covered by the next ones
            self._left, self._looking = self._left and not left, left
        problem = ""
        try:
            problem = self._look(plan, asked=bool(asked), left=left)
        except BaseException:  # whatever ends it, these checks were not made and stay due
            with self._lock:
                self._left = self._left or left
            raise
        finally:
            self._looking = False
        with self._lock:
            # a failure rejects those that came meanwhile, too; success admits only those that came
            # before
            for attempt in list(self._waiting) if problem else asked:
                decided = self._waiting.pop(attempt, None)
                if decided is not None:
                    decided(problem)

    def _look(self, plan: CheckPlan | None, *, asked: bool, left: bool) -> str:
        """Make checks. Return why nothing may start here, or an empty text."""
        names = plan.after if plan is not None and left else ()
        if plan is not None and asked:
            names = tuple(dict.fromkeys((*names, *plan.before)))
        results = self._check(plan, names) if plan is not None and names else ()
        failed = [result for result in results if result.verdict == "failed"]
        return f"check {failed[0].name} failed here: {failed[0].message}" if failed else ""
