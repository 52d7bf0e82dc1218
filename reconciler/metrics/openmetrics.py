"""The cluster's page as OpenMetrics, the format that has exemplars, for clients that ask for it.

The loop renders one page in Prometheus' text format, in which an exemplar is a comment below its
sample. The formats differ in little more: families of counters have no ``_total`` in their name,
and the page has an end mark.
"""

import re

MEDIA_TYPE = "application/openmetrics-text"
#: How an exemplar stands in the text format.
EXEMPLAR = "# EXEMPLAR "
#: The most characters that names and values of an exemplar's labels may have together.
LABELS_MAX = 128

END = b"# EOF\n"
_FAMILY = re.compile(rb"^(# (?:HELP|TYPE) [a-z0-9_]+)_total ", re.MULTILINE)


def of(page: bytes) -> bytes:
    """Convert a page from Prometheus' text format to OpenMetrics, without the end mark."""
    page = page.replace(f"\n{EXEMPLAR}".encode(), b" # ")
    return _FAMILY.sub(rb"\1 ", page)


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
