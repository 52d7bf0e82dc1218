"""Plots of simulated runs by matplotlib (extra ``plots``): waiting, slowdown, usage, a Gantt chart.

A PNG and the SVG of an HTML page are the same drawing.
"""

import html
import importlib.util
import io
import textwrap
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from reconciler.model.values import times
from reconciler.operations.reports import plot_text
from reconciler.simulation.traces import trace_results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The most bars of a Gantt chart: the largest.
BARS_MAX = 20_000
#: The most nodes of a Gantt chart: the first ones.
NODES_MAX = 128
#: Number of intervals over which usage is averaged.
PIECES = 400
#: More waiting work than so many clusters gets its own scale, to keep usage visible.
WAITING_SHOWN = 3
#: The most queues with a colour; the others share grey.
QUEUES_MAX = 9
#: Colours for people with colour blindness (Okabe and Ito), and grey for the rest.
COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D31", "#6A51A3",
    "#B8A800",
)  # fmt: skip
#: Dashes and hatches, for readers without colours.
DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1.2)), (0, (6, 1, 1, 1, 1, 1)))
HATCHES = ("", "///", "...", "\\\\\\", "xx", "--", "oo", "||", "++")
_HATCH_INK = "#FFFFFFB0"
_GANTT_INCHES = 4.3  # approximate height of all rows of nodes
#: Bars thinner than this have neither hatch nor edge, which would hide them.
_THIN_DOTS = 5
#: The most characters of a title's line, of a name, and of legends beside and below a title.
TITLE_MAX, _NAME_MAX, _BESIDE_MAX, _LINE_MAX = 95, 30, 75, 120
#: Units by their word in results.
_UNITS = {"gpu": "GPUs", "cpu": "CPUs"}
_OTHERS, _INK, _GRID = "#B0B0B0", "#222222", "#DDDDDD"
_DPI = 150
#: Time is shown until less than this share of the cluster is in use and no jobs arrive.
_SHOWN = 0.05


class PicturesMissingError(RuntimeError):
    """Error: matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "pictures need matplotlib, which is not installed. To fix: pip install '.[plots]' in a "
            "checkout, or pip install matplotlib"
        )


def require() -> None:
    """Check, before anything is run, that pictures can be drawn.

    Raises:
        PicturesMissingError: there is no matplotlib.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise PicturesMissingError


def png(runs: Sequence[trace_results.Run], title: str) -> bytes:
    """Return the plot as PNG.

    Raises:
        PicturesMissingError: there is no matplotlib.
    """
    buffer = io.BytesIO()
    with _drawn(runs, title) as figure:
        figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    return buffer.getvalue()


def page(runs: Sequence[trace_results.Run], title: str) -> str:
    """Return a self-contained page: the plot as inline SVG, and the figures as a table.

    Raises:
        PicturesMissingError: there is no matplotlib.
    """
    buffer = io.StringIO()
    with _drawn(runs, "") as figure:
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    drawing = buffer.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    return frame(title, _table(runs), drawing)


def frame(title: str, *parts: str) -> str:
    """Return a page of a title and, in this order, tables and drawings as HTML."""
    body = "\n".join(f'<div class="wide">{part}</div>' for part in parts)
    shown = "".join(one if one.isprintable() else "\ufffd" for one in title)
    return _PAGE.format(title=html.escape(shown), body=body)


_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 80rem;
  padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; }}
