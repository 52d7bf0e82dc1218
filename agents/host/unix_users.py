"""Looks up Unix users, which a directory service may answer slowly or not at all.

Results are cached for a short time. Nobody looks up a name while holding a lock: a thread does, one
per name for all who wait for it.
"""

import ctypes
import os
import pwd
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

#: How long a result is used; a missing user may be created at any moment.
FRESH_S, NONE_S = 60.0, 5.0
KEPT_MAX, GROUPS_MAX = 4096, 65_536
#: Unlike the standard library's function it does not block other threads.
_GROUPS_OF: Any = ctypes.CDLL(None).getgrouplist


class Account(NamedTuple):
    """A user, with the ids of all its groups."""

    name: str
    uid: int
    gid: int
    home: str
    groups: tuple[int, ...]


class UnixUsers:
    """A cache of user lookups. Different threads may use it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Account | None]] = {}

    def is_known(self, name: str) -> bool:
        """Return True if a name was looked up a short time ago."""
        with self._lock:
            at, found = self._known.get(name, (-FRESH_S, None))
        return self._clock() < at + (NONE_S if found is None else FRESH_S)

    def find(self, name: str) -> Account | None:
        """Return the last result for a name, looking it up if there is none; None if no such user
        exists.
        """
        with self._lock:
            known = self._known.get(name)
        return self.ask(name) if known is None else known[1]

    def ask(self, name: str) -> Account | None:
        """Look a name up, however long that takes. Return None if no such user exists."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            found = None
        else:
            groups = groups_of(entry.pw_name, entry.pw_gid)
            found = Account(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir, groups)
        with self._lock:
            self._known.pop(name, None)
            while len(self._known) >= KEPT_MAX:
                del self._known[next(iter(self._known))]  # the one looked up longest ago
            self._known[name] = self._clock(), found
        return found


def groups_of(name: str, gid: int) -> tuple[int, ...]:
    """Return ids of all groups of a user, including the account's own."""
    room = 64
    while room <= GROUPS_MAX:
        count, groups = ctypes.c_int(room), (ctypes.c_uint32 * room)()
        status = _GROUPS_OF(os.fsencode(name), ctypes.c_uint32(gid), groups, ctypes.byref(count))
        if status >= 0:
            return tuple(groups[: count.value])
        room *= 4
    raise OSError(f"user {name} is in more than {GROUPS_MAX // 4} groups")


#: One for this process, because all of it asks the same system.
SYSTEM = UnixUsers()


class _Inquiry:
    """A lookup that is running, and the attempts that wait for it."""

    def __init__(self) -> None:
        self.waiting: dict[str, Callable[[str], object]] = {}
        self.limit: threading.Timer | None = None


class UserLookups:
    """Attempts of one node that wait for the lookup of their user.

    Args:
        lock: the agent's; held by callers, and while a callback runs.
        limit_s: how long an attempt waits.
        source: where names are looked up.
    """

    def __init__(self, lock: threading.RLock, limit_s: float, source: UnixUsers) -> None:
        self._lock = lock
        self._limit_s = limit_s
        self._source = source
        self._open: dict[str, _Inquiry] = {}

    def wait(self, attempt: str, user: str, told: Callable[[str], object]) -> bool:
        """Look a user up for an attempt. Return False if the result is already known.

        Otherwise ``told`` is called from another thread, with a problem or an empty text.
        """
        if self._source.is_known(user):
            return False
        inquiry = self._open.get(user)
        if inquiry is None:
            inquiry = self._open[user] = _Inquiry()
            threading.Thread(target=self._ask, args=(user, inquiry), daemon=True).start()
        inquiry.waiting[attempt] = told
        if inquiry.limit is None:
            inquiry.limit = threading.Timer(self._limit_s, self._give_up_all, (user, inquiry))
            inquiry.limit.daemon = True
            inquiry.limit.start()
        return True

    def give_up(self, attempt: str) -> bool:
        """Stop waiting for an attempt's user. Return False if nobody waited."""
        found = [one.waiting.pop(attempt, None) for one in self._open.values()]
        return any(found)

    def waiting(self) -> dict[str, str]:
        """Return notes of waiting attempts, by attempt."""
        return {
            attempt: f"looking up user {user}"
            for user, inquiry in self._open.items()
            for attempt in inquiry.waiting
        }

    def _ask(self, user: str, inquiry: _Inquiry) -> None:
        problem = ""
        try:
            self._source.ask(user)
        except Exception as failure:  # whatever it is, it must be reported
            problem = f"user {user}: {failure}"
        with self._lock:
            del self._open[user]
            if inquiry.limit is not None:
                inquiry.limit.cancel()
            for told in inquiry.waiting.values():
                told(problem)

    def _give_up_all(self, user: str, inquiry: _Inquiry) -> None:
        """End the wait of all attempts that wait now; those that come later wait again from the
        start.
        """
        said = (
            f"user {user} could not be looked up in {self._limit_s:g} s. To fix: check if "
            f"`id {user}` returns on this node, and the directory service behind it"
        )
        with self._lock:
            if self._open.get(user) is not inquiry:
                return
            inquiry.limit, waiting = None, inquiry.waiting
            inquiry.waiting = {}
            for told in waiting.values():
                told(said)
