"""Writes down who was refused, who read other people's output, and who made overrides.

Entries go to a chain of their own beside that of revisions, which another process writes. What
repeats is one entry a minute with its number, so that nobody fills the disk by being refused.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable

import msgspec

from reconciler.operations.audit import audit_entries, audit_log

_LOG = logging.getLogger(__name__)

#: File of the chain, in the state folder.
FILE = "access.jsonl"
#: The same caller with the same request is one entry in so many seconds.
REPEAT_S = 60.0
#: How many callers with a request are told apart; the one that came longest ago gives way.
KEYS_MAX = 1024
#: The most entries in ``REPEAT_S``; what is more is counted in the next one.
ENTRIES_MAX = 120
#: The most characters of each text.
TEXT_MAX = 300


class _Repeated:
    """When the last entry of a caller with a request was made, and how often it came since."""

    def __init__(self) -> None:
        self.at: float | None = None
        self.count = 0


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
        self._made: deque[float] = deque()
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
        # a job's name may have been several people's: whose it was is in the details
        whose = why[:TEXT_MAX] if action == "LogsRead" else ""
        key = (action, identity, address, request[:TEXT_MAX], whose)
        repeated = self._by_key.setdefault(key, _Repeated())
        self._by_key.move_to_end(key)
        while len(self._by_key) > KEYS_MAX:
            self._by_key.popitem(last=False)
        repeated.count += 1
        while self._made and now - self._made[0] >= REPEAT_S:
            self._made.popleft()
        is_repeat = repeated.at is not None and now - repeated.at < REPEAT_S
        if is_repeat or len(self._made) >= ENTRIES_MAX:
            return
        self._made.append(now)
        access = audit_entries.AccessEntry(
            *(action, identity, address, request[:TEXT_MAX], repeated.count)
        )
        self._waiting.append(
            audit_entries.AuditEntry(
                self._wall(), "", "Access", message=why[:TEXT_MAX], access=access
            )
        )
        repeated.at, repeated.count = now, 0
        self._changed.set()

    async def run(self) -> None:
        """Write entries as they come, until cancelled; then those that still wait."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await asyncio.to_thread(self.write)
        finally:
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
