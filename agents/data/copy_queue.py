"""Turns of copies: how many run at the same time, and when a copy must end.

A copy waits in the queue until it may run. Users take turns, and one place is left to those of whom
no copy runs: a user who is alone never has them all. At most one copy in of a user runs at a time,
so that no two of them create the same entry of the cache.
"""

import contextlib
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator

from agents.data import worker_process
from agents.host import processes
from reconciler.model.state.states import EndReason

#: Copies that run at the same time, for all users together.
TOGETHER_MAX = 3
#: Copies of one user that run at the same time.
OF_ONE_USER_MAX = TOGETHER_MAX - 1
#: Users whose last turn is remembered.
REMEMBERED_MAX = 1024
#: How often a copy that waits for its turn checks its time limits.
CHECK_INTERVAL_S = 1.0


class Copy:
    """One copy, which waits or runs.

    Attributes:
        note: what is shown while it is not finished.
        uid: id of the user whose turn it takes.
        home: user id of the cache that it fills; None for a copy out.
        why: why it must end; empty if it need not.
        reason: end reason of the attempt, if the copy must end because the attempt is stopped.
        leave_at: monotonic time by which it must have ended because the task must leave.
        late_at: monotonic time by which it must have ended because of its own time limit.
        lost: True if its lease ran out while it ran. It runs again if the lease is renewed.
        lacks_room: True if it failed because this node's disk takes nothing more.
    """

    def __init__(
        self, note: str, uid: int, *, timeout_s: float, home: int | None = None,
        lease_s: float | None = None,
    ) -> None:  # fmt: skip
        self.note = note
        self.uid = uid
        self.home = home
        self.lease_s = lease_s
        self.child: worker_process.WorkerProcess | None = None
        self.why = ""
        self.reason: EndReason | None = None
        self.leave_at = math.inf
        self.late_at = math.inf
        self.timeout_s = timeout_s
        self.lost = False
        self.lacks_room = False

    def check_time(self) -> None:
        """Note why the copy must end if a time limit is over."""
        now = time.monotonic()
        if not self.why and now >= self.leave_at:
            self.why = "the task's time to stop was over"
        if not self.why and now >= self.late_at:
            self.why = f"it took longer than {self.timeout_s:g} s (stage.timeout)"

    def end(self, why: str) -> None:
        """End the copy because nobody needs it any more."""
        self.why = self.why or why
        if self.child is not None:
            self.child.kill()


class CopyQueue:
    """The turns of one node's copies.

    Attributes:
        lock: guards this queue and the copies in it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._waiting: list[Copy] = []
        self._running: list[Copy] = []
        #: Users who had turns; the latest is last.
        self._served: OrderedDict[int, None] = OrderedDict()
        #: When leases were last renewed, on the boot clock; unknown before the first time.
        self._renewed_at = -math.inf

    def wake(self) -> None:
        """Make waiting copies check their state. Called with the lock held."""
        self._changed.notify_all()

    def renewed(self, at: float) -> None:
        """Note that leases were renewed at a moment of the boot clock."""
        with self.lock:
            self._renewed_at = max(self._renewed_at, min(at, processes.boottime()))
            self.wake()

    @contextlib.contextmanager
    def turn(self, copy: Copy) -> Iterator[None]:
        """Wait until a copy may run or must end, and hold its turn meanwhile."""
        with self._changed:
            self._waiting.append(copy)
            while self._next() is not copy:
                copy.check_time()
                if copy.why:
                    break
                self._changed.wait(CHECK_INTERVAL_S)
            self._waiting.remove(copy)
            if not copy.why:
                self._running.append(copy)
                self._served[copy.uid] = None
                self._served.move_to_end(copy.uid)
                while len(self._served) > REMEMBERED_MAX:
                    self._served.popitem(last=False)
            self.wake()
        try:
            yield
        finally:
            with self._changed:
                if copy in self._running:
                    self._running.remove(copy)
                self.wake()

    def must_end(self, copy: Copy) -> bool:
        """Return True if a running copy must end now."""
        copy.check_time()
        if not self._has_lease(copy):
            copy.lost = True
        return copy.lost or bool(copy.why)

    def _next(self) -> Copy | None:
        """Return the copy that may run now: of a user with fewest running, and of those the one
        whose last turn was longest ago.
        """
        if len(self._running) >= TOGETHER_MAX:
            return None
        homes = {copy.home for copy in self._running if copy.home is not None}
        counts = Counter(copy.uid for copy in self._running)
        turns = {uid: number for number, uid in enumerate(self._served)}
        fit = [
            copy
            for copy in self._waiting
            if copy.home not in homes
            and counts[copy.uid] < OF_ONE_USER_MAX
            and self._has_lease(copy)
        ]
        return min(fit, key=lambda copy: (counts[copy.uid], turns.get(copy.uid, -1)), default=None)

    def _has_lease(self, copy: Copy) -> bool:
        return copy.lease_s is None or processes.boottime() < self._renewed_at + copy.lease_s
