"""Log lines, one for each event, for people and for programs that collect logs.

A line has a time, a level, a source, a message, and fields that name its subject. Text from
elsewhere cannot begin a line of its own, because control characters are escaped.
"""

import json
from collections.abc import Mapping

from reconciler.model.values import times

FORMS = ("readable", "json")
LEVELS = ("debug", "info", "warning", "error")

#: Control characters, and the two separators that some readers take for ends of lines.
#: Those of the second set of control characters, and what turns the direction of text.
_ENDS = (
    *range(127, 160),
    0x2028,
    0x2029,
    0x200E,
    0x200F,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)
_ESCAPES = {code: repr(chr(code))[1:-1] for code in (*range(32), *_ENDS)}
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _ENDS}


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
