"""Forms of letters, how news are gathered, which addresses are public, and what is refused."""

import email
import email.policy
import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from reconciler.model.state import subscriptions
from reconciler.model.values import addresses
from reconciler.notifications import messages, post_answers
from reconciler.notifications.personal import forms, letters, people_notifier, pinned_post

ADA, BOB = "ada@example.org", "bob@example.org"
WAIT_S = 60.0


def subscription(**changes: Any) -> subscriptions.Subscription:
    values: dict[str, Any] = {
        "identity": ADA,
        "name": "me",
        "kind": "webhook",
        "url": "https://example.org/x",
        "key": "k",
        "added_at": 1.0,
    }
    return subscriptions.Subscription(**(values | changes))


def notice(
    job: str = "train", reason: messages.Reason = "job-failed", owner: str = ADA, message: str = ""
) -> messages.Notice:
    about = {"owner": owner, "queue": "q", "run": "2", "cluster": "main"}
    return messages.Notice(f"Job/{job}", reason, "r", message, "2027-01-01", about=about)


def gathered(*notices: messages.Notice) -> letters.Gathered:
    found = letters.Gathered()
    for one in notices:
        found.add(one.object.removeprefix("Job/"), one)
    return found


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("64:ff9b::5db8:d822", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("2002:7f00:1::1", False),
        ("2001:0:1::1", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_which_addresses_are_of_the_internet(address: str, is_public: bool) -> None:
    assert addresses.is_public(address) is is_public


def test_a_host_with_one_private_address_is_refused_and_a_public_one_pinned() -> None:
    both = ["93.184.216.34", "10.0.0.1"]
    with pytest.raises(pinned_post.UnreachableError, match="not of the internet"):
        pinned_post.public_address("x", 443, lambda _host, _port: both)
    assert pinned_post.public_address("x", 443, lambda _host, _port: both[:1]) == both[0]
    with pytest.raises(pinned_post.UnreachableError, match="no address"):
        pinned_post.public_address("does-not-exist.invalid", 443)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"name": "Me"}, 'name: found "Me"'),
        ({"name": ""}, 'name: found ""'),
        ({"when": ()}, "when: found nothing"),
        ({"job": ""}, "job: expected a name"),
        ({"url": "http://example.org/x"}, "url: expected https"),
        ({"url": "https://a:b@example.org/x"}, "url: expected https"),
        ({"url": "https://example.org:port/"}, "url: found no URL"),
        ({"url": "https://" + "x" * 500}, "at most 500"),
        ({"url": "https://example.org/é"}, "printable ASCII"),
        ({"url": "https://localhost/"}, "no address of the internet"),
        ({"url": "https://a.localhost/"}, ""),  # refused when its address is known
        ({"url": "https://127.1/"}, "no address of the internet"),
        ({"url": "https://2130706433/"}, "no address of the internet"),
        ({"url": "https://0x7f.1/"}, "no address of the internet"),
        ({"url": "https://[::1]/"}, "no address of the internet"),
        ({"url": "https://chat.lan:8443/x"}, ""),
        ({"url": "https://10.0.0.1/x"}, ""),
        ({"kind": "slack"}, "expected hooks.slack.com"),
        ({"kind": "slack", "url": "https://hooks.slack.com.evil.org/x"}, "expected hooks"),
        ({"kind": "slack", "url": "https://hooks.slack.com:8443/x"}, "expected hooks"),
        ({"kind": "slack", "url": "https://hooks.slack.com/services/x"}, ""),
        ({"kind": "slack", "url": "https://10.0.0.1/x"}, ""),
        ({"kind": "email"}, "takes no URL"),
        ({"kind": "email", "url": ""}, ""),
        ({"kind": "email", "url": "", "identity": "admin"}, "no e-mail address"),
        ({"kind": "email", "url": "", "identity": "a@x.org, b@x.org"}, "no e-mail address"),
    ],
)
def test_what_a_subscription_may_be(changes: dict[str, Any], expected: str) -> None:
    wanted = subscription(**changes)
    hosts = {"chat.lan:8443", "10.0.0.1"}
    if not expected:
        subscriptions.check(wanted, hosts=hosts, has_mail=True)
        return
    with pytest.raises(subscriptions.SubscriptionError) as refused:
        subscriptions.check(wanted, hosts=hosts, has_mail=True)
    assert expected in str(refused.value)
    assert "/x" not in str(refused.value)


