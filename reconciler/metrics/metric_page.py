"""A page of metrics, rendered by ``prometheus_client``: a collector over the table of metrics.

Samples go in by the names of the table; OpenMetrics text comes out. A metric that is not in the
table cannot be put on a page.
"""

import itertools
import math
from collections.abc import Iterator

from prometheus_client.core import Exemplar, Metric, Sample
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector

from reconciler.metrics.counters import Histogram
from reconciler.metrics.plain_text import END
from reconciler.model.metrics import metric_table

#: The label of an exemplar, and how long its value may be: OpenMetrics allows 128 characters.
_JOB = "job_name"
_JOB_CHARACTERS_MAX = 128 - len(_JOB)


class MetricPage(Collector):
    """Families of one page in the order of the table, with samples in the order of addition."""

    def __init__(self, page: metric_table.Page) -> None:
        self._families = {
            name: Metric(name.removesuffix("_total"), series.help, series.kind)
            for name, series in metric_table.TABLE.items()
            if series.page == page
        }

    def put(self, name: str, value: float, *values: str) -> None:
        """Add a sample, with the values of its labels in the order of the table."""
        labels = dict(zip(metric_table.TABLE[name].labels, values, strict=True))
        self._families[name].samples.append(Sample(name, labels, value))

    def put_histogram(self, name: str, histogram: Histogram, *values: str) -> None:
        """Add buckets, sum and count, with one job of each bucket as exemplar if jobs are known."""
        labels = dict(zip(metric_table.TABLE[name].labels, values, strict=True))
        samples = self._families[name].samples
        bounds = (*histogram.bounds, math.inf)
        counts = itertools.accumulate(histogram.counts)
        for bucket, (bound, count) in enumerate(zip(bounds, counts, strict=True)):
            shown = "+Inf" if bound == math.inf else repr(float(bound))
            seen = histogram.exemplars.get(bucket)
            exemplar = None
            if seen is not None and len(seen.job) <= _JOB_CHARACTERS_MAX:
                exemplar = Exemplar({_JOB: seen.job}, seen.value, seen.at)
            named = labels | {"le": shown}
            samples.append(Sample(f"{name}_bucket", named, count, None, exemplar))
        samples.append(Sample(f"{name}_sum", labels, histogram.total))
        samples.append(Sample(f"{name}_count", labels, sum(histogram.counts)))

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples."""
        return (family for family in self._families.values() if family.samples)

    def render(self) -> bytes:
        """Return the page as OpenMetrics, without the end mark."""
        rendered: bytes = generate_latest(self)  # type: ignore[no-untyped-call]
        return rendered.removesuffix(END)
