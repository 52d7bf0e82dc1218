"""The store's reader for calls: what is counted over all jobs is counted only so often.

The place of a job in its queue and the number of jobs in each state change with every job that
comes or goes, and cost tens of milliseconds where 20,000 wait. Counted for each call they took most
of the server's time. What was counted for one call is told to those that come soon after it.
"""

import pathlib
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import sqlalchemy as sa

from reconciler.store import StoreReader, database

#: What takes less CPU time than this is always computed anew.
CPU_S_MIN = 0.004
#: All else is computed so rarely that it takes at most one part in so many of the time.
PARTS = 20
#: How long a value is told that is no longer recent, while the next one is computed.
OUTDATED_S_MAX = 2.0

_Value = TypeVar("_Value")


class RecentValue(Generic[_Value]):
    """A value that is computed again when it is asked for and no longer recent.

    It is recent for ``PARTS`` times the CPU time that it takes. Only one thread computes it; others
    get the value before meanwhile, or wait if that is outdated by more than ``OUTDATED_S_MAX``.

    Args:
        compute: returns the value as it is now.
        clock: seconds that only grow.
        cpu_clock: CPU seconds of the calling thread.
    """

    def __init__(
        self,
        compute: Callable[[], _Value],
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._compute = compute
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._turn = threading.Lock()
        #: The last value, and until when it is recent.
        self._last: tuple[_Value, float] | None = None
        self._spent_s = 0.0
        self._is_cheap = True

    def get(self) -> _Value:
        """Return the value; raise what computing it raises."""
        last, now = self._last, self._clock()
        if last is not None and now < last[1]:
            return last[0]
        if last is not None and not self._is_cheap and now < last[1] + OUTDATED_S_MAX:
            if not self._turn.acquire(blocking=False):
                return last[0]  # somebody computes the next one
        else:
            self._turn.acquire()
        try:
            last = self._last
            if last is not None and self._clock() < last[1]:
                return last[0]  # it was computed while this thread waited
            return self._compute_anew()
        finally:
            self._turn.release()

    def _compute_anew(self) -> _Value:
        began_s = self._cpu_clock()
        value = self._compute()
        spent_s = self._cpu_clock() - began_s
        # what was slow once, because it was the first time, is not slow
        cost_s, self._spent_s = min(spent_s, self._spent_s), spent_s
        self._is_cheap = cost_s <= CPU_S_MIN
        now = self._clock()
        self._last = (value, now if self._is_cheap else now + PARTS * cost_s)
        return value


class _Commits:
    """Tells if somebody has committed to the store since it was last asked, for a few microseconds.

    Args:
        path: of the store.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False
        )

    def last(self) -> int:
        """Return a number that is another one after each commit of others."""
        ((found,),) = self._connection.execute("PRAGMA data_version").fetchall()
        return int(found)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class RecentReader(StoreReader):
    """A reader for many calls. Views are as of the last commit, and read once for each.

    Places and counts of jobs may be as old as a large queue makes them.

    Args:
        url: of the store.
        engine: connects to it, to read.
        cpu_clock: CPU seconds of the calling thread; tells what counting costs.
    """

    def __init__(
        self, url: str, engine: sa.Engine, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        super().__init__(url, engine)
        self._places = RecentValue(super().all_places, cpu_clock=cpu_clock)
        self._counts = RecentValue(super().job_counts, cpu_clock=cpu_clock)
        self._commits = _Commits(self.path)
        self._turn = threading.Lock()
        self._views: dict[str, bytes | None] = {}
        self._views_of = -1

    def close(self) -> None:
        """Close its connections."""
        super().close()
        with self._turn:
            self._commits.close()

    def view(self, name: str) -> bytes | None:
        """Return a value that the loop keeps for showing, by name."""
        with self._turn:
            with database.told(self.url):
                last = self._commits.last()
            if last != self._views_of:
                self._views, self._views_of = {}, last
            if name not in self._views:
                self._views[name] = super().view(name)
            return self._views[name]

    def all_places(self) -> dict[str, int]:
        """Return the place of each job that waits, as recently counted."""
        return self._places.get()

    def job_counts(self) -> list[tuple[str, str, int]]:
        """Return the numbers of jobs by state and reasons, as recently counted."""
        return self._counts.get()
