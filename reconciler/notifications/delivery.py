"""Delivery of notifications: a thread a channel, one bounded queue, exponential backoff, a last
try.

Delivered messages are remembered over a restart, so that nothing is sent twice. A channel that is
slow or unreachable delays no other, and the loop never waits. Messages that are given up are
counted and logged.
"""

import collections
import contextlib
import email.utils
import heapq
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import httpx
import msgspec

from reconciler.model import desired
from reconciler.model.protocol import loop_messages
from reconciler.notifications import credentials, messages

log = logging.getLogger("muster.notices")

#: The most notices that wait; the oldest of a job gives way, or else the oldest.
QUEUE_MAX = 1000
#: The most news of one reason that a channel gets at once; what is more is for `muster events`.
AT_ONCE_MAX = 200
#: The most deliveries that are remembered.
REMEMBERED_MAX = 2000
#: How often one is tried, and the first and the longest wait between two tries.
TRIES_MAX = 8
WAIT_S_MIN = 1.0
WAIT_S_MAX = 300.0
#: How long a receiver may say nothing, and how long it may take for the body of its answer.
TIMEOUT_S = 10.0
#: How much of an answer is read.
ANSWER_BYTES_MAX = 2048

Result = Literal["sent", "failed", "dropped"]
_Key = tuple[str, ...]
_JOB = "Job/"


class _Waiting(msgspec.Struct):
    """A message that is waiting to be sent."""

    channel: desired.NotificationChannel
    notice: messages.Notice
    tries: int = 0

    @property
    def key(self) -> _Key:
        """Identity of one delivery of one piece of news."""
        return (self.channel.name, *self.notice.key)


