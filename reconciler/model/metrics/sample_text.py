"""A page in Prometheus' text format, made of metrics that are in the table and no others."""

import math
from collections.abc import Iterable

from reconciler.model.metrics import metric_table


class SampleText:
    """Samples of a page: metrics in the order of the table, samples in the order of addition."""

    def __init__(self, page: metric_table.Page) -> None:
        self._samples: dict[str, list[str]] = {
            name: [] for name, series in metric_table.TABLE.items() if series.page == page
        }

    def put(self, name: str, value: float, *values: str) -> None:
        """Add a sample, with the values of its labels in the order of the table."""
        shown = labels(zip(metric_table.TABLE[name].labels, values, strict=True))
        self._samples[name].append(f"{name}{shown} {number(value)}")

    def render(self) -> bytes:
        """Return the page in Prometheus' text format."""
        lines = []
        for name, samples in self._samples.items():
            if samples:
                series = metric_table.TABLE[name]
                lines += [f"# HELP {name} {series.help}", f"# TYPE {name} {series.kind}", *samples]
        return ("\n".join(lines) + "\n").encode()


def labels(pairs: Iterable[tuple[str, str]]) -> str:
    """Render label names and values in braces; return an empty text for none."""
    parts = []
    for name, value in pairs:
        safe = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
        parts.append(f'{name}="{safe}"')
    return "{" + ",".join(parts) + "}" if parts else ""


def number(value: float) -> str:
    """Render a value."""
    if value == math.inf:
        return "+Inf"
    if not math.isfinite(value):
        return "-Inf" if value < 0 else "NaN"
    return str(int(value)) if value == int(value) else repr(float(value))
