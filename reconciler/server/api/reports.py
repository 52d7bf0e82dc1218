"""``/v1/report/WHAT``: sums over a span of time, by what one asks for."""

import time
from typing import Annotated, get_args

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath, Parameter, QueryParameter

from reconciler.model.protocol import decoders
from reconciler.model.values import times
from reconciler.operations.reports import usage_reports
from reconciler.server import errors
from reconciler.server.api import envelopes
from reconciler.server.loop_link import LinkClient
from reconciler.server.server_store import ServerStore

#: Default period of a report.
SPAN_S = 30 * 86_400.0
_convert_groups = decoders.converter(tuple[usage_reports.By, ...])


def _time(name: str, text: str | None, otherwise: float) -> float:
    if text is None:
        return otherwise
    try:
        return times.parse_time(text)
    except ValueError as error:
        raise errors.Failure(400, f"{name}: {error}") from None


def _groups(text: str) -> tuple[usage_reports.By, ...]:
    """Return the words between commas, each once."""
    try:
        return _convert_groups(list(dict.fromkeys(text.split(","))))
    except msgspec.ValidationError:
        known = ", ".join(get_args(usage_reports.By))
        raise errors.Failure(400, f"by: found {text!r}, expected some of {known}") from None


@get(
    "/v1/report/{what:str}",
    sync_to_thread=True,
    responses=errors.responses(400, 401, 403, 404, 503),
    summary="What was used, waited for, wasted and shared, over a span of time",
)
def report(
    *,
    what: FromPath[usage_reports.What],
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    began: Annotated[
        str | None, QueryParameter(name="from", description="RFC 3339; 30 days ago if left out.")
    ] = None,
    ended: Annotated[
        str | None, QueryParameter(name="to", description="RFC 3339; now if left out.")
    ] = None,
    by: Annotated[
        str, Parameter(max_length=100, description="What to tell apart, by commas.")
    ] = "queue",
) -> envelopes.ReportEnvelope:
    """Whole hours (of waiting: days, in UTC) that begin within the span."""
    now = time.time()
    until = _time("to", ended, now)
    period = usage_reports.ReportPeriod(
        _time("from", began, until - SPAN_S), until, _groups(by), now
    )
    try:
        report = usage_reports.make(what, store.reader, period)
    except usage_reports.ReportError as error:
        raise errors.Failure(400, str(error)) from None
    return envelopes.ReportEnvelope(report=report, **envelopes.head(link.published))


HANDLERS = [report]