.wide {{ overflow-x: auto; margin-bottom: 1.5rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child, .word {{ text-align: left; }}
svg {{ max-width: 100%; height: auto; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""

_COLUMNS: tuple[tuple[str, str, str | Callable[[float], str]], ...] = (
    ("policy", "policy", "{}"),
    ("jobs", "jobs", "{:,}"),
    ("never_started", "never started", "{:,}"),
    ("delay_mean_s", "delay, mean", times.format_span),
    ("delay_p50_s", "p50", times.format_span),
    ("delay_p99_s", "p99", times.format_span),
    ("slowdown_mean", "bounded slowdown, mean", "{:,.2f}"),
    ("slowdown_p99", "p99", "{:,.1f}"),
    ("utilisation", "utilisation", "{:.1%}"),
    ("fairness", "fairness", "{:.2f}"),
    ("shortfall", "below guarantee", "{:.2%}"),
    ("evictions", "evictions", "{:,}"),
)


def _told(form: str | Callable[[float], str], value: Any) -> str:
    return form.format(value) if isinstance(form, str) else form(value)


def _table(runs: Sequence[trace_results.Run]) -> str:
    heads = "".join(f"<th>{head}</th>" for _, head, _ in _COLUMNS)
    lines = []
    for run in runs:
        found = trace_results.figures(run)
        cells = (html.escape(_told(form, getattr(found, field))) for field, _, form in _COLUMNS)
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


@contextmanager
def _drawn(runs: Sequence[trace_results.Run], title: str) -> Iterator["Figure"]:
    """Return the figure, in the style in which it is to be saved."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra that most never need
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise PicturesMissingError from error
    style: Any = {
        "font.size": 9,
        "axes.edgecolor": _INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.axisbelow": True,
        "svg.hashsalt": "muster",
        "svg.fonttype": "none",
    }
    with mpl.rc_context(style):
        figure = Figure(layout="constrained")
        _compose(figure, runs, title)
        yield figure


def _compose(figure: "Figure", runs: Sequence[trace_results.Run], title: str) -> None:
    """Draw all parts: distributions, usage, shares, and the nodes if known."""
    first = runs[0]
    # beside GPUs, work without any has no lanes
    placed = any(stretch.node and stretch.units for stretch in first.stretches)
    rows = 4 if placed else 3
    heights = [1.0, 1.0, 1.0, 1.6][:rows]
    figure.set_size_inches(11, 3.1 * sum(heights))
    if title:  # a page has one of its own
        shown = textwrap.fill(plot_text.plain(title), TITLE_MAX)
        figure.suptitle(shown, x=0.01, ha="left", fontsize=13)
    grid = figure.add_gridspec(rows, 2, height_ratios=heights)
    _distribution(
        figure.add_subplot(grid[0, 0]),
        {run.policy: [d for job in run.jobs if (d := job.delay_s) is not None] for run in runs},
        "Queueing delay: share of jobs that started within",
        least=1.0,
        time=True,
    )
    _distribution(
        figure.add_subplot(grid[0, 1]),
        {
            run.policy: [s for job in run.jobs if (s := job.bounded_slowdown) is not None]
            for run in runs
        },
        "Bounded slowdown: share of jobs with at most",
        least=1.0,
        time=False,
    )
    span_s = _span_s(runs)
    scale = _scale(span_s)
    _use(figure.add_subplot(grid[1, :]), runs, span_s, scale)
    _shares(figure.add_subplot(grid[2, :]), first, span_s, scale)
    if placed:
        _gantt(figure.add_subplot(grid[3, :]), first, span_s, scale)


def _span_s(runs: Sequence[trace_results.Run]) -> float:
    """Return the time to show: until little is running any more."""
    latest = 1.0
    for run in runs:
        used = trace_results.used(run)
        busy = np.flatnonzero(used.values >= _SHOWN * run.units)
        if len(busy):
            latest = max(latest, float(used.times[min(busy[-1] + 1, len(used.times) - 1)]))
        latest = max(latest, max((job.submit_s for job in run.jobs), default=0.0))
    return latest * 1.02


def _scale(span_s: float) -> tuple[float, str]:
    """Return the seconds of the unit for a span, and its name."""
    for size, name in ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if span_s >= 3 * size:
            return size, name
    return 1.0, "seconds"


#: Marks of logarithmic axes, and their labels.
_TIMES = {1: "≤1s", 10: "10s", 60: "1m", 600: "10m", 3600: "1h", 6 * 3600: "6h",
          86_400: "1d", 7 * 86_400: "7d", 30 * 86_400: "30d"}  # fmt: skip
_MARKS_MAX = 9
_NUMBERS = {step * 10**power: f"{step * 10**power:,}" for power in range(7) for step in (1, 2, 5)}


def _looks() -> Iterator[dict[str, Any]]:
    """Colour and dashes of one line after another, so that each differs in both from the next."""
    yield from (
        {"color": colour, "linestyle": DASHES[place % len(DASHES)]}
        for place, colour in enumerate(COLOURS * 3)
    )


def _distribution(
    axes: "Axes", values: dict[str, list[float]], title: str, *, least: float, time: bool
) -> None:
    axes.set_title(title)
    most = max((max(found) for found in values.values() if found), default=least)
    edge = max(60.0 if time else 10.0, most * 1.25)
    for look, (name, found) in zip(_looks(), values.items(), strict=False):
        if not found:
            continue
        ordered = np.sort(np.maximum(np.array(found), least))
        shares = np.arange(1, len(ordered) + 1) / len(ordered)
        keep = np.unique(np.concatenate([np.linspace(0, len(ordered) - 1, 2000).astype(int)]))
        # from nobody on, and to the edge: also where all have the same value there is a line
        at = np.concatenate([[least], ordered[keep], [edge]])
        height = np.concatenate([[0.0], shares[keep], [1.0]])
        axes.step(at, height, where="post", label=name, linewidth=1.6, **look)
    if not any(values.values()):
        _say(axes, "no job started" if time else "no job ended")
    axes.set_xscale("log")
    axes.set_xlim(least, edge)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    marks = _TIMES if time else _NUMBERS
    shown = [mark for mark in marks if mark <= edge]
    if len(shown) > _MARKS_MAX and not time:  # only the powers of ten, or they touch
        shown = shown[::3]
    axes.set_xticks(shown, [marks[mark] for mark in shown])
    axes.minorticks_off()
    axes.grid(color=_GRID, linewidth=0.6)
    if len(values) > 1:
        axes.legend(frameon=False, loc="lower right")


def _say(axes: "Axes", text: str) -> None:
    """Draw why a part of the plot is empty."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#666666")


def _legend_above(axes: "Axes") -> None:
    """Beside the title where there is room for it in one line, else in lines below the title."""
    handles, names = axes.get_legend_handles_labels()
    widths = [len(name) + 6 for name in names]
    columns = len(names)
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0)}
    if sum(widths) > _BESIDE_MAX:
        columns = max(1, min(len(names), _LINE_MAX // max(widths)))
        lines = -(-len(names) // columns)
        place = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0)}
        axes.set_title(axes.get_title(loc="left"), pad=8 + 13 * lines)
    axes.legend(
        handles, names, frameon=False, ncols=columns, fontsize=8, borderpad=0, columnspacing=1.2,
        handlelength=1.4, **place,
    )  # fmt: skip


def _averages(steps: trace_results.StepSeries, edges: Any) -> Any:
    """Mean of an amount over each piece between two edges."""
    if not len(steps.times):
        return np.zeros(len(edges) - 1)
    moments = np.unique(np.concatenate([edges, steps.times]))
    area = np.concatenate([[0.0], np.cumsum(steps.at(moments[:-1]) * np.diff(moments))])
    return np.diff(np.interp(edges, moments, area)) / np.diff(edges)


def _use(
    axes: "Axes", runs: Sequence[trace_results.Run], span_s: float, scale: tuple[float, str]
) -> None:
    axes.set_title(f"Share of the {_UNITS[runs[0].unit]} in use")
    edges = np.linspace(0, span_s, PIECES + 1)
    for look, run in zip(_looks(), runs, strict=False):
        share = _averages(trace_results.used(run), edges) / (run.units or 1)
        axes.stairs(share, edges / scale[0], linewidth=1.3, label=run.policy, **look)
    axes.set_ylim(0, 1.05)
    axes.set_xlim(0, span_s / scale[0])
    axes.set_xlabel(f"{scale[1]} from the first submission on")
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.grid(color=_GRID, linewidth=0.6)
    if not any(stretch.units for run in runs for stretch in run.stretches):
        _say(axes, "nothing ran")
    if len(runs) > 1:
        _legend_above(axes)


def _short(name: str) -> str:
    """Return a name that fits into a legend: beginning and end of a long one."""
    half = _NAME_MAX // 2
    return name if len(name) <= _NAME_MAX else f"{name[:half]}…{name[1 - half :]}"


def queue_colours(run: trace_results.Run) -> dict[str, str]:
    """Return a colour for each queue: one of its own for those with the most work, else grey."""
    work: dict[str, float] = {}
    for stretch in run.stretches:
        amount = stretch.units * (stretch.end_s - stretch.begin_s)
        work[stretch.queue] = work.get(stretch.queue, 0.0) + amount
    ranked = sorted(work, key=lambda queue: (-work[queue], queue))
    own = dict(zip(ranked, COLOURS[:QUEUES_MAX], strict=False))
    return {queue: own.get(queue, _OTHERS) for queue in ranked}


def hatch_of(colour: str) -> str:
    """Return the hatch that goes with a queue's colour; grey queues have none."""
    return HATCHES[COLOURS.index(colour)] if colour in COLOURS else ""


def _shares(axes: "Axes", run: trace_results.Run, span_s: float, scale: tuple[float, str]) -> None:
    unit = _UNITS[run.unit]
    axes.set_title(f"{unit} in use by queue ({run.policy}), of {run.units:,.10g}")
    edges = np.linspace(0, span_s, PIECES + 1)
    colours = queue_colours(run)
    floor = np.zeros(PIECES)
    others: Any = np.zeros(PIECES)
    for queue, colour in colours.items():
        amount = _averages(trace_results.used(run, queue), edges)
        if colour == _OTHERS:
            others = others + amount
            continue
        axes.stairs(floor + amount, edges / scale[0], baseline=floor, fill=True, facecolor=colour,
                    edgecolor=_HATCH_INK, linewidth=0, hatch=hatch_of(colour),
                    label=plot_text.plain(_short(queue)))  # fmt: skip
        floor = floor + amount
    if others.any():
        axes.stairs(floor + others, edges / scale[0], baseline=floor, fill=True, color=_OTHERS,
                    label="others")  # fmt: skip
    axes.axhline(run.units, color=_INK, linewidth=0.8)
    most = _waits(axes, run, edges, scale[0])
    axes.set_ylim(0, max(run.units * 1.1, most * 1.05))
    axes.set_xlim(0, span_s / scale[0])
    axes.set_xlabel(f"{scale[1]} from the first submission on")
    axes.grid(color=_GRID, linewidth=0.6)
    axes.yaxis.set_major_formatter(lambda amount, _: f"{amount:,.6g}")
    _legend_above(axes)


def _waits(axes: "Axes", run: trace_results.Run, edges: Any, unit_s: float) -> float:
    """Draw how much waits; its most, or 0 where it has a scale of its own."""
    waiting = _averages(trace_results.waiting(run), edges)
    most = float(waiting.max(initial=0.0))
    line: dict[str, Any] = {"color": _INK, "linewidth": 1.0, "linestyle": ":"}
    if most <= run.units * WAITING_SHOWN * (1 + 1e-9):  # it is an average of sums
        axes.stairs(waiting, edges / unit_s, label="waiting", **line)
        return most
    own = axes.twinx()
    own.stairs(waiting, edges / unit_s, **line)
    own.set_ylim(0, most * 1.05)
    own.spines["right"].set_visible(True)
    own.spines["right"].set_linestyle(":")
    own.yaxis.set_major_formatter(lambda amount, _: f"{amount:,.6g}")
    label = f"waiting (up to {most:,.0f} {_UNITS[run.unit]}, scale at the right)"
    axes.plot([], [], label=label, **line)
    return 0.0


def _gantt(axes: "Axes", run: trace_results.Run, span_s: float, scale: tuple[float, str]) -> None:
    from matplotlib.collections import PolyCollection  # noqa: PLC0415

    shown = [stretch for stretch in run.stretches if stretch.units]
    every = sorted({stretch.node for stretch in shown})
    nodes = every[:NODES_MAX]
    row_of = {node: row for row, node in enumerate(nodes)}
    bars = [stretch for stretch in shown if stretch.node in row_of]
    bars.sort(key=lambda s: s.units * (s.end_s - s.begin_s), reverse=True)
    title = f"What runs on which node ({run.policy}; colours and hatches as above)"
    if len(every) > NODES_MAX:
        title += f"; the first {NODES_MAX} of {len(every):,} nodes"
    if len(bars) > BARS_MAX:
        title += f"; the {BARS_MAX:,} largest of {len(bars):,} stretches"
        bars = bars[:BARS_MAX]
    if len(shown) < len(run.stretches):
        title += f"; work without {_UNITS[run.unit]} is left out"
    if any(bar.evicted for bar in bars):
        title += "; crosses mark evictions"
    axes.set_title(textwrap.fill(title, _LINE_MAX))
    colours = queue_colours(run)
    lanes = lanes_of(bars)
    widths: dict[str, float] = {}
    for stretch, runs in zip(bars, lanes, strict=True):
        widths[stretch.node] = max(widths.get(stretch.node, 1), runs[-1][1])
    row_dots = _GANTT_INCHES * _DPI / max(1, len(nodes))
    drawn: dict[tuple[str, bool], tuple[list[Any], list[Any]]] = {}
    crosses: list[tuple[float, float]] = []
    for stretch, runs in zip(bars, lanes, strict=True):
        left, right = stretch.begin_s / scale[0], stretch.end_s / scale[0]
        shade = 0.75 + 0.25 * (zlib.crc32(stretch.job.encode()) % 100) / 100
        for first, behind in runs:
            low, high = (
                row_of[stretch.node] - 0.45 + 0.9 * lane / widths[stretch.node]
                for lane in (first, behind)
            )
            thin = (high - low) * row_dots < _THIN_DOTS
            hatch = "" if thin else hatch_of(colours[stretch.queue])
            shapes, faces = drawn.setdefault((hatch, thin), ([], []))
            shapes.append([(left, low), (right, low), (right, high), (left, high)])
            faces.append((colours[stretch.queue], shade))
            if stretch.evicted and first == runs[0][0]:
                crosses.append((right, (low + high) / 2))
    for (hatch, thin), (shapes, faces) in drawn.items():
        axes.add_collection(
            PolyCollection(
                shapes, facecolors=faces, edgecolors="white", linewidths=0 if thin else 0.15,
                rasterized=True, hatch=hatch or None,
            )
        )  # fmt: skip
    axes.plot([at for at, _ in crosses], [height for _, height in crosses],
              linestyle="", marker="x", markersize=5, markeredgewidth=1.4, color=_INK)  # fmt: skip
    axes.set_xlim(0, span_s / scale[0])
    axes.set_ylim(len(nodes) - 0.5, -0.5)
    step = max(1, len(nodes) // 16)
    names = [plot_text.plain(node) for node in nodes[::step]]
    axes.set_yticks(range(0, len(nodes), step), names, fontsize=7)
    axes.set_xlabel(f"{scale[1]} from the first submission on")


def lanes_of(bars: Sequence[trace_results.Occupancy]) -> list[list[tuple[float, float]]]:
    """Return, for each bar, the lowest free lanes of its node: one per unit, or a part of one.

    They need not be adjacent, so that no node has more lanes than units are busy at once: a bar has
    several runs of lanes, each from its first to the one after its last. Bars are placed in order
    of their begin, so that those of one moment never overlap.
    """
    lanes: list[list[tuple[float, float]]] = [[] for _ in bars]
    busy: dict[str, list[tuple[float, int, int]]] = {}
    for number in sorted(range(len(bars)), key=lambda n: (bars[n].begin_s, n)):
        bar = bars[number]
        own: list[tuple[int, int]] = []
        held = [one for one in busy.get(bar.node, []) if one[0] > bar.begin_s]
        lane, left = 0, round(1000 * bar.units)  # in thousandths, which add up
        for _, low, high in sorted(held, key=lambda one: one[1]):
            if left and low > lane:
                taken = min(left, low - lane)
                own.append((lane, lane + taken))
                left -= taken
            lane = max(lane, high)
        if left:
            own.append((lane, lane + left))
        held += [(bar.end_s, low, high) for low, high in own]
        busy[bar.node] = held
        lanes[number] = [(low / 1000, high / 1000) for low, high in own]
    return lanes
