"""Envelopes of answers: the content, its time, and its revision."""

import time
from typing import Any

from reconciler.model.protocol import loop_messages
from reconciler.model.values.times import format_time
from reconciler.operations.reports import attempt_rows, usage_reports
from reconciler.operations.views import (
    explanation_views,
    identity_views,
    job_views,
    json_format,
    quota_views,
    reservation_views,
    view_types,
)


class Envelope(json_format.View, frozen=True, kw_only=True):
    """Fields of every answer. ``revision`` is null while none is in force."""

    api_version: str = job_views.API_VERSION
    as_of: str
    revision: str | None


class Jobs(Envelope, frozen=True, kw_only=True):
    """Jobs; ``next`` is what to give as ``after`` for the next page, null on the last."""

    items: list[view_types.JobView]
    next: str | None = None


class JobCounts(Envelope, frozen=True, kw_only=True):
    """How many jobs there are, by state; ``Invalid`` are those that can't run as written."""

    states: dict[str, int]


class NodesEnvelope(Envelope, frozen=True, kw_only=True):
    """Nodes, by name."""

    items: list[view_types.NodeView]


class ReservationsEnvelope(Envelope, frozen=True, kw_only=True):
    """Reservations that keep nodes, now or later; those first that are open or begin first."""

    items: list[reservation_views.ReservationView]


class Queues(Envelope, frozen=True, kw_only=True):
    """Queues, parents first."""

    items: list[view_types.QueueView]


class Quotas(Envelope, frozen=True, kw_only=True):
    """Quotas by name."""

    items: list[quota_views.QuotaView]


class Pools(Envelope, frozen=True, kw_only=True):
    """Pools."""

    items: list[view_types.PoolView]


class Drifts(Envelope, frozen=True, kw_only=True):
    """Differences between git and what is."""

    items: list[view_types.DriftView]


class Overrides(Envelope, frozen=True, kw_only=True):
    """Overrides in force, oldest first."""

    items: list[view_types.OverrideView]


class Events(Envelope, frozen=True, kw_only=True):
    """Events in order; ``next`` is what to give as ``after`` to go on."""

    items: list[view_types.EventView]
    next: int


class Sync(Envelope, frozen=True, kw_only=True):
    """Sync status of the repository."""

    sync: view_types.SyncView


class JobEnvelope(Envelope, frozen=True, kw_only=True):
    """Envelope of one job."""

    job: view_types.JobView


class Explanation(Envelope, frozen=True, kw_only=True):
    """Reasons of a job in order of precedence, the amounts of its queue, and its events.

    ``borrowers`` are the queues furthest above their guarantee, if the job waits. ``notReclaimed``
    is why they return nothing for it, if known. ``silent`` are the silent nodes with tasks of the
    job. ``replayed`` is the cycle of an answer about the past; ``asOf`` and ``revision`` are then
    that cycle's. It is null in an answer about now. ``isEarlierRun``: the job has had another run
    since; the events are those of this one.
    """

    job: view_types.JobView
    reasons: list[view_types.ReasonView]
    queue: view_types.QueueView | None
    events: list[view_types.EventView]
    borrowers: list[explanation_views.Borrower] = []
    not_reclaimed: str = ""
    silent: list[explanation_views.SilentNode] = []
    replayed: explanation_views.ReplayedCycle | None = None
    is_earlier_run: bool = False


class SnapshotEnvelope(Envelope, frozen=True, kw_only=True):
    """Envelope of everything at once; of jobs those submitted last."""

    jobs: list[view_types.JobView]
    nodes: list[view_types.NodeView]
    queues: list[view_types.QueueView]
    pools: list[view_types.PoolView]
    drift: list[view_types.DriftView]
    sync: view_types.SyncView


class AttemptRows(Envelope, frozen=True, kw_only=True):
    """Ended attempts, with the names of the table's columns; ``next`` as of ``Jobs``."""

    items: list[attempt_rows.AttemptRow]
    next: str | None = None


class IdentityEnvelope(Envelope, frozen=True, kw_only=True):
    """The caller of this call. ``expiresAt`` is null for a token without an end; ``ready`` tells
    if the controller leads and has a revision; ``time`` is its clock.
    """

    identity: identity_views.IdentityView
    role: str
    expires_at: str | None
    version: str
    ready: bool
    time: str


class ReportEnvelope(Envelope, frozen=True, kw_only=True):
    """Envelope of a table of sums over a span of time."""

    report: usage_reports.UsageReport


def head(published: loop_messages.Published | None) -> dict[str, Any]:
    """Return the fields that every envelope begins with, by the loop's last message."""
    at = time.time() if published is None else published.at
    return {
        "as_of": format_time(at),
        "revision": None if published is None else published.revision,
    }


def head_now(published: loop_messages.Published | None) -> dict[str, Any]:
    """Return the same for what is no state of the loop's: it is as of now."""
    return head(published) | {"as_of": format_time(time.time())}
