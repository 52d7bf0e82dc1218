"""Reports for people and programs: columns, CSV, a picture, a page that needs nothing else.

A picture shows the largest groups as bars, one panel a question; matplotlib draws it (extra
``plots``). Numbers are shown with as many digits as mean something.
"""

import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reconciler.operations.reports import csv_text, trace_plots, usage_reports

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The most bars of a picture; what is smaller is left to the table.
BARS_MAX = 30
#: The most characters of a name beside a bar; of longer ones the middle is left out.
NAME_MAX = 60
_INK, _GRID, _FIRST, _SECOND = "#222222", "#DDDDDD", "#0072B2", "#E69F00"
TITLES = {
    "usage": "What was used",
    "waiting": "How long work waited",
    "efficiency": "How well it was used",
    "fairness": "Who got what was promised",
}
#: Of fairness among those to whom nothing is promised.
PARTS = "Who got which part"
#: Columns that a picture shows as bars, the first behind the second.
_DRAWN = {
    "usage": ("allocated", "used"),
    "waiting": ("p90", "p50"),
    "efficiency": ("allocated", "idle"),
    "fairness": ("guaranteed", "counted"),
}
#: Of fairness among those to whom nothing is promised: the second is written beside the bar only.
_DRAWN_PARTS = ("allocated", "share")
#: Names of bars, if the column's name is not enough.
_LABELS = {
    ("usage", "used"): "used (a kernel ran)",
    ("waiting", "p90"): "p90: nine of ten jobs started within",
    ("waiting", "p50"): "p50: half of them",
    ("efficiency", "idle"): "idle (measured, and no kernel ran)",
    ("fairness", "counted"): "allocated in that time",
}
#: What the axis of a picture measures, before its unit.
_AXES = {"waiting": "time from submission to start, in "}


def title(report: usage_reports.UsageReport) -> str:
    """Return the title: subject and span of a report."""
    began, ended = (text[:16].replace("T", " ") for text in (report.began, report.ended))
    head = TITLES[report.what] if _promises(report) else PARTS
    return f"{head}, {began} to {ended} UTC"


def _promises(report: usage_reports.UsageReport) -> bool:
    """Return False for a report of fairness in which nothing is guaranteed to anybody."""
    names = {column.name for column in report.columns}
    return report.what != "fairness" or "guaranteed" in names


def cell(value: usage_reports.Value, unit: str) -> str:
    """Return a value as text."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value or "-"
    if unit == "ratio":
        return f"{100 * value:.1f}%"
    if unit == "s":
        return _span(value)
    if unit in {"jobs", "attempts"}:
        return f"{value:,.0f}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.2f}"


def _span(span_s: float) -> str:
    """Return a span with at most two units."""
    if span_s < 60:
        return f"{span_s:.0f}s"
    minutes = round(span_s / 60)
    if minutes < 60:
        return f"{minutes}m"
    if minutes < 48 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    return f"{minutes // 1440}d{minutes % 1440 // 60}h"


def headings(report: usage_reports.UsageReport) -> list[str]:
    """Names of columns in capitals, with units where values don't say them."""
    shown = {"GPU-hours": " GPUh", "CPU-hours": " CPUh"}
    plain = {"s", "ratio", "jobs", "attempts", ""}
    found = []
    for column in report.columns:
        name = column.name.upper()
        unit = "" if column.unit in plain else shown.get(column.unit, f" {column.unit}")
        # CPUh of CPUs say it already
        found.append(unit.strip() if unit.startswith(f" {name}") else name + unit)
    return found


def units(report: usage_reports.UsageReport) -> str:
    """Return the units of columns whose values do not show them."""
    by_unit: dict[str, list[str]] = {}
    for column in report.columns:
        if column.unit not in {"s", "ratio", "jobs", "attempts", ""}:
            by_unit.setdefault(column.unit, []).append(column.name)
    return "; ".join(f"{', '.join(names)} in {unit}" for unit, names in by_unit.items())


def cells(report: usage_reports.UsageReport) -> list[list[str]]:
    """Rows as text."""
    return [
        [cell(value, column.unit) for value, column in zip(row, report.columns, strict=True)]
        for row in report.rows
    ]


def as_csv(report: usage_reports.UsageReport) -> str:
    """Rows of plain numbers; the heading names units."""
    units = {"GPU-hours": "gpu_hours", "CPU-hours": "cpu_hours", "s": "s", "ratio": "ratio"}
    heading = [
        column.name
        if column.unit in {"", "jobs", "attempts"}
        else f"{column.name}_{units.get(column.unit, column.unit)}"
        for column in report.columns
    ]
    rows = [
        [_plain(value, column.unit) for value, column in zip(row, report.columns, strict=True)]
        for row in report.rows
    ]
    return csv_text.csv_text([heading, *rows])


def _plain(value: usage_reports.Value, unit: str) -> str | float:
    """Return a value for programs: counts without a point, nothing if unknown."""
    if value is None:
        return ""
    return int(value) if unit in {"jobs", "attempts"} else value


def png(report: usage_reports.UsageReport) -> bytes:
    """Return the plot as PNG.

    Raises:
        PicturesMissingError: there is no matplotlib.
    """
    buffer = io.BytesIO()
    _draw(report, buffer, "png")
    return buffer.getvalue()


