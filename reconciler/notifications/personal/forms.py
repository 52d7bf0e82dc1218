"""Letters as Slack, a webhook and e-mail take them, made without any network."""

import datetime as dt
import email.message
import email.utils
import hashlib
import re

import msgspec

from reconciler.model.state import subscriptions
from reconciler.notifications import messages
from reconciler.notifications.personal import letters

_WORDS = {"job-ended": "ended", "job-failed": "failed", "job-evicted": "evicted"}
#: A domain that an address of a sender has, as it may stand in the identity of a message.
_DOMAIN = re.compile(r"[A-Za-z0-9.-]{1,255}")
_encode = msgspec.json.Encoder(order="deterministic").encode


class _WebhookBody(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    id: str
    notification: str
    text: str
    jobs: tuple[letters.JobNews, ...]
    counts: dict[str, int]
    more: int


def title(letter: letters.Letter) -> str:
    """Return a letter in a few words, on one line."""
    if letter.test:
        return "Muster: a test"
    if len(letter.jobs) == 1 and not letter.more:
        (one,) = letter.jobs
        return f"Muster: {one.job} {_happened(one.counts, one.reason)}"
    return f"Muster: {len(letter.jobs) + letter.more} jobs: {_counted(letter.counts)}"


def text(letter: letters.Letter) -> str:
    """Return a letter for people where it has no title beside it."""
    if letter.test:
        return f"{title(letter)}. {body(letter)}"
    if len(letter.jobs) == 1 and not letter.more:
        return f"Muster: {body(letter)}"
    return f"{title(letter)}\n{body(letter)}"


def body(letter: letters.Letter) -> str:
    """Return a letter for people below its title: a line for each job, and commands that say
    more.
    """
    if letter.test:
        return "News of your jobs come here."
    lines = []
    for one in letter.jobs:
        facts = (("cluster", one.cluster), ("queue", one.queue), ("run", one.run))
        where = ", ".join(f"{name} {value}" for name, value in facts if value)
        happened = _happened(one.counts, one.reason)
        line = f"{one.job} {happened}{f' ({where})' if where else ''}"
        lines.append(_plain(f"{line}: {one.message}" if one.message else line))
    if letter.more:
        lines.append(f"and {letter.more} more: muster jobs --mine")
    named = letter.jobs[0].job if len(letter.jobs) == 1 else "JOB"
    lines += [f"muster explain {named}", f"muster logs {named}"]
    return "\n".join(lines)


def _happened(counts: dict[str, int], last: str) -> str:
    """Return what happened to a job, as ``evicted 3 times, failed``."""
    ordered = [*(reason for reason in counts if reason != last), last]
    return ", ".join(
        _WORDS.get(reason, reason) + (f" {counts[reason]} times" if counts[reason] > 1 else "")
        for reason in ordered
    )


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{counts[one]} {word}" for one, word in _WORDS.items() if counts.get(one))


def _plain(line: str) -> str:
    """Return a line without characters that control anything."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in line)


def slack(url: str, letter: letters.Letter) -> messages.HttpPost:
    """Return the request for an incoming webhook of Slack. Nothing in it mentions anybody."""
    shown = text(letter).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    headers = {"User-Agent": "muster", "Content-Type": "application/json"}
    return messages.HttpPost(url, headers, _encode({"text": shown}))


def webhook(
    receiver: subscriptions.Subscription, letter: letters.Letter, now: float
) -> messages.HttpPost:
    """Return the signed request for a webhook; ``now`` is in seconds since the epoch."""
    identity = _identity_of(receiver, letter)
    content = _encode(
        _WebhookBody(
            *("muster/v1", identity, receiver.name, text(letter)),
            *(letter.jobs, letter.counts, letter.more),
        )
    )
    moment = str(int(now))
    return messages.HttpPost(
        receiver.url,
        {
            "User-Agent": "muster",
            "Content-Type": "application/json",
            "Muster-Delivery": identity,
            "Muster-Timestamp": moment,
            "Muster-Signature": messages.signature(receiver.key, moment, content),
        },
        content,
    )


def _identity_of(receiver: subscriptions.Subscription, letter: letters.Letter) -> str:
    """Return what is the same each time a letter to a receiver is sent, and of no other letter."""
    parts = (receiver.identity, receiver.name, str(receiver.added_at), repr(letter))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def mail(
    sender: str, receiver: subscriptions.Subscription, letter: letters.Letter, now: float
) -> email.message.EmailMessage:
    """Return the message for an address; ``now`` is in seconds since the epoch.

    It has the same identity each time it is tried.
    """
    domain = email.utils.parseaddr(sender)[1].rpartition("@")[2]
    domain = domain if _DOMAIN.fullmatch(domain) else "localhost"
    made = email.message.EmailMessage()
    made["From"], made["To"] = sender, receiver.identity
    made["Subject"] = _plain(messages.shortened(title(letter), 150))
    made["Date"] = email.utils.format_datetime(dt.datetime.fromtimestamp(now, dt.UTC))
    made["Message-ID"] = f"<{_identity_of(receiver, letter)}@{domain}>"
    made["Auto-Submitted"] = "auto-generated"
    made.set_content(body(letter) + "\n")
    return made
