"""News of jobs to their owners: when which letter goes out, and in which thread.

One thread looks what is due; each letter has a thread of its own while it is sent. The loop adds
news and never waits. What waits is lost when the controller ends: `muster events` has it.
"""

import collections
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from reconciler.model.state import subscriptions
from reconciler.notifications import messages, post_answers, retry_rules
from reconciler.notifications.personal import letters

log = logging.getLogger("muster.notices")

#: How often the subscriptions are read again, if they have changed.
LOOK_S = 0.5
#: Letters that are sent at a time, in all and of one person.
AT_ONCE_MAX = 64
OF_PERSON_AT_ONCE_MAX = 2
STOP_S_MAX = 5.0
#: The most news of which nobody knows yet whose they are.
INBOX_MAX = 20_000
_JOB = "Job/"
_Key = tuple[str, str]


class Sender(Protocol):
    """Sends one letter."""

    def send(
        self, receiver: subscriptions.Subscription, letter: letters.Letter
    ) -> post_answers.PostAnswer:
        """Return the receiver's answer, with a text for the person."""
        ...


class SubscriptionSource(Protocol):
    """The subscriptions that count now, and the place for what became of their letters."""

    def all(self) -> Sequence[subscriptions.Subscription]:
        """Return all subscriptions."""
        ...

    def results(self) -> Mapping[tuple[str, str], subscriptions.TellingResult]:
        """Return what was kept last."""
        ...

    def drop(self, identities: list[str]) -> None:
        """Remove those of some people."""
        ...

    def keep_results(self, results: list[subscriptions.TellingResult]) -> None:
        """Keep what became of letters."""
        ...


class _Mailbox:
    """Mailbox of one receiver, with what waits for it.

    Attributes:
        due_at: when gathered news may be sent. retry_at: when the first letter may be.
        is_sending: a thread sends the first letter. tries: made with it.
        test: number of a test that waits; 0: none. tested: the last that was seen.
    """

    def __init__(self, receiver: subscriptions.Subscription) -> None:
        self.receiver = receiver
        self.gathered = letters.Gathered()
        self.out: collections.deque[letters.Letter] = collections.deque()
        self.due_at = self.retry_at = 0.0
        self.is_sending = False
        self.tries = 0
        self.test = 0
        self.tested = receiver.test


