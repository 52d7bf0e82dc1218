"""``/v1/notifications``: where a person gets news of their own jobs.

Everybody sees and changes their own alone, whatever their role. URLs and keys are never shown.
"""

import secrets
import time
from typing import Any

import msgspec
from litestar import Request, delete, get, post
from litestar.concurrency import sync_to_thread
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from reconciler.model.state import subscriptions
from reconciler.operations import subscription_file
from reconciler.operations.audit import access_audit
from reconciler.operations.views import notification_views
from reconciler.server import errors
from reconciler.server.api import envelopes, field_choice
from reconciler.server.auth import authentication
from reconciler.server.loop_link import LinkClient

BODY_BYTES_MAX = 16 * 1024
#: Subscriptions are never in documents, so a key of so many bytes is made for each webhook.
_KEY_BYTES = 32


class PersonalSettings(msgspec.Struct, frozen=True):
    """The file of subscriptions, and what who runs the controller allows.

    Attributes:
        file: of subscriptions.
        hosts: allowed beside Slack and public ones.
        has_mail: whether mail can be sent.
    """

    file: subscription_file.SubscriptionFile
    hosts: frozenset[str] = frozenset()
    has_mail: bool = False


class NotificationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a subscription. ``url`` is none for ``email``; ``job`` is a pattern."""

    name: str
    kind: subscriptions.SubscriptionKind
    url: str = ""
    when: tuple[subscriptions.When, ...] = subscriptions.WHENS
    job: str = "*"


class NotificationsEnvelope(envelopes.Envelope, frozen=True, kw_only=True):
    """The caller's subscriptions, in the order in which they were added."""

    items: list[notification_views.SubscriptionView]


class NotificationAdded(envelopes.Envelope, frozen=True, kw_only=True):
    """A new subscription. ``key`` signs what a webhook gets, and is shown this once."""

    notification: notification_views.SubscriptionView
    key: str | None


class NotificationAnswer(envelopes.Envelope, frozen=True, kw_only=True):
    """Answer about a subscription; ``test`` is the number of a test that was begun."""

    name: str
    test: int | None = None


@get(
    "/v1/notifications",
    sync_to_thread=True,
    responses=errors.responses(400, 401, 403, 503),
    summary="One's own notifications",
)
def notifications(
    request: Request[Any, Any, Any],
    personal: NamedDependency[PersonalSettings],
    link: NamedDependency[LinkClient],
    fields: field_choice.Fields = None,
) -> NotificationsEnvelope:
    """Return where the caller gets news of their jobs, without what is secret."""
    who = authentication.identity_of(request).name
    try:
        found = personal.file.of(who)
    except subscription_file.SubscriptionFileError as error:
        raise errors.Failure(503, str(error)) from None
    results = personal.file.results() if found else {}
    items = [notification_views.shown(one, results.get((who, one.name))) for one in found]
    page = NotificationsEnvelope(items=items, **envelopes.head_now(link.published))
    return field_choice.only(page, fields)


@post(
    "/v1/notifications",
    status_code=200,
    request_max_body_size=BODY_BYTES_MAX,
    responses=errors.responses(400, 401, 403, 409, 413, 415, 503),
    summary="Be told of one's own jobs",
)
async def add_notification(
    *,
    data: JSONBody[NotificationRequest],
    request: Request[Any, Any, Any],
    personal: NamedDependency[PersonalSettings],
    access_log: NamedDependency[access_audit.AccessAudit],
    link: NamedDependency[LinkClient],
) -> NotificationAdded:
    """Have news of the caller's jobs sent. It is in force within about a second."""
    key = secrets.token_urlsafe(_KEY_BYTES) if data.kind == "webhook" else ""
    wanted = subscriptions.Subscription(
        identity=authentication.identity_of(request).name,
        name=data.name,
        kind=data.kind,
        url=data.url,
        key=key,
        when=tuple(one for one in subscriptions.WHENS if one in data.when),
        job=data.job,
        added_at=time.time(),
    )
    try:
        subscriptions.check(wanted, hosts=personal.hosts, has_mail=personal.has_mail)
    except subscriptions.SubscriptionError as error:
        raise errors.Failure(400, str(error)) from None
    try:
        await sync_to_thread(personal.file.add, wanted)
    except subscriptions.SubscriptionError as error:
        raise errors.Failure(409, str(error)) from None
    except subscription_file.SubscriptionFileError as error:
        raise errors.Failure(503, str(error)) from None
    told = f"adds notification {wanted.name}: {wanted.kind} to {wanted.place()}"
    authentication.note(access_log, "NotificationChanged", request, told)
    return NotificationAdded(
        notification=notification_views.shown(wanted, None),
        key=key or None,
        **envelopes.head_now(link.published),
    )


@delete(
    "/v1/notifications/{name:str}",
    status_code=200,
    responses=errors.responses(400, 401, 403, 404, 503),
    summary="Be told no more",
)
async def remove_notification(
    *,
    name: FromPath[str],
    request: Request[Any, Any, Any],
    personal: NamedDependency[PersonalSettings],
    access_log: NamedDependency[access_audit.AccessAudit],
    link: NamedDependency[LinkClient],
) -> NotificationAnswer:
    """End one of the caller's notifications; what waits for it is dropped."""
    who = authentication.identity_of(request).name
    try:
        gone = await sync_to_thread(personal.file.remove, who, name)
    except subscription_file.SubscriptionFileError as error:
        raise errors.Failure(503, str(error)) from None
    if gone is None:
        raise _unknown(name)
    told = f"removes notification {gone.name}: {gone.kind} to {gone.place()}"
    authentication.note(access_log, "NotificationChanged", request, told)
    return NotificationAnswer(name=name, **envelopes.head_now(link.published))


@post(
    "/v1/notifications/{name:str}/test",
    status_code=200,
    responses=errors.responses(400, 401, 403, 404, 415, 503),
    summary="Send a test",
)
async def test_notification(
    *,
    name: FromPath[str],
    request: Request[Any, Any, Any],
    personal: NamedDependency[PersonalSettings],
    link: NamedDependency[LinkClient],
) -> NotificationAnswer:
    """Begin a test; it is over when the list shows its number as ``tested``."""
    who = authentication.identity_of(request).name
    try:
        number = await sync_to_thread(personal.file.ask_test, who, name)
    except subscription_file.SubscriptionFileError as error:
        raise errors.Failure(503, str(error)) from None
    if number is None:
        raise _unknown(name)
    return NotificationAnswer(name=name, test=number, **envelopes.head_now(link.published))


def _unknown(name: str) -> errors.Failure:
    return errors.Failure(
        404, f"you have no notification {name[:60]!r}; `muster notify list` shows yours"
    )


HANDLERS: list[Any] = [notifications, add_notification, remove_notification, test_notification]
