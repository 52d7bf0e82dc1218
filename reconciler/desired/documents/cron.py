"""Parses five cron fields to numbers, for recurring reservations and windows.

Fields are minute, hour, day of month, month, day of week (0 and 7: Sunday), each ``*``, a number, a
range ``1-5``, a list ``1,3``, or with a step ``*/15``, as in crontab(5). Names are refused.
"""

HOUR_S = 3600
_BOUNDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 7),
)


class CronError(ValueError):
    """Text that is not a schedule; the message names the field."""


def parse(text: str) -> tuple[tuple[int, ...] | None, ...]:
    """Return the five fields as sorted numbers, None for any.

    Raises:
        CronError: it is not a schedule.
    """
    fields = text.split()
    if len(fields) != len(_BOUNDS):
        raise CronError(f"a schedule has five fields, and this has {len(fields)}")
    found = [_field(field, *bounds) for field, bounds in zip(fields, _BOUNDS, strict=True)]
    week = found[4]
    if week is not None:
        found[4] = tuple(sorted({day % 7 for day in week}))
    return tuple(found)


def _field(text: str, name: str, low: int, high: int) -> tuple[int, ...] | None:
    if text == "*":
        return None
    numbers: set[int] = set()
    for part in text.split(","):
        span, _, step_text = part.partition("/")
        step = _number(step_text, name) if step_text else 1
        first_text, dash, last_text = span.partition("-")
        if span == "*":
            first, last = low, high
        else:
            first = _number(first_text, name)
            last = _number(last_text, name) if dash else (high if step_text else first)
        if not low <= first <= last <= high or step < 1 or part.endswith("/"):
            raise CronError(f"the {name} is from {low} to {high}, not {part}")
        numbers.update(range(first, last + 1, step))
    return tuple(sorted(numbers))


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise CronError(f"the {name} is a number, a range or a list, not {text or 'nothing'}")
    return int(text)