class Notifier:
    """Sender of messages, with a thread for each channel that has any.

    Args:
        folder: with the secrets of channels.
        remembered: the file of delivered messages.
        clock: seconds since the epoch. monotonic: seconds of a clock that is never set.
        random: from 0 to 1, for waits that do not all end together.
    """

    def __init__(
        self,
        folder: Path,
        remembered: Path,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._file = remembered
        self._clock, self._monotonic, self._random = clock, monotonic, random
        self._changed = threading.Condition()
        self._order = itertools.count()
        #: Of each channel, what is due and when.
        self._due: dict[str, list[tuple[float, int, _Key]]] = {}
        self._waiting: dict[_Key, _Waiting] = {}
        self._done: dict[_Key, None] = self._recall()
        #: Of both, by channel and object.
        self._of: dict[_Key, dict[_Key, None]] = {}
        for key in self._done:
            self._of.setdefault(key[:2], {})[key] = None
        #: What is under way, by channel; not there also once it is forgotten meanwhile.
        self._sending: dict[str, _Key] = {}
        #: Whether the file says something else than ``_done``.
        self._is_stale = False
        self._channels: dict[str, desired.NotificationChannel] = {}
        self._counts: collections.Counter[tuple[str, Result]] = collections.Counter()
        self._started = self._stopping = False
        self._threads: dict[str, threading.Thread] = {}
        self._writing = threading.Lock()
        #: Who was not told at the last try, by name; and the channels among them.
        self._untold: dict[str, loop_messages.Untold] = {}
        self._named: set[str] = set()

    def start(self) -> None:
        """Begin to deliver."""
        with self._changed:
            self._started = True
            self._start_threads()

    def stop(self) -> None:
        """Stop after the requests under way; waiting messages are sent after a restart."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            threads = list(self._threads.values())
        ends_at = self._monotonic() + TIMEOUT_S + 5
        for thread in threads:
            thread.join(timeout=max(0.0, ends_at - self._monotonic()))
        self._remember()

    def tell(
        self, notices: Iterable[messages.Notice], channels: Iterable[desired.NotificationChannel]
    ) -> None:
        """Queue messages for every channel that wants them; return at once.

        News of an object replaces older news of the same object that still waits. What was sent is
        not sent again until its opposite was. Each channel gets the first ``AT_ONCE_MAX`` of one
        reason; the others are dropped, counted and logged.
        """
        added: collections.Counter[tuple[str, str]] = collections.Counter()
        beyond: collections.Counter[tuple[str, str]] = collections.Counter()
        with self._changed:
            self._channels = {one.name: one for one in channels}
            for notice in notices:
                for channel in self._channels.values():
                    self._forget_opposite(channel, notice)
                    one = _Waiting(channel, notice)
                    if not messages.is_wanted(channel, notice) or self._is_known(one.key):
                        continue
                    of = (channel.name, notice.reason)
                    if added[of] < AT_ONCE_MAX:
                        self._put(one)
                        added[of] += 1
                    else:
                        self._count(channel.name, "dropped")
                        beyond[of] += 1
            for name in self._named - self._channels.keys():
                self._untold.pop(name, None)
            self._named = set(self._channels)
            gone = [key for key in self._waiting if key[0] not in self._channels]
            for key in gone:
                self._forget(key)
            self._start_threads()
            self._changed.notify_all()
        for (name, reason), count in beyond.items():
            log.warning(
                "channel %s is told of %d %s at once; %d more are dropped: see `muster events`",
                *(name, AT_ONCE_MAX, reason, count),
            )

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of deliveries by channel and result; zeros for channels in force."""
        with self._changed:
            results: tuple[Result, ...] = ("sent", "failed", "dropped")
            found: dict[tuple[str, str], int] = {
                (name, result): 0 for name in self._channels for result in results
            }
            return found | dict(self._counts)

    def untold(self) -> tuple[loop_messages.Untold, ...]:
        """Return recipients whose last delivery failed, in order of name."""
        with self._changed:
            return tuple(one for _, one in sorted(self._untold.items()))

    def tried(self, name: str, why: str) -> None:
        """Record the result of a delivery; ``why`` is empty if it succeeded.

        Other senders call this as well, such as the one of notes in git.
        """
        with self._changed:
            if not why:
                self._untold.pop(name, None)
                return
            before = self._untold.get(name)
            since, tries = (before.since, before.tries) if before else (self._clock(), 0)
            self._untold[name] = loop_messages.Untold(name, since, tries + 1, why)

    def waiting(self) -> int:
        """Return the number of messages that wait to be sent."""
        with self._changed:
            return len(self._waiting)

    def _forget_opposite(
        self, channel: desired.NotificationChannel, notice: messages.Notice
    ) -> None:
        """Forget messages whose opposite is sent now, so that they can be sent again later."""
        name = channel.name
        for key in list(self._of.get((name, notice.object), ())):
            if key[1:] != notice.key and key[3] == notice.revision:
                self._forget(key)
        if notice.object == messages.REVISION:  # then the repository could be read
            for key in list(self._of.get((name, messages.REPOSITORY), ())):
                self._forget(key)

    def _forget(self, key: _Key) -> None:
        if key == self._sending.get(key[0]):  # it arrives as what was so, and may be told anew
            del self._sending[key[0]]
        if key in self._done:  # the file has to forget it, too: else a restart brings it back
            del self._done[key]
            self._is_stale = True
        self._waiting.pop(key, None)
        known = self._of.get(key[:2], {})
        known.pop(key, None)
        if not known:
            self._of.pop(key[:2], None)

    def _is_known(self, key: _Key) -> bool:
        return key in self._done or key in self._waiting or key == self._sending.get(key[0])

    def _put(self, one: _Waiting) -> None:
        if len(self._waiting) >= QUEUE_MAX:
            least = self._least(self._waiting)
            if one.notice.object.startswith(_JOB) and not least[1].startswith(_JOB):
                least = one.key
            self._forget(least)
            self._count(least[0], "dropped")
            log.warning("%d notices wait: that of %s is dropped", QUEUE_MAX, " ".join(least))
            if least == one.key:
                return
        self._waiting[one.key] = one
        self._of.setdefault(one.key[:2], {})[one.key] = None
        self._make_due(one.key, 0.0)

    def _make_due(self, key: _Key, wait_s: float) -> None:
        due = self._due.setdefault(key[0], [])
        heapq.heappush(due, (self._monotonic() + wait_s, next(self._order), key))

    def _count(self, channel: str, result: Result) -> None:
        self._counts[channel, result] += 1

    # --- the threads ----------------------------------------------------------------------------

    def _start_threads(self) -> None:
        """Start a thread for each channel that has messages to send or to forget."""
        if not self._started or self._stopping:
            return
        names = {key[0] for key in self._waiting}
        if self._is_stale and not names and not self._threads:
            names = set(list(self._channels)[:1])  # somebody has to bring the file up to date
        for name in names - self._threads.keys():
            thread = threading.Thread(
                target=self._run, args=(name,), name=f"notices-{name}", daemon=True
            )
            self._threads[name] = thread
            thread.start()

    def _run(self, channel: str) -> None:
        while (one := self._next(channel)) is not None:
            try:
                wait_s = self._send(one)
            except Exception:  # one notice is lost, not the thread
                log.exception("an internal error kept %s from being told", channel)
                wait_s = None
                with self._changed:
                    self._count(channel, "failed")
            with self._changed:
                holds = self._sending.pop(channel, None) == one.key
                if wait_s is None:
                    if not self._is_known(one.key):
                        self._forget(one.key)
                elif holds and channel in self._channels:
                    self._waiting.setdefault(one.key, one)
                    self._of.setdefault(one.key[:2], {})[one.key] = None
                    self._make_due(one.key, wait_s)

    def _next(self, channel: str) -> _Waiting | None:
        """Return the next due message of a channel, once the file is up to date.

        None: the thread must end, because no message waits for the channel, or because of ``stop``.
        """
        while True:
            self._remember()
            with self._changed:
                due = self._due.get(channel, [])
                while due and due[0][2] not in self._waiting:
                    heapq.heappop(due)
                if self._stopping or (not due and not self._is_stale):
                    self._due.pop(channel, None)
                    del self._threads[channel]
                    return None
                left_s = due[0][0] - self._monotonic() if due else 0.0
                if due and left_s <= 0:
                    _, _, key = heapq.heappop(due)
                    self._sending[channel] = key
                    return self._waiting.pop(key)
                if not self._is_stale:
                    self._changed.wait(left_s)

    def _send(self, one: _Waiting) -> float | None:
        """Try once; return the seconds until the next try, None: never."""
        one.tries += 1
        try:
            secret = credentials.read(self._folder, one.channel.secret)
            made = messages.request(one.channel, one.notice, secret, self._clock())
            if made is None:
                return None
            host = httpx.URL(made.url).netloc.decode("ascii", "replace")
            credentials.require_host(self._folder, one.channel.secret, one.channel.kind, host)
            status, told, after_s = _post(made)
        except (credentials.CredentialError, httpx.HTTPError, httpx.InvalidURL) as error:
            # nothing of the request is told: its headers hold the secret
            status, told, after_s = 0, str(error) or type(error).__name__, None
        what = ": ".join(one for one in (f"status {status}" if status else "", told) if one)
        is_told = 200 <= status < 300
        with self._changed:
            if one.channel.name in self._channels:
                self.tried(one.channel.name, "" if is_told else what)
        if is_told:
            with self._changed:
                self._count(one.channel.name, "sent")
                if (
                    self._sending.get(one.channel.name) == one.key
                ):  # else its opposite came meanwhile
                    self._done[one.key] = None
                    self._of.setdefault(one.key[:2], {})[one.key] = None
                    self._is_stale = True
                while len(self._done) > REMEMBERED_MAX:
                    self._forget(self._least(self._done))
            return None
        final = 300 <= status < 500 and status not in {408, 425, 429}
        if final or one.tries >= TRIES_MAX:
            log.warning(
                "channel %s was not told: %s at %s, %s, after %d tries: %s",
                *(one.channel.name, one.notice.object, one.notice.revision[:12]),
                *(one.notice.reason, one.tries, what),
            )
            with self._changed:
                self._count(one.channel.name, "failed")
            return None
        log.info("channel %s: %s; it is tried again", one.channel.name, what)
        wait_s: float = min(WAIT_S_MAX, WAIT_S_MIN * 2.0 ** (one.tries - 1))
        return max(wait_s * (0.5 + 0.5 * self._random()), min(after_s or 0.0, WAIT_S_MAX))

    @staticmethod
    def _least(keys: Iterable[_Key]) -> _Key:
        """Return the least important message: the oldest about a job, or the oldest of all."""
        listed = list(keys)
        return next((key for key in listed if key[1].startswith(_JOB)), listed[0])

    # --- what was told --------------------------------------------------------------------------

    def _recall(self) -> dict[_Key, None]:
        with contextlib.suppress(OSError, ValueError, TypeError):
            listed = json.loads(self._file.read_text(encoding="utf-8"))
            return {tuple(map(str, key)): None for key in listed if len(key) == 4}
        return {}

    def _remember(self) -> None:
        """Bring the file up to date after a delivery, or after a message was forgotten."""
        with self._writing:
            with self._changed:
                if not self._is_stale:
                    return
                self._is_stale = False
                told_of = [list(key) for key in self._done]
            fresh = self._file.with_name(f".{self._file.name}.{os.getpid()}")
            try:
                fresh.write_text(json.dumps(told_of), encoding="utf-8")
                fresh.replace(self._file)
            except OSError as error:
                log.warning("what was told can't be remembered in %s: %s", self._file, error)


def _post(made: messages.HttpPost) -> tuple[int, str, float | None]:
    """Return the status, the beginning of the answer, and the receiver's wish for a delay in
    seconds.

    Redirections are not followed: they would take the secret elsewhere.
    """
    host = httpx.URL(made.url).host
    local = host in desired.LOOPBACK
    with (
        httpx.Client(timeout=TIMEOUT_S, follow_redirects=False, trust_env=not local) as client,
        client.stream("POST", made.url, headers=made.headers, content=made.body) as answer,
    ):
        told, ends_at = b"", time.monotonic() + TIMEOUT_S
        for piece in answer.iter_bytes():
            told += piece
            if len(told) >= ANSWER_BYTES_MAX or time.monotonic() > ends_at:
                break
        after_s = _retry_after_s(answer.headers.get("retry-after", ""))
        text = messages.shortened(told[:ANSWER_BYTES_MAX].decode("utf-8", "replace"), 200)
        return answer.status_code, text, after_s


def _retry_after_s(text: str) -> float | None:
    if text.isdigit():
        return float(text)
    with contextlib.suppress(ValueError, TypeError):
        moment = email.utils.parsedate_to_datetime(text)
        return max(0.0, (moment - type(moment).now(moment.tzinfo)).total_seconds())
    return None