def test_a_place_shows_no_secret() -> None:
    assert subscription(url="https://example.org:9/s3cret?s3cret").place() == (
        "https://example.org:9/…"
    )
    assert subscription(kind="email", url="").place() == ADA


def test_news_of_one_job_are_one_letter() -> None:
    found = gathered(
        *(notice(reason="job-evicted") for _ in range(3)), notice(message="exit\n  code 1")
    )
    (letter,) = found.take(10)
    assert not found
    assert forms.title(letter) == "Muster: train evicted 3 times, failed"
    assert forms.text(letter).splitlines() == [
        "Muster: train evicted 3 times, failed (cluster main, queue q, run 2): exit code 1",
        "muster explain train",
        "muster logs train",
    ]


def test_a_burst_is_few_letters_and_nothing_is_uncounted() -> None:
    burst = [notice(f"j{number}") for number in range(1200)]
    found = gathered(*burst)
    made = found.take(10)
    assert [len(one.jobs) for one in made] == [1] * 9 + [letters.LISTED_MAX]
    assert sum(one.counts["job-failed"] for one in made) == 1200
    assert forms.title(made[-1]) == "Muster: 1191 jobs: 1191 failed"
    said = forms.text(made[-1]).splitlines()
    assert said[0] == forms.title(made[-1])
    assert said[-3:] == [
        "and 1171 more: muster jobs --mine",
        "muster explain JOB",
        "muster logs JOB",
    ]
    assert [len(one.jobs) for one in gathered(*burst[:3]).take(1)] == [3]


def test_slack_mentions_nobody() -> None:
    (letter,) = gathered(notice(message="<!channel> & \x1b[2J")).take(1)
    made = forms.slack("https://hooks.slack.com/x", letter)
    body = json.loads(made.body)
    assert body.keys() == {"text"}
    assert "&lt;!channel&gt; &amp;" in body["text"]
    assert "\x1b" not in body["text"]


def test_a_webhook_is_signed() -> None:
    (letter,) = gathered(notice()).take(1)
    made = forms.webhook(subscription(), letter, 5.0)
    signed = messages.signature("k", "5", made.body)
    assert made.headers["Muster-Signature"] == signed
    body = json.loads(made.body)
    assert body["jobs"][0]["job"] == "train"
    assert body["counts"] == {"job-failed": 1}


def test_mail_goes_to_one_address() -> None:
    (letter,) = gathered(notice(message="a\r\nBcc: eve@x.org")).take(1)
    made = forms.mail("Muster <muster@x.org>", subscription(), letter, 0.0)
    read = email.message_from_bytes(bytes(made), policy=email.policy.default)
    assert (read["To"], read["From"]) == (ADA, "Muster <muster@x.org>")
    assert read["Bcc"] is None
    assert read["Subject"] == "Muster: train failed"
    assert read["Date"] == "Thu, 01 Jan 1970 00:00:00 +0000"
    assert read.get_content().splitlines() == [
        "train failed (cluster main, queue q, run 2): a Bcc: eve@x.org",
        "muster explain train",
        "muster logs train",
    ]


def test_a_mail_has_one_identity_however_often_it_is_tried() -> None:
    (letter,) = gathered(notice()).take(1)
    other = letters.Letter(test=1)

    def identity(of: letters.Letter, now: float, sender: str = "muster@x.org") -> str:
        return str(forms.mail(sender, subscription(), of, now)["Message-ID"])

    assert re.fullmatch(r"<[0-9a-f]{32}@x\.org>", identity(letter, 0.0))
    assert identity(letter, 0.0) == identity(letter, 60.0) != identity(other, 0.0)
    assert identity(letter, 0.0, "muster@\u00e9.org").endswith("@localhost>")


class _Source:
    """Subscriptions in memory, as the file has them."""

    def __init__(self, *listed: subscriptions.Subscription) -> None:
        self.listed: tuple[subscriptions.Subscription, ...] = listed
        self.kept: list[subscriptions.TellingResult] = []

    def all(self) -> tuple[subscriptions.Subscription, ...]:
        return self.listed

    def results(self) -> dict[tuple[str, str], subscriptions.TellingResult]:
        return {}

    def drop(self, identities: list[str]) -> None:
        self.listed = tuple(one for one in self.listed if one.identity not in identities)

    def keep_results(self, results: list[subscriptions.TellingResult]) -> None:
        self.kept = results


