"""Messages of each kind of channel, made without any network.

The state of the repository comes in, notices come out; a notice and a channel make the bytes of one
request. Two notices with the same object, reason and revision are the same news, whatever else they
contain: otherwise growing figures would be news at every look.
"""

import fnmatch
import hashlib
import hmac
import urllib.parse
from typing import Literal, get_args

import msgspec

from reconciler.model import desired
from reconciler.model.rules import redaction, review_findings
from reconciler.model.values import times

Reason = Literal[
    "applied", "refused", "held", "unreadable",
    "job-ended", "job-failed", "job-evicted",
    "node-lost", "node-back", "drift", "drift-ended",
]  # fmt: skip

#: Those that a cycle brings, and not a look at the repository.
OF_CYCLES = frozenset(get_args(Reason)) - {"applied", "refused", "held", "unreadable"}
#: The longest description that a forge takes for a commit's status.
DESCRIPTION_MAX = 140
#: The most problems that a webhook is told of one by one.
PROBLEMS_MAX = 50
REPOSITORY, REVISION = "Repository", "Revision"
_GITHUB = {"applied": "success", "refused": "failure", "held": "pending"}
_GITLAB = {"applied": "success", "refused": "failed", "held": "pending"}
_encode = msgspec.json.Encoder(order="deterministic").encode


class Notice(msgspec.Struct, frozen=True, rename="camel"):
    """One piece of news.

    Attributes:
        object: its subject: ``Revision``, ``Repository``, ``Job/NAME``, ``Node/NAME``, or
            ``Drift/KIND:SUBJECT``.
        reason: what happened. revision: commit that it concerns, or that is in force.
        message: one sentence. at: time, as RFC 3339.
        problems: problems, one text each, at most ``PROBLEMS_MAX``.
        approve: commands that apply what is held.
        about: facts about the subject, such as the queue and owner of a job.
    """

    object: str
    reason: Reason
    revision: str
    message: str
    at: str
    problems: tuple[str, ...] = ()
    approve: tuple[str, ...] = ()
    about: dict[str, str] = {}

    @property
    def key(self) -> tuple[str, str, str]:
        """Identity: two notices with the same key are the same news."""
        return (self.object, self.reason, self.revision)


class HttpPost(msgspec.Struct, frozen=True):
    """One HTTP POST."""

    url: str
    headers: dict[str, str]
    body: bytes


class _Body(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    id: str
    channel: str
    notice: Notice


def of_status(status: desired.SyncStatus, now: float) -> Notice | None:
    """Return the news of a look at the repository; None if no revision was ever seen."""
    at = times.format_time(now)
    revision = status.attempted_revision or status.jobs_revision
    if revision is None:
        return None
    if status.sync == "Unknown":
        return Notice(REPOSITORY, "unreadable", revision, status.message, at)
    wrong = [problem for problem in status.problems if problem.severity == "error"]
    errors = tuple(redaction.unquoted(problem).text() for problem in wrong)  # others read channels
    approve = tuple(f"muster approve {one.digest}" for one in status.held if one.digest)
    if status.held and not any(p.rule in review_findings.WHOLE for p in status.problems):
        message = status.held[0].message
        return Notice(REVISION, "held", revision, message, at, errors[:PROBLEMS_MAX], approve)
    if status.sync == "Synced":
        return Notice(REVISION, "applied", revision, "it is in force", at)
    return Notice(REVISION, "refused", revision, status.message, at, errors[:PROBLEMS_MAX])


def is_wanted(channel: desired.NotificationChannel, notice: Notice) -> bool:
    """Return True if a channel chose this news, by its reason and by facts about the subject.

    Filters on queues do not apply to subjects without a queue, such as nodes.
    """
    if notice.reason not in channel.on:
        return False
    chosen = (("queue", channel.queues), ("owner", channel.owners), ("pool", channel.pools))
    return all(
        not patterns or field not in notice.about or _matches(notice.about[field], patterns)
        for field, patterns in chosen
    )


def _matches(text: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


def request(
    channel: desired.NotificationChannel, notice: Notice, secret: str, now: float
) -> HttpPost | None:
    """Return the request that tells a channel; None for news that it has no form for.

    Args:
        channel: the recipient.
        notice: the news.
        secret: a forge's token, or the key that signs for a webhook.
        now: seconds since the epoch: a receiver can refuse old signatures.
    """
    if channel.kind == "webhook":
        return _webhook(channel, notice, secret, now)
    states = _GITHUB if channel.kind == "github" else _GITLAB
    state = states.get(notice.reason)
    if state is None:
        return None
    context = f"muster/{channel.name}"
    described = shortened(notice.message, DESCRIPTION_MAX)
    agent = {"User-Agent": "muster", "Content-Type": "application/json"}
    if channel.kind == "github":
        return HttpPost(
            f"{channel.url}/repos/{channel.repository}/statuses/{notice.revision}",
            agent | {"Authorization": f"Bearer {secret}", "Accept": "application/vnd.github+json"},
            _encode({"state": state, "context": context, "description": described}),
        )
    project = urllib.parse.quote(channel.repository, safe="")
    return HttpPost(
        f"{channel.url}/projects/{project}/statuses/{notice.revision}",
        agent | {"PRIVATE-TOKEN": secret},
        _encode({"state": state, "name": context, "description": described}),
    )


def _webhook(
    channel: desired.NotificationChannel, notice: Notice, secret: str, now: float
) -> HttpPost:
    identity = hashlib.sha256("\0".join((channel.name, *notice.key)).encode()).hexdigest()[:32]
    body = _encode(_Body("muster/v1", identity, channel.name, notice))
    moment = str(int(now))
    return HttpPost(
        channel.url,
        {
            "User-Agent": "muster",
            "Content-Type": "application/json",
            "Muster-Delivery": identity,
            "Muster-Timestamp": moment,
            "Muster-Signature": signature(secret, moment, body),
        },
        body,
    )


def signature(secret: str, moment: str, body: bytes) -> str:
    """Return ``sha256=HEX``: HMAC-SHA256 over the timestamp, a dot and the body."""
    made = hmac.new(secret.encode(), moment.encode() + b"." + body, hashlib.sha256)
    return f"sha256={made.hexdigest()}"


def shortened(text: str, most: int) -> str:
    """Return a text cut to a number of characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"
