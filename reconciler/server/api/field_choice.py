"""The parameter ``fields`` of lists: their items with the fields that somebody asked for alone.

An envelope and names come in; the envelope goes out with items of which nothing else is encoded.
What tells one item from another is always there.
"""

import functools
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from litestar.params import Parameter

from reconciler.model.protocol import loop_messages
from reconciler.model.values import found_values, suggestions
from reconciler.server import errors
from reconciler.server.api import envelopes

Fields = Annotated[
    str | None,
    Parameter(
        max_length=1000,
        pattern=r"^[^\x00]*$",
        description="Names of fields, with commas between them: items have these alone.",
    ),
]
#: The fields that tell items from each other, as Python has them, by the class of the items.
IDENTITY: Mapping[str, tuple[str, ...]] = {
    "AccessView": ("number",),
    "AttemptRow": ("attempt",),
    "DriftView": ("kind", "subject"),
    "EntryView": ("number",),
    "EventView": ("sequence",),
    "JobView": ("name", "run"),
    "NodeView": ("name",),
    "OverrideView": ("verb", "subject"),
    "PoolView": ("name",),
    "QueueView": ("name",),
    "QuotaView": ("name",),
    "ReaderView": ("identity", "job", "task", "stream"),
    "ReservationView": ("name",),
    "SubscriptionView": ("name",),
}
_Envelope = TypeVar("_Envelope", bound=envelopes.Envelope)


def only(envelope: _Envelope, fields: str | None) -> _Envelope:
    """Return a list with the fields that are asked for; None: with all.

    Raises:
        Failure: 400, there is no such field.
    """
    if fields is None:
        return envelope
    wanted = _wanted(type(envelope), fields)
    items = [
        {
            shown: value
            for shown, name in wanted
            if (value := getattr(one, name)) is not msgspec.UNSET
        }
        for one in items_of(envelope)
    ]
    return msgspec.structs.replace(envelope, items=items)


def check(kind: type[envelopes.Envelope], fields: str | None) -> None:
    """Raise Failure if there is no such field in the items of a list."""
    if fields is not None:
        _wanted(kind, fields)


def items_of(envelope: Any) -> list[Any]:
    """Return the items of a list."""
    found: list[Any] = envelope.items
    return found


def listed(
    kind: type[_Envelope],
    items: Sequence[msgspec.Struct],
    published: loop_messages.Published | None,
    fields: str | None,
) -> _Envelope:
    """Return a list of one page, with the fields that are asked for.

    Raises:
        Failure: 400, there is no such field.
    """
    values: dict[str, Any] = {"items": items, **envelopes.head(published)}
    return only(kind(**values), fields)


def has(fields: str | None, name: str) -> bool:
    """Return True if a field, as JSON has it, is to be shown."""
    return fields is None or name in _names(fields)


def _names(fields: str) -> list[str]:
    return [name.strip() for name in fields.split(",")]


@functools.lru_cache(maxsize=256)
def _wanted(kind: type[envelopes.Envelope], fields: str) -> tuple[tuple[str, str], ...]:
    """Return the fields that are asked for, as JSON and as Python has them, in their order.

    Raises:
        Failure: 400, there is no such field.
    """
    item = item_of(kind)
    known = dict(zip(item.__struct_encode_fields__, item.__struct_fields__, strict=True))
    asked = frozenset(_names(fields))
    unknown = sorted(asked - known.keys())
    if unknown:
        raise errors.Failure(
            400,
            f"fields: found {found_values.quote(unknown[0])}, expected some of "
            f"{', '.join(known)}{suggestions.hint(unknown[0], known)}",
        )
    identity = IDENTITY[item.__name__]
    return tuple(
        (shown, name) for shown, name in known.items() if shown in asked or name in identity
    )


def item_of(kind: type[envelopes.Envelope]) -> Any:
    """Return the type of the items of a list."""
    return typing.get_args(typing.get_type_hints(kind)["items"])[0]
