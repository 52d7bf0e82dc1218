"""The envelopes in which answers come: what was asked for, as of when, of which revision."""

import time
from typing import Any

from reconciler.model.values.times import format_time
from reconciler.operations.history import past_reasons as explaining
from reconciler.operations.reports import usage_reports as reports
from reconciler.operations.views import job_views as views
from reconciler.operations.views import json_format as viewforms
from reconciler.operations.views import quota_views as quotaviews
from reconciler.operations.views import view_types as viewtypes
from reconciler.server import services


class Envelope(viewforms.View, frozen=True, kw_only=True):
    """What every answer has. ``revision`` is null while none is in force."""

    api_version: str = views.API_VERSION
    as_of: str
    revision: str | None


class Jobs(Envelope, frozen=True, kw_only=True):
    """Jobs; ``next`` is what to give as ``after`` for the next page, null on the last."""

    items: list[viewtypes.JobView]
    next: str | None = None


class Nodes(Envelope, frozen=True, kw_only=True):
    """Nodes."""

    items: list[viewtypes.NodeView]


class Queues(Envelope, frozen=True, kw_only=True):
    """Queues, parents first."""

    items: list[viewtypes.QueueView]


class Quotas(Envelope, frozen=True, kw_only=True):
    """Quotas by name."""

    items: list[quotaviews.QuotaView]


class Pools(Envelope, frozen=True, kw_only=True):
    """Pools."""

    items: list[viewtypes.PoolView]


class Drifts(Envelope, frozen=True, kw_only=True):
    """Differences between git and what is."""

    items: list[viewtypes.DriftView]


class Overrides(Envelope, frozen=True, kw_only=True):
    """Overrides in force, oldest first."""

    items: list[viewtypes.OverrideView]


class Events(Envelope, frozen=True, kw_only=True):
    """Events in order; ``next`` is what to give as ``after`` to go on."""

    items: list[viewtypes.EventView]
    next: int


class Sync(Envelope, frozen=True, kw_only=True):
    """How the repository stands."""

    sync: viewtypes.SyncView


class Job(Envelope, frozen=True, kw_only=True):
    """One job."""

    job: viewtypes.JobView


class Explanation(Envelope, frozen=True, kw_only=True):
    """Why a job is as it is: its reasons in order, its queue's arithmetic, and its story so far.

    ``borrowers`` are the queues that hold the most over what is guaranteed to them, where the job
    waits; ``notReclaimed`` says why they give nothing back for it, where that is known. ``silent``
    are the nodes with tasks of it that nobody hears of.
    ``replayed`` says which cycle an answer about the past is taken from; ``asOf`` and ``revision``
    are that cycle's then. It is null in an answer about now.
    """

    job: viewtypes.JobView
    reasons: list[viewtypes.ReasonView]
    queue: viewtypes.QueueView | None
    events: list[viewtypes.EventView]
    borrowers: list[explaining.Borrower] = []
    not_reclaimed: str = ""
    silent: list[explaining.SilentNode] = []
    replayed: explaining.Replayed | None = None


class Snapshot(Envelope, frozen=True, kw_only=True):
    """All at once; of jobs those submitted last."""

    jobs: list[viewtypes.JobView]
    nodes: list[viewtypes.NodeView]
    queues: list[viewtypes.QueueView]
    pools: list[viewtypes.PoolView]
    drift: list[viewtypes.DriftView]
    sync: viewtypes.SyncView


class Report(Envelope, frozen=True, kw_only=True):
    """A table of sums over a span of time."""

    report: reports.Report


def head(service: services.Services) -> dict[str, Any]:
    """The fields that every envelope begins with."""
    published = service.link.published
    at = time.time() if published is None else published.at
    return {
        "as_of": format_time(at),
        "revision": None if published is None else published.revision,
    }
