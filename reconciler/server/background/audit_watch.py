"""Verifies the audit log now and then, so that tampering is reported without anybody asking.

The log's files come in; two series of the server's page go out: whether the chain held, and when it
was verified. This uses a small part of one core, however long the log is. ``muster audit verify``
finds the same, except that this also notices a log that became shorter: the length is kept in a
file beside it, because lines are lost most easily at a restart or when a folder is restored.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from reconciler import metrics
from reconciler.operations.audit import audit_log
from reconciler.server.waits import Stopping

_LOG = logging.getLogger("muster.audit")

#: How long after one look the next one begins.
LOOK_EVERY_S = 3600.0
#: The part of the time for which a look works; the rest of it, it waits.
DUTY = 0.05


#: The file, beside the log, in which the last look is kept.
SEEN_FILE = "audit.seen.json"


class AuditPosition(msgspec.Struct, frozen=True):
    """The last line of the log when it was last intact, with the time in seconds since the epoch.

    ``hash`` is that line's: whoever rewrites the log changes the hashes of all lines that follow.
    """

    lines: int = 0
    at: float = 0.0
    hash: str = ""


_DECODE_SEEN = msgspec.json.Decoder(AuditPosition).decode


class AuditWatchStoppedError(Exception):
    """Error: the server stops while the log is being verified."""


class AuditWatch:
    """Verifier of the log: once when it is made, and then every ``LOOK_EVERY_S``.

    Args:
        log: the log.
        answers: take the result, for the server's page.
        stopping: ends a verification.
        clock: returns seconds since the epoch.
        sleep: waits in the thread of a verification.
    """

    def __init__(
        self,
        log: audit_log.Log,
        answers: metrics.Answers,
        stopping: Stopping,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._log = log
        self._answers = answers
        self._stopping = stopping
        self._clock = clock
        self._sleep = sleep
        self._seen_path = log.path.with_name(SEEN_FILE)
        self._seen = _seen_in(self._seen_path)
        self._since = self._seen.at or clock()
        self._wrong = ""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.try_look()
            except AuditWatchStoppedError:
                return
            except Exception:
                _LOG.exception("an internal error kept the audit log from being verified")
            await asyncio.sleep(LOOK_EVERY_S)

    async def try_look(self) -> None:
        """Go along the log once, and tell where it can't be read.

        Raises:
            AuditWatchStoppedError: the server stops.
        """
        try:
            await self.look()
        except OSError as error:
            _LOG.warning("the audit log can't be verified now: %s", error)
            if self._answers.audit is None:
                self._answers.audit = metrics.AuditLook(intact=None, at=self._since)

    async def look(self) -> str:
        """Go along the log once; what is wrong with it.

        Raises:
            OSError: it can't be read.
            AuditWatchStoppedError: the server stops.
        """
        log = self._log
        pace, mark = _Pace(self._stopping, self._sleep), self._seen.lines
        found = await asyncio.to_thread(log.verify, pause=pace, mark=mark)
        # files may have been put aside and dropped while it went slowly: that is no tampering
        if found.wrong and not self._wrong:
            found = await asyncio.to_thread(log.verify, mark=mark)
        wrong = found.wrong or self._wrong_with(found)
        if wrong:
            _LOG.error("the audit log %s was tampered with: %s", log.path, wrong)
        elif found.lines:
            await asyncio.to_thread(
                self._keep, AuditPosition(found.lines, self._clock(), found.last)
            )
        self._wrong = wrong
        self._answers.audit = metrics.AuditLook(intact=not wrong, at=self._clock())
        return wrong

    def _wrong_with(self, found: audit_log.ChainVerdict) -> str:
        """Return what is wrong with an intact chain compared with what was seen before; empty:
        nothing.
        """
        seen = self._seen
        if found.lines < seen.lines:
            return f"it ends with line {found.lines}, and line {seen.lines} was there before"
        if seen.hash and found.marked and found.marked != seen.hash:
            return (
                f"line {seen.lines} has the hash {found.marked[:12]} and had {seen.hash[:12]} "
                "before: it, or a line before it, was made anew"
            )
        return ""

    def _keep(self, seen: AuditPosition) -> None:
        self._seen = seen
        new = self._seen_path.with_suffix(".new")
        try:
            new.unlink(missing_ok=True)  # it may be left by a crash, with any mode
            new.touch(0o600, exist_ok=False)
            new.write_bytes(msgspec.json.encode(seen))
            new.replace(self._seen_path)
        except OSError as error:
            _LOG.warning("how long the audit log is can't be kept in %s: %s", new, error)


def _seen_in(path: Path) -> AuditPosition:
    """Return the stored position; an empty one if the file can't be read."""
    try:
        return _DECODE_SEEN(path.read_bytes())
    except FileNotFoundError:
        return AuditPosition()
    except (OSError, msgspec.DecodeError) as error:
        _LOG.warning("how long the audit log was is not known: %s: %s", path, error)
        return AuditPosition()


class _Pace:
    """Waits between pieces of work so that they take no more than a part of the time."""

    def __init__(self, stopping: Stopping, sleep: Callable[[float], None]) -> None:
        self._stopping = stopping
        self._sleep = sleep
        self._since: float | None = None

    def __call__(self) -> None:
        if self._stopping.begun:
            raise AuditWatchStoppedError
        now = time.thread_time()  # of the thread that works, which is not the one that made this
        worked_s = 0.0 if self._since is None else now - self._since
        self._sleep(worked_s * (1 / DUTY - 1))
        self._since = time.thread_time()
