"""Counts of the server's own answers, and their part of the page.

Handlers are counted by the pattern of their path and statuses by their class, so that no client can
make series.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from reconciler.metrics import exposition
from reconciler.metrics.counters import DURATION_BUCKETS, Histogram
from reconciler.metrics.metric_page import MetricPage

#: The most handlers that are told apart; there are fewer.
HANDLERS_MAX = 64
METHODS = ("GET", "POST", "PUT", "DELETE")
OTHER = "(other)"


class AuditLook(NamedTuple):
    """Result of a verification of the audit log, and its time in seconds since the epoch.

    ``intact`` None: no verification has reached the end yet; ``at`` is then when it began, or the
    time of the last one before the restart.
    """

    intact: bool | None
    at: float


class Answers:
    """Counts of requests by handler, method and status class.

    ``audit`` is the last verification of the audit log, None before the first.

    Args:
        unauthenticated: counts of calls without a valid token, by the reason; somebody else counts.
        refused_reports: counts of reports of nodes that were refused, by the reason, likewise.
        certificate_expires_at: returns when the server's TLS certificate expires; None without TLS.
    """

    def __init__(
        self,
        unauthenticated: Mapping[str, int] | None = None,
        refused_reports: Mapping[str, int] | None = None,
        certificate_expires_at: Callable[[], float] | None = None,
    ) -> None:
        self._unauthenticated = {} if unauthenticated is None else unauthenticated
        self._refused_reports = {} if refused_reports is None else refused_reports
        self.audit: AuditLook | None = None
        self._certificate_expires_at = certificate_expires_at
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._durations: dict[str, Histogram] = {}

    def count(self, handler: str, method: str, status: int, took_s: float) -> None:
        """Count an answer. ``handler`` is the pattern of its path."""
        if handler not in self._durations and len(self._durations) >= HANDLERS_MAX - 1:
            handler = OTHER
        method = method if method in METHODS else OTHER
        kind = f"{status // 100}xx" if 100 <= status <= 599 else OTHER
        self._counts[handler, method, kind] += 1
        self._durations.setdefault(handler, Histogram(DURATION_BUCKETS)).observe(took_s)

    def render(self, *, open_sessions: int, other_sessions: int) -> bytes:
        """Render the server's part of the cluster's page, as OpenMetrics without the end mark."""
        page = MetricPage("server")
        for labels, count in sorted(self._counts.items()):
            page.put("muster_api_requests_total", count, *labels)
        for handler, durations in sorted(self._durations.items()):
            page.put_histogram("muster_api_request_duration_seconds", durations, handler)
        for reason, count in sorted(self._unauthenticated.items()):
            page.put("muster_api_unauthenticated_total", count, reason)
        for reason, count in sorted(self._refused_reports.items()):
            page.put("muster_api_refused_reports_total", count, reason)
        page.put("muster_api_sessions", open_sessions, "open")
        page.put("muster_api_sessions", other_sessions, "waiting")
        if self.audit is not None:
            if self.audit.intact is not None:
                page.put("muster_audit_intact", int(self.audit.intact))
            page.put("muster_audit_verified_timestamp_seconds", self.audit.at)
        if self._certificate_expires_at is not None:
            expires_at = self._certificate_expires_at()
            page.put("muster_api_certificate_expires_timestamp_seconds", expires_at)
        page.put("muster_api_process_cpu_seconds_total", time.process_time())
        page.put("muster_api_process_resident_memory_bytes", exposition.resident_bytes())
        return page.render()
