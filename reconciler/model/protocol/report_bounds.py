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
_ITEMS_MAX = {"attempts": ATTEMPTS_MAX, "held": ATTEMPTS_MAX, "labels": LABELS_MAX}
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
    if message == told.message and saved is told.checkpoint:
        return told
    return msgspec.structs.replace(told, message=message, checkpoint=saved)


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
