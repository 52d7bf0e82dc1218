"""Log lines of the controller's processes on standard error.

``ReadableFormatter`` turns records of Python's loggers into lines; the fields of a line are the
record's ``extra``. Events of a cycle are many, so one write a cycle prints them all, past the
loggers, in the same format.
"""

import logging
import sys
from collections.abc import Iterable
from typing import TextIO

from reconciler.model.state import events
from reconciler.model.values import log_lines

#: Names under which ``extra`` may say what a message is of.
FIELDS = ("event", "revision", "cycle", "job", "node", "pool", "attempt", "path")


class ReadableFormatter(logging.Formatter):
    """Makes one line of each record, exceptions included."""

    def __init__(self, form: str, source: str) -> None:
        super().__init__()
        self._form, self._source = form, source

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields = {name: getattr(record, name, "") for name in FIELDS}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return log_lines.line(
            self._form,
            record.created,
            self._source,
            record.getMessage(),
            level=record.levelname,
            fields=fields,
        )


class EventLines:
    """Writes what happened in cycles, a line an event."""

    def __init__(self, form: str, source: str, stream: TextIO) -> None:
        self._form, self._source, self._stream = form, source, stream

    def write(self, happened: Iterable[events.Event], *, cycle: int, revision: str) -> None:
        """One write for all of them; a stream that nobody reads any more is left alone."""
        lines = [
            log_lines.line(
                self._form,
                event.at,
                self._source,
                events.words(event),
                level="INFO",
                fields={
                    "event": event.kind,
                    "job": event.job,
                    "node": event.node,
                    "attempt": event.attempt,
                    "cycle": cycle,
                    "revision": revision,
                },
            )
            for event in happened
        ]
        if not lines:
            return
        try:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return


def configure(form: str, level: str, source: str) -> EventLines | None:
    """Send all loggers to standard error; what writes events, None where the level leaves them out.

    Args:
        form: one of ``log_lines.FORMS``.
        level: one of ``log_lines.LEVELS``; below it nothing is written.
        source: who says it, such as ``loop``.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ReadableFormatter(form, source))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    # a line for each request would tell the addresses of webhooks, which may be secrets
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if logging.getLogger().level > logging.INFO:
        return None
    return EventLines(form, source, sys.stderr)
