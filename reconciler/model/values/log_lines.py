"""Log lines, one for each event, for people and for programs that collect logs.

A line has a time, a level, a source, a message, and fields that name its subject. Text from
elsewhere cannot begin a line of its own, because control characters are escaped.
"""

import json
from collections.abc import Mapping

from reconciler.model.values import times

FORMS = ("readable", "json")
LEVELS = ("debug", "info", "warning", "error")

#: Characters beside those below 32 that control what shows them, or that can't be seen: DEL and the
#: second set of control characters; what turns the direction of text; separators that some readers
#: take for ends of lines; what has no width or marks other characters. Joiners stay, and
#: places where words may be broken.
_CONTROLS = (
    *range(0x7F, 0xA0),
    0xAD,
    0x61C,
    *(0x200E, 0x200F),
    *range(0x2028, 0x202F),
    *range(0x2060, 0x2070),
    0xFEFF,
    *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080),
)
#: Halves of characters, by which Python keeps bytes of file names that are no text.
_HALVES = range(0xD800, 0xE000)
_ESCAPES = {code: repr(chr(code))[1:-1] for code in (*range(32), *_CONTROLS, *_HALVES)}
_JSON_ESCAPES = {
    code: json.dumps(chr(code))[1:-1] if code > 0x7F else "\\u007f"
    for code in (*_CONTROLS, *_HALVES)
}


def escape(text: str) -> str:
    """Return the text on one line."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def escape_json(text: str) -> str:
    """Return JSON without characters that control a terminal; it says the same."""
    return text.translate(_JSON_ESCAPES)


def line(
    form: str, at: float, source: str, message: str, *, level: str, fields: Mapping[str, object]
) -> str:
    """Format a line, without its end.

    Args:
        form: one of ``FORMS``.
        at: seconds since the epoch.
        source: process or part that writes it.
        message: for people; of any shape.
        level: in capitals, such as ``INFO``.
        fields: its subject, such as ``job`` and ``node``; empty ones are left out.
    """
    told = {name: value for name, value in fields.items() if value is not None and value != ""}
    if form == "json":
        head = {"time": times.format_time(at), "level": level, "source": source}
        return _json(head | told | {"message": message})
    parts = "".join(f" {name}={_value(value)}" for name, value in told.items())
    return f"{times.format_time(at)} {level:<7} {source}: {escape(message)}{parts}"


def _value(value: object) -> str:
    """Return a value without blanks as it is, any other in quotes."""
    text = str(value)
    if " " in text or '"' in text or "=" in text or not text.isprintable():
        return _json(text)
    return text


def _json(value: object) -> str:
    return escape_json(json.dumps(value, ensure_ascii=False, default=str))
