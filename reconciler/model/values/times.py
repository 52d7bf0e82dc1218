"""Conversion between seconds since the epoch and RFC 3339 text in UTC."""

import functools
from datetime import UTC, datetime

from reconciler.model.values import found_values

#: The first and the last day that can be named in every time zone, in seconds since the epoch.
FIRST, LAST = -62_135_510_400.0, 253_402_214_400.0
#: How a time is written.
EXAMPLE = "2027-01-31T06:00:00Z"


class OffsetError(ValueError):
    """Error: a time has no offset from UTC."""


@functools.lru_cache(maxsize=8192)  # lists show the same times over and over
def format_time(seconds: float) -> str:
    """Format a time as ``2026-11-21T08:00:00.000Z``, clamped to the years 1 to 9999.

    Times come from people and machines, so a wrong one must not break a whole page.
    """
    moment = datetime.fromtimestamp(max(FIRST, min(LAST, seconds)), UTC)  # in this order NaN loses
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> float:
    """Parse RFC 3339 text to seconds since the epoch.

    Raises:
        OffsetError: it has no offset from UTC.
        ValueError: it is no time.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"found {found_values.quote(text)}, expected a time such as {EXAMPLE}"
        ) from None
    if moment.tzinfo is None:
        raise OffsetError(
            f"{found_values.quote(text)} has no offset from UTC; write Z or +01:00 behind it"
        )
    return moment.timestamp()


def format_span(span_s: float) -> str:
    """Format a duration for people: ``0.4s``, ``59s``, ``4m10s``, ``3h02m``, ``2d4h``."""
    if span_s < 10:
        return f"{span_s:.1f}s"
    whole = int(span_s)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600}h"
