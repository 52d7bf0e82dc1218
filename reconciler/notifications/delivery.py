"""Delivery of notifications: a thread for each channel, exponential backoff, a last try.

Delivered messages are remembered over a restart, so that nothing is sent twice, except what was
sent in the moment before the controller was killed. A channel that is slow or unreachable delays
no other, and the loop never waits. Messages that are given up are counted and logged.
"""

import collections
import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from reconciler.model import desired
from reconciler.model.protocol import loop_messages
from reconciler.notifications import (
    credentials,
    message_queue,
    messages,
    post_answers,
    retry_rules,
)

log = logging.getLogger("muster.notices")

#: The most news of one reason that a channel gets at once; what is more is for `muster events`.
AT_ONCE_MAX = 200
Result = Literal["sent", "failed", "dropped"]


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
        #: Guards the queue and all that follows.
        self._changed = threading.Condition()
        self._queue = message_queue.MessageQueue(self._stored(), monotonic)
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
        ends_at = self._monotonic() + post_answers.TIMEOUT_S + 5
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
                    self._queue.forget_opposite(channel.name, notice)
                    message = message_queue.Message(channel, notice)
                    if not messages.is_wanted(channel, notice) or self._queue.is_known(message.key):
                        continue
                    of = (channel.name, notice.reason)
                    if added[of] < AT_ONCE_MAX:
                        self._add(message)
                        added[of] += 1
                    else:
                        self._count(channel.name, "dropped")
                        beyond[of] += 1
            for name in self._named - self._channels.keys():
                self._untold.pop(name, None)
            self._named = set(self._channels)
            self._queue.keep_channels(self._channels)
            self._start_threads()
            self._changed.notify_all()
        for (name, reason), count in beyond.items():
            log.warning(
                "channel %s is told of %d %s at once; %d more are dropped: see `muster events`",
                *(name, AT_ONCE_MAX, reason, count),
            )

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of deliveries by channel and result. Channels in force have zeros."""
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
            return len(self._queue)

    def _add(self, message: message_queue.Message) -> None:
        dropped = self._queue.add(message)
        if dropped is not None:
            self._count(dropped[0], "dropped")
            log.warning(
                "%d notices wait: that of %s is dropped",
                *(message_queue.QUEUE_MAX, " ".join(dropped)),
            )

    def _count(self, channel: str, result: Result) -> None:
        self._counts[channel, result] += 1

    # --- the threads ----------------------------------------------------------------------------

    def _start_threads(self) -> None:
        """Start a thread for each channel that has messages to send or to forget."""
        if not self._started or self._stopping:
            return
        names = {key[0] for key in self._queue.waiting_keys()}
        if self._queue.is_changed and not names and not self._threads:
            names = set(list(self._channels)[:1])  # somebody has to bring the file up to date
        for name in names - self._threads.keys():
            thread = threading.Thread(
                target=self._run, args=(name,), name=f"notices-{name}", daemon=True
            )
            self._threads[name] = thread
            thread.start()

    def _run(self, channel: str) -> None:
        while (message := self._next(channel)) is not None:
            try:
                retry_in_s = self._send(message)
            except Exception:  # one notice is lost, not the thread
                log.exception("an internal error kept %s from being told", channel)
                retry_in_s = None
                with self._changed:
                    self._count(channel, "failed")
            with self._changed:
                self._queue.end_sending(message, retry_in_s, is_wanted=channel in self._channels)

    def _next(self, channel: str) -> message_queue.Message | None:
        """Return the next due message of a channel, once the file is up to date.

        None: the thread must end, because no message waits for the channel, or because of ``stop``.
        """
        while True:
            self._remember()
            with self._changed:
                due_in_s = self._queue.due_in_s(channel)
                if self._stopping or (due_in_s is None and not self._queue.is_changed):
                    del self._threads[channel]
                    return None
                message = self._queue.take_due(channel)
                if message is not None:
                    return message
                if not self._queue.is_changed:
                    self._changed.wait(due_in_s)

    def _send(self, message: message_queue.Message) -> float | None:
        """Try once; return the seconds until the next try, None: never."""
        message.tries += 1
        answer = self._post(message)
        if answer is None:
            return None
        name, notice = message.channel.name, message.notice
        shown = f"status {answer.status}" if answer.status else ""
        why = ": ".join(part for part in (shown, answer.text) if part)
        is_delivered = retry_rules.is_delivered(answer.status)
        with self._changed:
            if name in self._channels:
                self.tried(name, "" if is_delivered else why)
            if is_delivered:
                self._count(name, "sent")
                self._queue.note_delivered(message)
        if is_delivered:
            return None
        wait_s = retry_rules.next_try_in_s(
            answer.status, answer.retry_after_s, message.tries, self._random
        )
        if wait_s is None:
            log.warning(
                "channel %s was not told: %s at %s, %s, after %d tries: %s",
                *(name, notice.object, notice.revision[:12], notice.reason, message.tries, why),
            )
            with self._changed:
                self._count(name, "failed")
            return None
        log.info("channel %s: %s; it is tried again", name, why)
        return wait_s

    def _post(self, message: message_queue.Message) -> post_answers.PostAnswer | None:
        """Return the receiver's answer, or why there is none; None: there is nothing to send."""
        from reconciler.notifications import http_post  # noqa: PLC0415 - most controllers send nothing

        channel = message.channel
        try:
            secret = credentials.read(self._folder, channel.secret)
            request = messages.request(channel, message.notice, secret, self._clock())
            if request is None:
                return None
            host = http_post.host_of(request.url)
            credentials.require_host(self._folder, channel.secret, channel.kind, host)
            return http_post.post(request)
        except (credentials.CredentialError, *http_post.ERRORS) as error:
            # nothing of the request is told: its headers hold the secret
            return post_answers.PostAnswer(0, str(error) or type(error).__name__)

    # --- what was told --------------------------------------------------------------------------

    def _stored(self) -> list[message_queue.Key]:
        with contextlib.suppress(OSError, ValueError, TypeError):
            listed = json.loads(self._file.read_text(encoding="utf-8"))
            return [tuple(map(str, key)) for key in listed if len(key) == 4]
        return []

    def _remember(self) -> None:
        """Bring the file up to date after a delivery, or after a message was forgotten."""
        with self._writing:
            with self._changed:
                if not self._queue.is_changed:
                    return
                delivered = self._queue.take_delivered()
            fresh = self._file.with_name(f".{self._file.name}.{os.getpid()}")
            try:
                fresh.write_text(json.dumps(delivered), encoding="utf-8")
                fresh.replace(self._file)
            except OSError as error:
                log.warning("what was told can't be remembered in %s: %s", self._file, error)
