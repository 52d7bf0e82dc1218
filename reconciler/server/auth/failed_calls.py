"""Calls that came without a valid token: counted, logged at a bounded rate, and answered late.

Only the failed call itself waits, never another one, not even of the same address. One without any
token does not wait: it tries none. What is kept of addresses is bounded.
"""

import asyncio
import ipaddress
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable

_LOG = logging.getLogger(__name__)

#: How many addresses are told apart; the one that failed longest ago gives way.
ADDRESSES_MAX = 1024
#: Wrong tokens of an address that are answered at once.
FREE = 5
#: The wait grows with each further failure, up to this.
DELAY_S, DELAY_S_MAX = 0.1, 1.0
#: After so long without a failure an address begins anew.
FORGET_S = 60.0
#: How many failed calls wait at once; one more is answered without a wait.
WAITING_MAX = 256
#: The least time between two lines of the log about one address, and the most lines in that time.
LOG_EVERY_S, LOG_LINES_MAX = 60.0, 20
#: The most characters of a path to log.
_PATH_MAX = 200
#: Why a call was refused, as the metric counts it.
MISSING, UNKNOWN, SIGNATURE = "missing", "unknown", "signature"
REASONS = (MISSING, UNKNOWN, "expired", SIGNATURE)


class _Failures:
    """Failed calls of one address."""

    def __init__(self) -> None:
        self.count = 0
        self.at = 0.0
        self.logged_at: float | None = None
        self.unlogged = 0


class FailedCalls:
    """The calls without a valid token, by address.

    Args:
        clock: seconds that only grow.
        sleep: waits for so many seconds.
        logged: called with address, request, reason and number of calls of each line of the log.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        logged: Callable[[str, str, str, int], None] | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._clock, self._sleep = clock, sleep
        self._logged = logged
        self._by_address: OrderedDict[str, _Failures] = OrderedDict()
        self._waiting = 0
        self._lines: list[float] = []

    async def note(self, address: str, method: str, path: str, reason: str) -> None:
        """Count and log a call, and wait before it is answered."""
        self.counts[reason] += 1
        now = self._clock()
        failures = self._of(network_of(address), now)
        count = self._loggable(failures, now)
        if count:
            path = path[:_PATH_MAX]
            many = "" if count == 1 else "s"
            _LOG.warning(
                *("%d call%s without a valid token from %s, the last: %s %r (%s)", count, many),
                *(address, method, path, reason),
            )
            if self._logged is not None:
                self._logged(address, f"{method} {path}", reason, count)
        if reason == MISSING:
            return
        failures.count += 1
        late = failures.count - FREE
        if late <= 0 or self._waiting >= WAITING_MAX:
            return
        self._waiting += 1
        try:
            await self._sleep(min(DELAY_S * late, DELAY_S_MAX))
        finally:
            self._waiting -= 1

    def _of(self, address: str, now: float) -> _Failures:
        """Return what is known of an address that fails now."""
        failures = self._by_address.setdefault(address, _Failures())
        self._by_address.move_to_end(address)
        while len(self._by_address) > ADDRESSES_MAX:
            self._by_address.popitem(last=False)
        if now - failures.at > FORGET_S:
            failures.count = 0
        failures.at = now
        return failures

    def _loggable(self, failures: _Failures, now: float) -> int:
        """Return how many failures the next line tells of; 0: it is not time for one."""
        failures.unlogged += 1
        if failures.logged_at is not None and now - failures.logged_at < LOG_EVERY_S:
            return 0
        self._lines = [at for at in self._lines if now - at < LOG_EVERY_S]
        if len(self._lines) >= LOG_LINES_MAX:
            return 0
        self._lines.append(now)
        count = failures.unlogged
        failures.logged_at, failures.unlogged = now, 0
        return count


def network_of(address: str) -> str:
    """Return what stands for an address: of IPv6 its network, whose addresses one machine has."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:_PATH_MAX]
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))
