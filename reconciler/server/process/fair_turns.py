"""Turns of the threads that answer people: who has taken less time of them comes first.

A call waits until a thread is free. Of the callers that wait, the one goes next whose calls have
taken the least time of threads so far, so that whoever asks without a pause, or for long lists,
waits for himself and not others for him. Nobody saves up turns by asking for nothing. Agents'
syncs and ``/healthz`` take no turns: they are answered in the event loop.
"""

import collections
import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from reconciler.server import errors

#: Threads. The interpreter runs one at a time, and many would keep the event loop from its turn.
THREADS = 2
#: A call that takes longer is slow: another thread takes turns in its place, so that a few long
#: reports hold up nobody, up to so many threads.
SLOW_S = 0.25
THREADS_MAX = 6
#: The most time that counts against a caller: after a long report others go first for so long
#: each, and not for as long as it took.
DEBT_S_MAX = 1.0
#: How many of them one caller may have at a time.
THREADS_EACH = 1
#: How many calls of one caller may wait; a portal or a dashboard may be one for many people.
WAITING_MAX = 256
RETRY_AFTER_S = 1.0

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")
_Call = Callable[[], None]


class TurnQueue(Generic[_Item]):
    """Calls, or what else is asked for, that wait for their turn, by caller. Not safe for threads.

    Args:
        each_max: how many calls of one caller may be under way.
        waiting_max: how many calls of one caller may wait.
    """

    def __init__(self, each_max: int = THREADS_EACH, waiting_max: int = WAITING_MAX) -> None:
        self._each_max = each_max
        self._waiting_max = waiting_max
        self._waiting: dict[str, collections.deque[_Item]] = {}
        self._under_way: collections.Counter[str] = collections.Counter()
        #: Seconds of threads that each caller has taken, at least as many as who went last had.
        self._taken_s: dict[str, float] = {}
        self._reached_s = 0.0

    def add(self, caller: str, call: _Item) -> bool:
        """Have a call wait for its turn; return False if too many of its caller wait already."""
        waiting = self._waiting.setdefault(caller, collections.deque())
        if len(waiting) >= self._waiting_max:
            return False
        if not waiting and not self._under_way[caller]:
            self._taken_s[caller] = max(self._taken_s.get(caller, 0.0), self._reached_s)
        waiting.append(call)
        return True

    @property
    def waits(self) -> bool:
        """True if any call waits, even if it may not begin yet."""
        return bool(self._waiting)

    def take(self) -> tuple[str, _Item] | None:
        """Return the next call and its caller; None if none may begin.

        Of several that are taken before any has ended, each caller has one in turn.
        """
        able = [one for one in self._waiting if self._under_way[one] < self._each_max]
        if not able:
            return None
        caller = min(able, key=lambda one: (self._under_way[one], self._taken_s[one]))
        waiting = self._waiting[caller]
        call = waiting.popleft()
        if not waiting:
            del self._waiting[caller]
        self._under_way[caller] += 1
        self._reached_s = max(self._reached_s, self._taken_s[caller])
        return caller, call

    def end(self, caller: str, taken_s: float) -> None:
        """Count a call that has ended, and the seconds that it took a thread."""
        self._taken_s[caller] = min(self._taken_s[caller] + taken_s, self._reached_s + DEBT_S_MAX)
        self._under_way[caller] -= 1
        if not self._under_way[caller]:
            del self._under_way[caller]
        self._forget()

    def _forget(self) -> None:
        """Forget callers without a debt, so that there are not ever more of them."""
        behind = [one for one, taken_s in self._taken_s.items() if taken_s <= self._reached_s]
        for one in behind:
            if one not in self._waiting and one not in self._under_way:
                del self._taken_s[one]


class FairExecutor:
    """Threads that take calls in fair turns.

    Args:
        caller: returns who calls, in the context of the call.
        threads: how many of them may work at calls that are not slow.
        queue: the calls that wait.
    """

    def __init__(
        self,
        caller: Callable[[], str],
        threads: int = THREADS,
        queue: TurnQueue[_Call] | None = None,
    ) -> None:
        self._caller = caller
        self._queue: TurnQueue[_Call] = queue or TurnQueue()
        self._changed = threading.Condition()
        self._ended = False
        self._quick_max = threads
        #: When each call under way began, by its thread.
        self._began_at: dict[int, float] = {}
        self._threads: list[threading.Thread] = []

    def submit(
        self,
        fn: Callable[_Arguments, _Result],
        /,
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> concurrent.futures.Future[_Result]:
        """Have ``fn`` called in turn, for the caller of this context.

        Raises:
            Failure: 429, too many calls of this caller wait.
        """
        caller = self._caller()
        future: concurrent.futures.Future[_Result] = concurrent.futures.Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # the caller's, who gets it from the future
                future.set_exception(error)

        with self._changed:
            if self._ended:
                raise RuntimeError("the threads that answer people have ended")
            if not self._queue.add(caller, call):
                raise errors.Failure(
                    429,
                    f"{WAITING_MAX} calls of {caller} wait already. To fix: ask again in a moment, "
                    "and for fewer things at the same time",
                    retry_after_s=RETRY_AFTER_S,
                )
            if len(self._threads) < THREADS_MAX:
                name = f"reader-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
            self._changed.notify()
        return future

    def _work(self) -> None:
        thread = threading.get_ident()
        while True:
            with self._changed:
                while not self._may_begin() or (found := self._queue.take()) is None:
                    if self._ended and not self._queue.waits:
                        return
                    self._changed.wait(SLOW_S if self._queue.waits else None)
                began_at = self._began_at[thread] = time.monotonic()
            caller, call = found
            call()
            with self._changed:
                del self._began_at[thread]
                self._queue.end(caller, time.monotonic() - began_at)
                self._changed.notify()

    def _may_begin(self) -> bool:
        """Return True if fewer calls than may are under way that are not slow."""
        slow_before = time.monotonic() - SLOW_S
        return sum(at > slow_before for at in self._began_at.values()) < self._quick_max

    def end(self) -> None:
        """Have the threads end, after the calls that wait."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