def page(report: usage_reports.UsageReport) -> str:
    """Return an HTML page with plot and table.

    Raises:
        PicturesMissingError: there is no matplotlib.
    """
    buffer = io.BytesIO()
    _draw(report, buffer, "svg")
    drawing = buffer.getvalue().decode()
    head = _line("th", headings(report), len(report.by))
    rows = "".join(_line("td", row, len(report.by)) for row in cells(report))
    return trace_plots.frame(
        title(report),
        drawing[drawing.index("<svg") :],
        f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>",
    )


def _line(tag: str, texts: Sequence[str], names: int) -> str:
    """Return a line of a table; the first ``names`` columns are words, aligned to the left."""
    found = [
        f'<{tag} class="{"word" if position < names else "number"}">{html.escape(text)}</{tag}>'
        for position, text in enumerate(texts)
    ]
    return f"<tr>{''.join(found)}</tr>"


def _draw(report: usage_reports.UsageReport, to: io.BytesIO, form: str) -> None:
    trace_plots.require()
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to load

    positions = {column.name: place for place, column in enumerate(report.columns)}
    names_drawn = _DRAWN[report.what] if _promises(report) else _DRAWN_PARTS
    behind, before = (positions[name] for name in names_drawn)
    rows = _largest(report.rows, behind, before)
    names = [
        _short(" / ".join(cell(value, "") for value in row[: len(report.by)]) or "all")
        for row in rows
    ]
    figure = Figure(figsize=(9, 1.5 + 0.42 * max(3, len(rows))), layout="constrained")
    axes = figure.subplots()
    _bars(axes, names, report, rows, (behind, before))
    left_out = len(report.rows) - len(rows)
    note = f"the {BARS_MAX} largest of {len(report.rows)}" if left_out else ""
    whole = f"{title(report)} ({note})" if note else title(report)
    head = whole if form == "png" else note  # a page has a title of its own
    if head:
        figure.suptitle(head, x=0.01, ha="left", fontsize=12, color=_INK)
    hidden = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
    figure.savefig(to, format=form, dpi=150, metadata=hidden)


def _largest(
    rows: Sequence[tuple[usage_reports.Value, ...]], *columns: int
) -> list[tuple[usage_reports.Value, ...]]:
    """Return the rows that fit into a plot, those with the longest bars, in the report's order."""
    ranked = sorted(rows, key=lambda row: -max(float(row[one] or 0) for one in columns))
    chosen = {id(row) for row in ranked[:BARS_MAX]}
    return [row for row in rows if id(row) in chosen]


def _scale(unit: str, most: float) -> tuple[float, str]:
    """By what bars are divided that are at most so long, and the unit of what comes out."""
    if unit != "s":
        return 1.0, unit
    spans = ((2 * 86_400, 86_400, "days"), (7200, 3600, "hours"), (120, 60, "minutes"))
    return next(((size, name) for least, size, name in spans if most >= least), (1.0, "seconds"))


def _bars(
    axes: "Axes",
    names: Sequence[str],
    report: usage_reports.UsageReport,
    rows: Sequence[tuple[usage_reports.Value, ...]],
    columns: tuple[int, int],
) -> None:
    """Draw a bar per group for each column of the first column's unit, the first group on top.

    The values of all columns are beside the bars.
    """
    places = list(range(len(names)))[::-1]
    units = {column: report.columns[column].unit for column in columns}
    unit = units[columns[0]]
    drawn = [column for column in columns if units[column] == unit]
    longest = max((float(row[one] or 0) for row in rows for one in drawn), default=0.0)
    scale, shown = _scale(unit, longest)
    for column, colour, height in zip(drawn, (_FIRST, _SECOND), (0.75, 0.4), strict=False):
        values: list[Any] = [float(row[column] or 0) / scale for row in rows]
        name = report.columns[column].name
        label = _LABELS.get((report.what, name), name)
        if len(drawn) < len(columns):
            label += " (beside it: part of everything allocated)"
        axes.barh(places, values, height, color=colour, label=label)
    ends = [max(float(row[column] or 0) for column in drawn) / scale for row in rows]
    most = longest / scale
    for place, row, end in zip(places, rows, ends, strict=True):
        text = " / ".join(cell(row[column], units[column]) for column in columns)
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # lines end before it
        axes.text(end + 0.01 * most, place, text, va="center", fontsize=9, color=_INK, bbox=behind)
    axes.set_yticks(places, names, fontsize=9)
    axes.set_xlim(0, 1.25 * most or 1)  # with room for the figures behind the longest bar
    axes.set_ylim(-0.6, max(0.6, len(names) - 0.4))
    if longest:
        axes.set_xlabel(_AXES.get(report.what, "") + shown)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.grid(axis="x", color=_GRID)
    else:
        axes.set_xticks([])  # of nothing there is no scale
        axes.spines["bottom"].set_visible(False)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    if rows:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=9)
    else:
        axes.text(0.5, 0.5, "nothing in this span", ha="center", transform=axes.transAxes)


def _short(name: str) -> str:
    """Return a name that leaves room for its bar: its end distinguishes it."""
    half = (NAME_MAX - 1) // 2
    return name if len(name) <= NAME_MAX else f"{name[:half]}…{name[-half:]}"
