"""Writes down who was refused, who read other people's output, and who made overrides.

Entries go to a chain of their own beside that of revisions, which another process writes. What
repeats is one entry a minute with its number, so that nobody fills the disk by being refused.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import msgspec

from reconciler.operations.audit import audit_entries, audit_log

_LOG = logging.getLogger(__name__)

#: File of the chain, in the state folder.
FILE = "access.jsonl"
#: The same caller with the same request is one entry in so many seconds.
REPEAT_S = 60.0
#: How many callers with a request are told apart; the one that came longest ago gives way.
KEYS_MAX = 1024


class Limit(NamedTuple):
    """The most entries in ``REPEAT_S`` about one kind of call: of all callers, and of one."""

    of_all: int
    of_one: int


#: What takes a right is bounded by the right; refusals cost whoever is refused nothing.
LIMITS: Mapping[audit_entries.Action, Limit] = {
    "Unauthenticated": Limit(120, 30),
    "Forbidden": Limit(120, 30),
    "LogsRead": Limit(600, 120),
    "SnapshotRead": Limit(120, 30),
    "OverrideChanged": Limit(1200, 1200),
    "TokensChanged": Limit(1200, 1200),
    "SessionBegan": Limit(1200, 600),
    "SessionEnded": Limit(1200, 600),
    "NotificationChanged": Limit(600, 60),
    "EphemeralJob": Limit(1200, 600),
}
#: What changes something: each is an entry of its own.
ORDERS = frozenset(
    {
        *("OverrideChanged", "TokensChanged", "SessionBegan", "SessionEnded"),
        *("NotificationChanged", "EphemeralJob"),
    }
)
#: What is written down of sessions.
SessionAction = Literal["SessionBegan", "SessionEnded"]
#: What an entry says of calls that got none, because their kind or their caller had too many.
MORE = "further calls of that minute, of which only the number is known"
#: What an entry says before it lists what these calls were about.
MORE_OF = "further calls of that minute: "
#: Calls of which it is kept what they were about, however many there are: reads of other people's.
READS = frozenset({"LogsRead"})
#: Of so many things of one caller, and of all callers, in ``REPEAT_S``; others are counted.
OBJECTS_EACH_MAX = 1000
OBJECTS_MAX = 3000
#: How many of them one entry lists.
LISTED_MAX = 50
#: The most characters of each of them.
OBJECT_CHARACTERS_MAX = 200
#: The most characters of each text.
TEXT_MAX = 300


#: A kind of call, and identity and address of the caller.
_Key = tuple[audit_entries.Action, str, str]


class _Repeated:
    """When the last entry of a caller with a request was made, and how often it came since."""

    def __init__(self) -> None:
        self.at: float | None = None
        self.count = 0


class _More:
    """Calls of one kind and caller without an entry: their number, and what some were about."""

    def __init__(self) -> None:
        self.count = 0
        self.objects: Counter[str] = Counter()


class AccessAudit:
    """The entries that wait to be written, and their writer.

    Args:
        log: the chain; this process alone appends to it.
        clock: seconds that only grow.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        log: audit_log.Log,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.log = log
        self._clock, self._wall = clock, wall
        self._by_key: OrderedDict[tuple[str, ...], _Repeated] = OrderedDict()
        #: When the last entries of a kind were made, and about whom.
        self._made: dict[str, deque[tuple[float, str]]] = {kind: deque() for kind in LIMITS}
        #: Calls without an entry of their own, by kind and caller.
        self._more: dict[_Key, _More] = {}
        self._objects = 0
        self._more_since = 0.0
        self._waiting: deque[audit_entries.AuditEntry] = deque()
        self._changed = asyncio.Event()
        self._failing = False

    def note(
        self, action: audit_entries.Action, identity: str, address: str, request: str, why: str
    ) -> None:
        """Have something written down, unless the same was a moment ago.

        Args:
            action: what was done, or that it was refused.
            identity: of the caller; empty if it is unknown.
            address: of the caller.
            request: method and path, or what was asked for.
            why: the reason of a refusal, or details.
        """
        now = self._clock()
        is_order = action in ORDERS
        # a job's name may have been several people's, and two orders differ: details say so
        whose = why[:TEXT_MAX] if is_order or action == "LogsRead" else ""
        key = (action, identity, address, request[:TEXT_MAX], whose)
        repeated = self._by_key.setdefault(key, _Repeated())
        self._by_key.move_to_end(key)
        while len(self._by_key) > KEYS_MAX:
            self._by_key.popitem(last=False)
        repeated.count += 1
        self._tell_more(now)
        if not is_order and repeated.at is not None and now - repeated.at < REPEAT_S:
            return
        if not self._has_room(action, identity or address, now):
            about = f"{request} {why}".strip() if action in READS else ""
            self._count_more((action, identity, address), about, repeated.count, now)
            repeated.count = 0
            return
        told = audit_entries.AccessEntry(
            action, identity, address, request[:TEXT_MAX], repeated.count
        )
        self._put(told, why[:TEXT_MAX])
        repeated.at, repeated.count = now, 0

    def _put(self, access: audit_entries.AccessEntry, message: str) -> None:
        entry = audit_entries.AuditEntry(self._wall(), "", "Access", message=message, access=access)
        self._waiting.append(entry)
        self._changed.set()

    def _has_room(self, action: audit_entries.Action, who: str, now: float) -> bool:
        """Return True if a further entry is within the limits, and count it."""
        made, limit = self._made[action], LIMITS[action]
        while made and now - made[0][0] >= REPEAT_S:
            made.popleft()
        mine = sum(one == who for _, one in made)
        if len(made) >= limit.of_all or mine >= limit.of_one:
            return False
        made.append((now, who))
        return True

    def _count_more(self, key: _Key, about: str, count: int, now: float) -> None:
        """Count calls that get no entry, and what they are about if there is room."""
        if not self._more:
            self._more_since = now
        if key not in self._more and len(self._more) >= KEYS_MAX:
            key, about = (key[0], "", ""), ""
        more = self._more.setdefault(key, _More())
        more.count += count
        about = about[:OBJECT_CHARACTERS_MAX]
        has_room = len(more.objects) < OBJECTS_EACH_MAX and self._objects < OBJECTS_MAX
        if about in more.objects:
            more.objects[about] += count
        elif about and has_room:
            more.objects[about] = count
            self._objects += 1

    def _tell_more(self, now: float) -> None:
        """Have the calls written down that got no entry, a minute after the first.

        Entries of each caller list what the calls were about, and one has the number of others.
        """
        if not self._more or now - self._more_since < REPEAT_S:
            return
        for (action, identity, address), more in self._more.items():
            objects = list(more.objects.items())
            for first in range(0, len(objects), LISTED_MAX):
                listed = objects[first : first + LISTED_MAX]
                count = sum(times for _, times in listed)
                told = ", ".join(f"{about} ({times})" for about, times in listed)
                entry = audit_entries.AccessEntry(action, identity, address, "", count)
                self._put(entry, MORE_OF + told)
            if left := more.count - more.objects.total():
                self._put(audit_entries.AccessEntry(action, identity, address, "", left), MORE)
        self._more.clear()
        self._objects = 0

    async def run(self) -> None:
        """Write entries as they come, until cancelled; then those that still wait."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REPEAT_S):
                        await self._changed.wait()
                self._tell_more(self._clock())
                self._changed.clear()
                await asyncio.to_thread(self.write)
        finally:
            self._tell_more(math.inf)
            self.write()

    def write(self) -> None:
        """Write what waits. If the disk refuses it, it is lost, and the server's log says so."""
        while self._waiting:
            entry = self._waiting.popleft()
            try:
                self.log.append(entry)
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                if not self._failing:
                    _LOG.error("who was refused or read what can't be written down: %s", error)
                self._failing = True
            else:
                self._failing = False
