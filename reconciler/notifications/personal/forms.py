"""Letters as Slack, a webhook and e-mail take them, made without any network."""

import email.message
import email.utils
import hashlib

import msgspec

from reconciler.model.state import subscriptions
from reconciler.notifications import messages
from reconciler.notifications.personal import letters

_WORDS = {"job-ended": "ended", "job-failed": "failed", "job-evicted": "evicted"}
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
    """Return a letter for people: its title, and a line for each job."""
    if letter.test:
        return f"{title(letter)}. News of your jobs come here."
    lines = [title(letter)]
    for one in letter.jobs:
        where = ", ".join(
            part
            for part in (one.queue and f"queue {one.queue}", one.run and f"run {one.run}")
            if part
        )
        happened = _happened(one.counts, one.reason)
        line = f"{one.job} {happened}{f' ({where})' if where else ''}"
        lines.append(_plain(f"{line}: {one.message}" if one.message else line))
    if letter.more:
        lines.append(f"and {letter.more} more: muster jobs --mine")
    elif len(letter.jobs) == 1:
        lines.append(f"muster explain {letter.jobs[0].job}")
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
    parts = (receiver.identity, receiver.name, repr(letter))
    identity = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    body = _encode(
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
            "Muster-Signature": messages.signature(receiver.key, moment, body),
        },
        body,
    )


def mail(
    sender: str, receiver: str, letter: letters.Letter, now: float
) -> email.message.EmailMessage:
    """Return the message for an address; ``now`` is in seconds since the epoch."""
    made = email.message.EmailMessage()
    made["From"], made["To"] = sender, receiver
    made["Subject"] = _plain(messages.shortened(title(letter), 150))
    made["Date"] = email.utils.formatdate(now)
    made["Auto-Submitted"] = "auto-generated"
    made.set_content(text(letter) + "\n")
    return made