class PeopleNotifier:
    """Sender of news to people.

    Args:
        source: of subscriptions.
        sender: of letters.
        is_known: whether somebody still has a valid token.
        clock: seconds since the epoch. monotonic: seconds of a clock that is never set.
        random: from 0 to 1, for waits that do not all end together.
    """

    def __init__(
        self,
        source: SubscriptionSource,
        sender: Sender,
        *,
        is_known: Callable[[str], bool],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._source, self._sender, self._is_known = source, sender, is_known
        self._clock, self._monotonic, self._random = clock, monotonic, random
        #: Guards all that follows.
        self._changed = threading.Condition()
        self._inbox: list[messages.Notice] = []
        self._boxes: dict[_Key, _Mailbox] = {}
        self._by_person: dict[str, list[_Mailbox]] = {}
        #: When letters to a person were made, within the last minute.
        self._made: dict[str, collections.deque[float]] = {}
        self._sending: collections.Counter[str] = collections.Counter()
        self._results: dict[_Key, subscriptions.TellingResult] = {}
        self._has_results = self._stopping = False
        self._wrong = ""
        self._loaded: Sequence[subscriptions.Subscription] | None = None
        self._thread = threading.Thread(target=self._run, name="notices-people", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; what waits is dropped."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(STOP_S_MAX)

    @property
    def is_loaded(self) -> bool:
        """True once the subscriptions were read."""
        return self._loaded is not None

    def tell(self, notices: Sequence[messages.Notice]) -> None:
        """Add news of jobs for their owners; return at once."""
        if not notices:
            return
        with self._changed:
            room = INBOX_MAX - len(self._inbox)
            self._inbox.extend(notices[:room])
            self._changed.notify_all()
        if len(notices) > room:
            log.warning("%d news of jobs at once are more than fit", len(notices) - room)

    # --- the thread that looks ------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                # taken before the subscriptions are read: whoever subscribed before is told
                news, self._inbox = self._inbox, []
            try:
                self._load()
                self._keep_results()
            except Exception:  # people are told later, and the thread lives
                log.exception("an internal error kept people from being told")
            with self._changed:
                self._sort(news)
                if self._stopping:
                    return
                wait_s = min(self._begin_due(), LOOK_S)
                if not self._inbox:
                    self._changed.wait(wait_s)

    def _sort(self, news: Iterable[messages.Notice]) -> None:
        """Put news into the mailboxes of their owners."""
        now = self._monotonic()
        for notice in news:
            job = notice.object.removeprefix(_JOB)
            for box in self._by_person.get(notice.about.get("owner", ""), ()):
                if box.receiver.wants(job, notice.reason):
                    if not box.gathered:
                        box.due_at = now + letters.GATHER_S
                    box.gathered.add(job, notice)

    def _load(self) -> None:
        """Take the subscriptions as they are now."""
        try:
            found = self._source.all()
        except Exception as error:
            if str(error) != self._wrong:
                self._wrong = str(error)
                log.warning("subscriptions of people can't be read: %s", error)
            return
        self._wrong = ""
        if found is self._loaded:
            return
        if self._loaded is None:
            self._results = dict(self._source.results())
        with self._changed:
            before, self._boxes = self._boxes, {}
            self._by_person = {}
            for one in found:
                key = (one.identity, one.name)
                box = before.get(key)
                if box is None or box.receiver.added_at != one.added_at:
                    box = _Mailbox(one)
                    box.tested = one.test if self._loaded is None else 0
                box.receiver = one
                if one.test != box.tested:
                    box.test = box.tested = one.test
                self._boxes[key] = box
                self._by_person.setdefault(one.identity, []).append(box)
            self._loaded = found
            self._results = {key: one for key, one in self._results.items() if key in self._boxes}
            self._made = {who: times for who, times in self._made.items() if who in self._by_person}

    def _keep_results(self) -> None:
        with self._changed:
            if not self._has_results:
                return
            self._has_results = False
            results = list(self._results.values())
        try:
            self._source.keep_results(results)
        except Exception as error:  # people then do not see what became of letters
            log.warning("what became of news to people can't be kept: %s", error)

    def _begin_due(self) -> float:
        """Begin to send what is due; return the seconds until the next may be."""
        now, wait_s = self._monotonic(), LOOK_S
        for box in self._boxes.values():
            who = box.receiver.identity
            if box.is_sending or not (box.out or box.test or box.gathered):
                continue
            if self._sending.total() >= AT_ONCE_MAX or self._sending[who] >= OF_PERSON_AT_ONCE_MAX:
                continue
            if not box.out:
                self._fill(box, now)
            if box.out and box.retry_at <= now:
                self._begin(box)
            else:
                wait_s = min(wait_s, max(0.01, (box.retry_at if box.out else box.due_at) - now))
        return wait_s

    def _fill(self, box: _Mailbox, now: float) -> None:
        """Make letters of what waits, as many as the person may get now."""
        made = self._made.setdefault(box.receiver.identity, collections.deque())
        while made and now - made[0] >= letters.MINUTE_S:
            made.popleft()
        room = letters.A_MINUTE_MAX - len(made)
        if room > 0 and box.test:
            box.out.append(letters.Letter(test=box.test))
            box.test = 0
        elif room > 0 and box.gathered and box.due_at <= now:
            wait = sum(bool(one.gathered) for one in self._by_person[box.receiver.identity])
            box.out.extend(box.gathered.take(max(1, room // max(wait, 1))))
        elif room <= 0:
            box.due_at = max(box.due_at, made[0] + letters.MINUTE_S)
        made.extend([now] * len(box.out))
        box.tries, box.retry_at = 0, now

    def _begin(self, box: _Mailbox) -> None:
        box.is_sending = True
        self._sending[box.receiver.identity] += 1
        threading.Thread(target=self._send, args=(box,), name="notices-person", daemon=True).start()

    # --- the threads that send ------------------------------------------------------------------

    def _send(self, box: _Mailbox) -> None:
        receiver, letter = box.receiver, box.out[0]
        answer = post_answers.PostAnswer(400, "an internal error of the controller")
        try:
            if self._is_known(receiver.identity):
                answer = self._sender.send(receiver, letter)
            else:
                log.info("%s has no token any more and is told nothing more", receiver.identity)
                answer = post_answers.PostAnswer(400, "your token is gone")
                self._source.drop([receiver.identity])
        except Exception:  # one letter is lost, not the thread
            log.exception("an internal error kept %s from being told", receiver.identity)
        finally:
            with self._changed:
                self._end(box, letter, answer)

    def _end(self, box: _Mailbox, letter: letters.Letter, answer: post_answers.PostAnswer) -> None:
        """Note what became of a letter, and when it is tried again if it is."""
        who, name = box.receiver.identity, box.receiver.name
        box.is_sending = False
        self._sending -= collections.Counter([who])  # also forgets who has none left
        box.tries += 1
        now = self._monotonic()
        is_delivered = retry_rules.is_delivered(answer.status)
        why = "" if is_delivered else answer.text
        before = self._results.get((who, name))
        tested = letter.test or (before.test if before else 0)
        self._results[who, name] = subscriptions.TellingResult(
            who, name, self._clock(), why, tested
        )
        self._has_results = True
        wait_s = None
        if not is_delivered and not letter.test:
            wait_s = retry_rules.next_try_in_s(
                answer.status, answer.retry_after_s, box.tries, self._random
            )
        if wait_s is not None:
            box.retry_at = now + wait_s
        else:
            box.out.popleft()
            if not is_delivered:
                text = "%s was not told by notification %s, after %d tries: %s"
                log.warning(text, who, name, box.tries, why)
            box.tries = 0
        self._changed.notify_all()
