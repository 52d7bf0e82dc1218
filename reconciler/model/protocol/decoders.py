"""Converters that exist before there are threads.

msgspec inspects a type when it is first decoded into, and its C code is not safe if two threads do
so at once: the process dies of a segmentation fault (seen with 0.22). Code that decodes beside
threads therefore makes its decoder at import: ``msgspec.json.Decoder(KIND)``,
``msgspec.msgpack.Decoder(KIND)``, or :func:`converter` for decoded values. A test holds this.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")


def converter(kind: type[_T]) -> Callable[[Any], _T]:
    """Return a function that makes a ``kind`` of plain values; call this at import.

    The function raises ``msgspec.ValidationError`` for other values.
    """
    msgspec.msgpack.Decoder(kind)  # learns what there is to know of the type

    def convert(value: Any) -> _T:
        return msgspec.convert(value, kind)

    return convert
