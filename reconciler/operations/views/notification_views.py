"""Views of subscriptions: what a person sees of their own, without what is secret."""

from reconciler.model.state import subscriptions
from reconciler.operations.views import json_format


class SubscriptionView(json_format.View, frozen=True):
    """A receiver of news of one's own jobs.

    ``place`` is where news go, without the secret part. ``tried`` is the last try to tell, ``why``
    its fault, empty if it succeeded. ``tested`` is the number of the last test that was sent.
    """

    name: str
    kind: str
    place: str
    when: list[str]
    job: str
    added: str | None
    tried: str | None
    why: str
    tested: int


def shown(
    one: subscriptions.Subscription, result: subscriptions.TellingResult | None
) -> SubscriptionView:
    """Return the view of a subscription."""
    known = result if result is not None and result.at >= one.added_at else None
    return SubscriptionView(
        name=one.name,
        kind=one.kind,
        place=one.place(),
        when=list(one.when),
        job=one.job,
        added=json_format.time_or_none(one.added_at),
        tried=json_format.time_or_none(known.at if known else None),
        why=known.why if known else "",
        tested=known.test if known else 0,
    )
