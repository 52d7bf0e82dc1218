"""Reading of moments as people write them: in local time, or from now."""

import re
from datetime import datetime, timedelta

from reconciler.model.values import found_values, quantities

_FROM_NOW = re.compile(r"now(\+(?P<count>\d{1,9})(?P<unit>[a-z]*))?")
_CLOCK = re.compile(r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(:(?P<second>\d\d))?")
#: Seconds of each unit that `at` and Slurm know behind `now+`.
_UNITS = (("weeks", 604_800), ("days", 86_400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
#: Words for an hour of the day, of which the next one is meant.
_HOURS = {"midnight": 0, "noon": 12, "teatime": 16}


def parse(text: str, now: datetime) -> float:
    """Return a moment in seconds since the epoch.

    Args:
        text: a duration from now (`2h`, `now+30minutes`), a time of day, of which the next one is
            meant (`18:00`), `today`, `tomorrow`, or a date with or without a time and an offset.
        now: local time.

    Raises:
        ValueError: it is none of these.
    """
    word = text.strip().lower()
    day = now.replace(tzinfo=None)
    if (clock := _clock(word)) is not None:
        hour, minute, second = clock
        at = day.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return (at if at > day else at + timedelta(days=1)).timestamp()
    if word in {"today", "tomorrow"}:
        return (day + timedelta(days=word == "tomorrow")).timestamp()
    if (after_s := _after_s(word)) is not None:
        return now.timestamp() + after_s
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(
            f"found {found_values.quote(text)}, expected a time such as 2h, now+30minutes, 18:00, "
            "tomorrow or 2027-01-31T06:00"
        ) from None


def _clock(word: str) -> tuple[int, int, int] | None:
    """Return hour, minute and second of a time of day; None if a word is none."""
    if word in _HOURS:
        return _HOURS[word], 0, 0
    found = _CLOCK.fullmatch(word)
    if found is None:
        return None
    hour, minute, second = (int(found[name] or 0) for name in ("hour", "minute", "second"))
    return (hour, minute, second) if hour < 24 and minute < 60 and second < 60 else None


def _after_s(word: str) -> float | None:
    """Return for how long from now a word means; None if it means something else."""
    found = _FROM_NOW.fullmatch(word)
    if found is not None:
        unit = found["unit"] or "seconds"
        lengths = [length for name, length in _UNITS if name.startswith(unit)]
        return int(found["count"] or 0) * lengths[0] if lengths else None
    if ":" in word:  # a wrong time of day, not minutes and seconds
        return None
    try:
        return quantities.parse_duration(word)
    except quantities.QuantityError:
        return None
