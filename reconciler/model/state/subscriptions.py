"""Subscriptions: where a person gets news of their own jobs.

They are state, no desired state: their URLs are secrets, and each is its person's alone.
"""

import fnmatch
import re
from collections.abc import Collection
from typing import Literal, get_args
from urllib.parse import SplitResult, urlsplit

import msgspec

from reconciler.model.values import addresses, found_values

SubscriptionKind = Literal["slack", "email", "webhook"]
When = Literal["ended", "failed", "evicted"]
WHENS: tuple[When, ...] = get_args(When)
#: The most subscriptions of one person, and of everybody.
OF_PERSON_MAX = 10
ALL_MAX = 5000
URL_CHARACTERS_MAX = 500
PATTERN_CHARACTERS_MAX = 200
SLACK_HOST = "hooks.slack.com"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")


class SubscriptionError(ValueError):
    """A subscription can't be; the message says what was expected."""


class Subscription(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A receiver of news of one person's jobs.

    Attributes:
        identity: the person, who is also the owner of the jobs.
        name: unique for the person.
        url: a secret; empty for e-mail.
        key: signs what a webhook gets.
        when: what is told.
        job: pattern of names of jobs.
        added_at: seconds since the epoch.
        test: number of the last test that was asked for.
    """

    identity: str
    name: str
    kind: SubscriptionKind
    url: str = ""
    key: str = ""
    when: tuple[When, ...] = WHENS
    job: str = "*"
    added_at: float = 0.0
    test: int = 0

    def place(self) -> str:
        """Return where news go, without what is secret of it."""
        if self.kind == "email":
            return self.identity
        return f"https://{netloc(_split(self.url))}/…"

    def wants(self, job: str, reason: str) -> bool:
        """Return True for a reason, as ``job-ended``, and a name of a job that are chosen."""
        return reason.removeprefix("job-") in self.when and fnmatch.fnmatchcase(job, self.job)


class TellingResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of the last try to tell a subscription; ``why`` is empty if it succeeded.

    ``test`` is the number of the last test that was sent.
    """

    identity: str
    name: str
    at: float
    why: str = ""
    test: int = 0


def netloc(parts: SplitResult) -> str:
    """Return the host of a URL of https, with its port if that is not 443."""
    host = (parts.hostname or "").rstrip(".")
    shown = f"[{host}]" if ":" in host else host
    return shown if parts.port in (None, 443) else f"{shown}:{parts.port}"


def host_of(url: str) -> str:
    """Return the host of a checked URL, as ``--notify-hosts`` names it."""
    return netloc(_split(url))


def _split(url: str) -> SplitResult:
    """Return the parts of a URL.

    Raises:
        SubscriptionError: it is none.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # which is read only now
    except ValueError:
        raise SubscriptionError("url: found no URL, expected https://HOST/PATH") from None
    return parts


def check(wanted: Subscription, *, hosts: Collection[str], has_mail: bool) -> None:
    """Check a subscription as a person wrote it. No message repeats the URL.

    Args:
        wanted: the subscription.
        hosts: hosts that who keeps the controller allows beside Slack and public ones.
        has_mail: whether the controller can send mail.

    Raises:
        SubscriptionError: it can't be.
    """
    if _NAME.fullmatch(wanted.name) is None:
        raise SubscriptionError(
            f"name: found {found_values.quote(wanted.name[:60])}, expected 1 to 40 lower case "
            "letters, digits and hyphens, such as me"
        )
    if not wanted.when:
        raise SubscriptionError(f"when: found nothing, expected some of {', '.join(WHENS)}")
    if not 1 <= len(wanted.job) <= PATTERN_CHARACTERS_MAX or not wanted.job.isprintable():
        raise SubscriptionError(
            f"job: expected a name or a pattern such as train-*, of 1 to {PATTERN_CHARACTERS_MAX} "
            "characters"
        )
    if wanted.kind == "email":
        _check_email(wanted, has_mail=has_mail)
    else:
        _check_url(wanted, hosts)


def _check_email(wanted: Subscription, *, has_mail: bool) -> None:
    if wanted.url:
        raise SubscriptionError("url: e-mail goes to your own address alone and takes no URL")
    if not has_mail:
        raise SubscriptionError(
            "this controller sends no e-mail. To fix: who runs it sets --smtp HOST:PORT and "
            "--smtp-from, or use --slack or --webhook"
        )
    if _ADDRESS.fullmatch(wanted.identity) is None:
        raise SubscriptionError(
            f"your token is for {found_values.quote(wanted.identity)}, which is no e-mail address, "
            "and mail goes to the token's own address alone. To fix: use --slack or --webhook"
        )


def _check_url(wanted: Subscription, hosts: Collection[str]) -> None:
    text = wanted.url
    if len(text) > URL_CHARACTERS_MAX or not (text.isascii() and text.isprintable()):
        raise SubscriptionError(
            f"url: expected at most {URL_CHARACTERS_MAX} printable ASCII characters"
        )
    parts = _split(text)
    if parts.scheme != "https" or not parts.hostname or "@" in parts.netloc or " " in text:
        raise SubscriptionError("url: expected https://HOST/PATH, without a user or spaces")
    host = netloc(parts)
    if host in hosts:
        return
    if wanted.kind == "slack":
        if host != SLACK_HOST:
            raise SubscriptionError(
                f"url: found the host {found_values.quote(host)}, expected {SLACK_HOST}. To fix: "
                "take the URL of an incoming webhook of Slack; who runs the controller allows "
                "other hosts with --notify-hosts"
            )
        return
    bare = parts.hostname.rstrip(".")
    is_literal = ":" in bare or re.fullmatch(r"[0-9.]+|0x[0-9a-f.x]+", bare) is not None
    if addresses.is_loopback(bare) or (is_literal and not addresses.is_public(bare)):
        raise SubscriptionError(
            f"url: {found_values.quote(host)} is no address of the internet. To fix: name a "
            "public host; who runs the controller allows others with --notify-hosts"
        )
