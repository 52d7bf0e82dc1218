"""Seconds since the epoch to RFC 3339 text in UTC and back."""

from datetime import UTC, datetime


def format_time(seconds: float) -> str:
    """``2026-11-21T08:00:00.000Z``."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> float:
    """RFC 3339 text to seconds since the epoch.

    Raises:
        ValueError: no time, or one without an offset from UTC.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no offset from UTC; write Z or +01:00 behind it")
    return moment.timestamp()