class _Post:
    """Keeps what is sent; answers with the statuses of each receiver, the last one for ever."""

    def __init__(self, **statuses: list[int]) -> None:
        self.statuses = statuses
        self.got: list[tuple[str, letters.Letter]] = []
        self.held: dict[str, threading.Event] = {}

    def send(
        self, receiver: subscriptions.Subscription, letter: letters.Letter
    ) -> post_answers.PostAnswer:
        self.got.append((receiver.name, letter))
        if receiver.name in self.held:
            self.held[receiver.name].wait(WAIT_S)
        known = self.statuses.get(receiver.name, [200])
        status = known.pop(0) if len(known) > 1 else known[0]
        return post_answers.PostAnswer(status, f"status {status}")


def until(look: Callable[[], object]) -> None:
    ends_at = time.monotonic() + WAIT_S
    while not look():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "GATHER_S", 0.0)
    monkeypatch.setattr("reconciler.notifications.retry_rules.WAIT_S_MIN", 0.02)


def started(
    source: _Source, post: _Post, *known: str, monotonic: Callable[[], float] = time.monotonic
) -> people_notifier.PeopleNotifier:
    made = people_notifier.PeopleNotifier(
        source,
        post,
        is_known=lambda who: who in known,
        clock=lambda: 9.0,
        monotonic=monotonic,
        random=lambda: 0.5,
    )
    made.start()
    return made


@pytest.mark.usefixtures("quick")
def test_owners_alone_are_told_of_what_they_chose() -> None:
    listed = (
        subscription(name="all"),
        subscription(name="some", when=("evicted",), job="t*"),
        subscription(identity=BOB, name="bob"),
    )
    post = _Post()
    people = started(_Source(*listed), post, ADA, BOB)
    people.tell([notice(), notice("other", "job-evicted"), notice("train", "job-evicted", BOB)])
    until(lambda: len(post.got) == 3)
    people.stop()
    told = {(name, one.job, one.reason) for name, letter in post.got for one in letter.jobs}
    assert told == {
        ("all", "train", "job-failed"),
        ("all", "other", "job-evicted"),
        ("bob", "train", "job-evicted"),
    }


@pytest.mark.usefixtures("quick")
def test_a_receiver_that_fails_is_tried_again_and_a_refusal_is_not() -> None:
    source = _Source(subscription(name="again"), subscription(name="never"))
    post = _Post(again=[503, 200], never=[404])
    people = started(source, post, ADA)
    people.tell([notice()])
    until(
        lambda: {one.name: one.why for one in source.kept} == {"again": "", "never": "status 404"}
    )
    people.stop()
    assert sorted(name for name, _ in post.got) == ["again", "again", "never"]


@pytest.mark.usefixtures("quick")
def test_a_slow_receiver_holds_up_no_other() -> None:
    post = _Post()
    post.held["slow"] = threading.Event()
    source = _Source(subscription(name="slow"), subscription(name="fast"))
    people = started(source, post, ADA)
    people.tell([notice()])
    until(lambda: [one.name for one in source.kept] == ["fast"])
    post.held["slow"].set()
    people.stop()


@pytest.mark.usefixtures("quick")
def test_at_most_so_many_letters_a_minute_and_the_rest_is_counted() -> None:
    now = 100.0
    post = _Post()
    people = started(_Source(subscription()), post, ADA, monotonic=lambda: now)
    people.tell([notice(f"a{number}") for number in range(100)])
    until(lambda: len(post.got) == letters.A_MINUTE_MAX)
    people.tell([notice(f"b{number}") for number in range(100)])
    people.tell([notice("last")])
    now += letters.MINUTE_S
    until(lambda: sum(one.counts["job-failed"] for _, one in post.got) == 201)
    people.stop()
    assert len(post.got) <= 2 * letters.A_MINUTE_MAX


@pytest.mark.usefixtures("quick")
def test_who_has_no_token_any_more_is_dropped_and_told_nothing() -> None:
    source, post = _Source(subscription(), subscription(identity=BOB)), _Post()
    people = started(source, post, BOB)
    people.tell([notice(), notice(owner=BOB)])
    until(lambda: [one.identity for one in source.listed] == [BOB] and post.got)
    people.stop()
    assert len(post.got) == 1


@pytest.mark.usefixtures("quick")
def test_a_test_is_sent_once_and_not_tried_again() -> None:
    source, post = _Source(subscription()), _Post(me=[503])
    people = started(source, post, ADA)
    until(lambda: people.is_loaded)
    source.listed = (subscription(test=7),)
    until(lambda: [one.test for one in source.kept] == [7])
    people.tell([notice()])
    until(lambda: len(post.got) > 1)
    people.stop()
    assert [one.test for _, one in post.got if one.test] == [7]
