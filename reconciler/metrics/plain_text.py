"""Converts a page from OpenMetrics to Prometheus' older text format, for clients that ask for that.

The loop renders one page, as OpenMetrics, because only that has exemplars. The older format differs
in little: families of counters are named with ``_total``, and there are no exemplars.
"""

import re

MEDIA_TYPE = "application/openmetrics-text"
#: Ends a page in OpenMetrics; pages are put together without it.
END = b"# EOF\n"
_COUNTER = re.compile(rb"^# HELP (\S+) (.*)\n# TYPE \1 counter$", re.MULTILINE)
_EXEMPLAR = re.compile(rb" # \{.*$", re.MULTILINE)


def of(page: bytes) -> bytes:
    """Convert a page, without its end mark."""
    page = _COUNTER.sub(rb"# HELP \1_total \2\n# TYPE \1_total counter", page)
    return _EXEMPLAR.sub(b"", page)


class Converted:
    """A cache of the last converted page."""

    def __init__(self) -> None:
        self._page = b""
        self._converted = b""

    def of(self, page: bytes) -> bytes:
        """Return ``page`` converted, once however often it is asked for."""
        if page is not self._page:
            self._page, self._converted = page, of(page)
        return self._converted
