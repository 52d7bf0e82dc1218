"""Bounds of what one sync of a node may hold, applied before anybody keeps or shows any of it.

Names that are too long, and lists and maps with too many items, are refused: no agent makes them.
Texts for people are cut. Control characters become visible escapes, because these words reach
terminals, logs and pages.
"""

from typing import Any

import msgspec

from reconciler.model.observed import task_reports
from reconciler.model.protocol import agent_messages
from reconciler.model.state import records

#: The most characters of a name: an id, a label, a model, a path.
NAME_CHARACTERS_MAX = 512
#: The most characters of a text for people; a longer one is cut.
TEXT_CHARACTERS_MAX = 2000
#: The most items of a list or a map in a report, but of attempts.
ITEMS_MAX = 4096
#: The most labels of a node.
LABELS_MAX = 256
#: The most attempts of one report; an agent tells of as many.
ATTEMPTS_MAX = 20_000
#: The most bytes of an inventory, as it is sent.
INVENTORY_BYTES_MAX = 2**20
#: Fields that hold text for people.
_TEXTS = frozenset({"message", "notice", "problem", "problems", "fabric_problem", "detail"})
_ITEMS_MAX = {
    "attempts": ATTEMPTS_MAX,
    "held": ATTEMPTS_MAX,
    "proofs": ATTEMPTS_MAX,
    "labels": LABELS_MAX,
}
#: The latest time in seconds since the epoch, some time in the year 9892.
TIME_MAX = 2.5e11
#: The longest lease and grace, a year, and the largest other number of what a node holds.
SPAN_S_MAX, NUMBER_MAX = 366 * 86_400, 2**31 - 1
_SPANS = frozenset({"lease_s", "grace_s", "saves_every_s"})
_NUMBERS = (int, float, bool, type(None))


class ExcessError(ValueError):
    """Error: a report holds more than a node may say; the message has the field and its limit."""


def bounded(request: agent_messages.SyncRequest) -> agent_messages.SyncRequest:
    """Return a report within its bounds.

    Raises:
        ExcessError: it is not one that an agent makes.
    """
    _check_count("attempts", request.attempts)
    attempts = tuple(_attempt(one) for one in request.attempts)
    for name in ("boot_id", "incarnation"):
        _check_id(name, getattr(request, name))
    if request.inventory is not None:
        size = len(msgspec.msgpack.encode(request.inventory))
        if size > INVENTORY_BYTES_MAX:
            raise ExcessError(
                f"inventory: found {size} bytes, expected at most {INVENTORY_BYTES_MAX}"
            )
    for one in request.held or ():
        _check_numbers("held", one)
    rest: agent_messages.SyncRequest = _struct("", msgspec.structs.replace(request, attempts=()))
    return msgspec.structs.replace(rest, attempts=attempts)


def _attempt(told: records.AttemptReport) -> records.AttemptReport:
    """Return a report of an attempt, of which there may be many."""
    _check_id("attempts.id", told.id)
    message, saved = told.message, told.checkpoint
    if message:
        message = task_reports.told_text(message, TEXT_CHARACTERS_MAX)
    if saved is not None and not (
        len(saved.path) <= task_reports.PATH_CHARACTERS_MAX and saved.path.isprintable()
    ):
        saved = None  # no agent tells of it, so nobody could resume from it
    times = (_time(told.started_at), _time(told.ended_at))
    ends = (task_reports.exit_code(told.exit_code), task_reports.signal_number(told.signal))
    now = (message, saved, *times, *ends)
    before = (told.message, told.checkpoint, told.started_at, told.ended_at)
    if now == (*before, told.exit_code, told.signal):
        return told
    return msgspec.structs.replace(
        told,
        message=message,
        checkpoint=saved,
        started_at=times[0],
        ended_at=times[1],
        exit_code=ends[0],
        signal=ends[1],
    )


def _time(told: float | None) -> float | None:
    """Return a time of a node's clock, or None if no clock shows it."""
    return told if told is not None and 0.0 <= told <= TIME_MAX else None


def _check_numbers(place: str, value: Any) -> None:
    """Raise if a number of what a node holds is none that a controller gives.

    A leader that takes an attempt over goes on with them: a lease without an end would be one.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        most = NUMBER_MAX if isinstance(value, int) else TIME_MAX
        if place.rpartition(".")[2] in _SPANS:
            most = SPAN_S_MAX
        if not 0 <= value <= most:
            raise ExcessError(f"{place}: found {value}, expected a number from 0 to {most:g}")
    elif isinstance(value, tuple):
        for one in value:
            _check_numbers(place, one)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _check_numbers(f"{place}.{name}", getattr(value, name))


def _check_id(place: str, text: str) -> None:
    """Raise if a text can't be an id: ids are compared, so they are never changed."""
    if len(text) > NAME_CHARACTERS_MAX or not text.isprintable():
        raise ExcessError(
            f"{place}: found {len(text)} characters, {task_reports.told_text(text, 40)!r}, "
            f"expected at most {NAME_CHARACTERS_MAX}, all of them printable"
        )


def _check_count(place: str, items: tuple[Any, ...] | dict[str, Any]) -> None:
    """Raise if a list or a map has too many items."""
    most = _ITEMS_MAX.get(place.rpartition(".")[2], ITEMS_MAX)
    if len(items) > most:
        raise ExcessError(f"{place}: found {len(items)} items, expected at most {most}")


def _value(place: str, value: Any) -> Any:
    """Return a value within its bounds; ``place`` is its path in the report."""
    if isinstance(value, str):
        return _string(place, value)
    if isinstance(value, tuple):
        _check_count(place, value)
        parts = tuple(_value(place, one) for one in value)
        same = all(after is before for after, before in zip(parts, value, strict=True))
        return value if same else parts
    if isinstance(value, dict):
        _check_count(place, value)
        return {_string(place, key): _value(place, one) for key, one in value.items()}
    return _struct(place, value) if isinstance(value, msgspec.Struct) else value


def _struct(place: str, value: Any) -> Any:
    """Return a part of a report with all its fields within their bounds."""
    changed = {}
    for name in value.__struct_fields__:
        before = getattr(value, name)
        if isinstance(before, _NUMBERS):
            continue
        after = _value(f"{place}.{name}" if place else name, before)
        if after is not before:
            changed[name] = after
    return msgspec.structs.replace(value, **changed) if changed else value


def _string(place: str, text: str) -> str:
    """Return a string without control characters.

    Raises:
        ExcessError: it is a name that is too long.
    """
    most = NAME_CHARACTERS_MAX
    if place.rpartition(".")[2] in _TEXTS:
        most = TEXT_CHARACTERS_MAX
    elif len(text) > most:
        raise ExcessError(f"{place}: found {len(text)} characters, expected at most {most}")
    if len(text) <= most and text.isprintable():
        return text
    return task_reports.told_text(text, most)
