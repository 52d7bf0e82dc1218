"""Converters that are ready before there are threads.

msgspec learns what a type looks like when the type is first decoded into, and its C code is not
made for two threads that do so at once: one of them may read what the other has half written, and
the process dies of a segmentation fault (seen with 0.22 where many people submitted at once to a
server that had just started). Whoever decodes where there are threads therefore makes a decoder
when its module is imported: ``msgspec.json.Decoder(KIND)``, ``msgspec.msgpack.Decoder(KIND)``, or
for values that are decoded already a :func:`converter`. A test looks that nobody does otherwise.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")


def converter(kind: type[_T]) -> Callable[[Any], _T]:
    """A function that makes a ``kind`` of plain values; to be made when a module is imported.

    The function raises ``msgspec.ValidationError`` for what is no such thing.
    """
    msgspec.msgpack.Decoder(kind)  # learns what there is to know of the type

    def convert(value: Any) -> _T:
        return msgspec.convert(value, kind)

    return convert
