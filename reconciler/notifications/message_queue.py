"""The messages of all channels: waiting, being sent, and delivered.

Messages go in, the one that is due comes out. News of an object replaces its opposite. Not for
several threads at once: its owner's lock guards it.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable

import msgspec

from reconciler.model import desired
from reconciler.notifications import messages

#: The most messages that wait; the oldest of a job gives way, or else the oldest.
QUEUE_MAX = 1000
#: The most deliveries that are remembered.
REMEMBERED_MAX = 2000

#: Channel, and key of the notice: one delivery of one piece of news.
Key = tuple[str, ...]
_JOB = "Job/"


class Message(msgspec.Struct):
    """A notice for one channel."""

    channel: desired.NotificationChannel
    notice: messages.Notice
    tries: int = 0

    @property
    def key(self) -> Key:
        """Identity of one delivery of one piece of news."""
        return (self.channel.name, *self.notice.key)


class MessageQueue:
    """Messages by their stage.

    Args:
        delivered: keys of messages that were delivered earlier, the oldest first.
        monotonic: seconds of a clock that is never set.

    Attributes:
        is_changed: the delivered ones have changed since ``take_delivered``.
    """

    def __init__(self, delivered: Iterable[Key], monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._order = itertools.count()
        #: By channel, when its messages are due; entries of messages that wait no more are skipped.
        self._due: dict[str, list[tuple[float, int, Key]]] = {}
        self._waiting: dict[Key, Message] = {}
        self._delivered: dict[Key, None] = dict.fromkeys(delivered)
        #: Keys of both, by channel and object.
        self._by_object: dict[Key, dict[Key, None]] = {}
        for key in self._delivered:
            self._index(key)
        #: By channel, what is being sent, unless it was forgotten meanwhile.
        self._sending: dict[str, Key] = {}
        self.is_changed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting_keys(self) -> list[Key]:
        """Return the keys of waiting messages, the oldest first."""
        return list(self._waiting)

    def is_known(self, key: Key) -> bool:
        """Return True if a message waits, is being sent, or was delivered."""
        return key in self._delivered or key in self._waiting or key == self._sending.get(key[0])

    def add(self, message: Message) -> Key | None:
        """Add a message that is due now. Return the key of the one dropped for it, if any."""
        dropped = None
        if len(self._waiting) >= QUEUE_MAX:
            dropped = _least(self._waiting)
            if message.notice.object.startswith(_JOB) and not dropped[1].startswith(_JOB):
                return message.key
            self._forget(dropped)
        self._wait(message, 0.0)
        return dropped

    def forget_opposite(self, channel: str, notice: messages.Notice) -> None:
        """Forget messages whose opposite is sent now, so that they can be sent again later."""
        for key in list(self._by_object.get((channel, notice.object), ())):
            if key[1:] != notice.key and key[3] == notice.revision:
                self._forget(key)
        if notice.object == messages.REVISION:  # then the repository could be read
            for key in list(self._by_object.get((channel, messages.REPOSITORY), ())):
                self._forget(key)

    def keep_channels(self, names: Iterable[str]) -> None:
        """Forget waiting messages for all other channels."""
        kept = set(names)
        for key in [key for key in self._waiting if key[0] not in kept]:
            self._forget(key)

    def take_due(self, channel: str) -> Message | None:
        """Begin to send the next message of a channel, if one is due."""
        wait_s = self.due_in_s(channel)
        if wait_s is None or wait_s > 0:
            return None
        _, _, key = heapq.heappop(self._due[channel])
        self._sending[channel] = key
        return self._waiting.pop(key)

    def due_in_s(self, channel: str) -> float | None:
        """Return the time until the next message of a channel is due; None if none waits."""
        due = self._due.get(channel, [])
        while due and due[0][2] not in self._waiting:
            heapq.heappop(due)
        if due:
            return due[0][0] - self._monotonic()
        self._due.pop(channel, None)
        return None

    def note_delivered(self, message: Message) -> None:
        """Remember that a message was delivered, unless its opposite came while it was sent."""
        if self._sending.get(message.channel.name) == message.key:
            self._delivered[message.key] = None
            self._index(message.key)
            self.is_changed = True
        while len(self._delivered) > REMEMBERED_MAX:
            self._forget(_least(self._delivered))

    def end_sending(self, message: Message, retry_in_s: float | None, *, is_wanted: bool) -> None:
        """Note that a message is not being sent any more.

        Args:
            message: it waits again, unless its opposite came meanwhile.
            retry_in_s: until when; None: it is not tried again.
            is_wanted: its channel is still in force.
        """
        was_sending = self._sending.pop(message.channel.name, None) == message.key
        if retry_in_s is None:
            if not self.is_known(message.key):
                self._forget(message.key)
        elif was_sending and is_wanted:
            self._wait(self._waiting.get(message.key, message), retry_in_s)

    def take_delivered(self) -> list[Key]:
        """Return the keys of delivered messages, which are about to be stored."""
        self.is_changed = False
        return list(self._delivered)

    def _wait(self, message: Message, wait_s: float) -> None:
        key = message.key
        self._waiting[key] = message
        self._index(key)
        due = self._due.setdefault(key[0], [])
        heapq.heappush(due, (self._monotonic() + wait_s, next(self._order), key))

    def _index(self, key: Key) -> None:
        self._by_object.setdefault(key[:2], {})[key] = None

    def _forget(self, key: Key) -> None:
        if key == self._sending.get(key[0]):  # it arrives as what was so, and may be told anew
            del self._sending[key[0]]
        if key in self._delivered:  # also in the file: else a restart brings it back
            del self._delivered[key]
            self.is_changed = True
        self._waiting.pop(key, None)
        known = self._by_object.get(key[:2], {})
        known.pop(key, None)
        if not known:
            self._by_object.pop(key[:2], None)


def _least(keys: Iterable[Key]) -> Key:
    """Return the least important message: the oldest about a job, or the oldest of all."""
    listed = list(keys)
    return next((key for key in listed if key[1].startswith(_JOB)), listed[0])
