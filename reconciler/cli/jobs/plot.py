"""The command `muster plot`: metrics of a task over time or steps."""

import importlib.util
import itertools
import math
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from reconciler.cli import array_elements, common_options, context, terminal
from reconciler.model.values import found_values, index_ranges, suggestions
from reconciler.model.values.text_lines import split_lines
from reconciler.operations.reports import job_plots, plot_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from reconciler.operations.client import api_client

HEIGHT = 10
#: Headings above each try; not shown if the try logged nothing.
_HEADING = re.compile(
    r"(\[\d+\] )?\S+, (try|attempt) \d+ on |no attempt at |node \S+ keeps no metrics of "
)
#: Hints for a task without metrics.
NO_METRICS = (
    "Other tasks may have some: --task NAME",
    'A task logs metrics as lines such as {"step": 1, "loss": 0.5} in $MUSTER_METRICS,',
    "or in Python by muster.log(step=1, loss=0.5)",
)
#: The most elements to compare, and the most tries told below a curve.
ELEMENTS_MAX, TRIES_TOLD = 32, 4
#: Colours that most people can tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: Styles of lines, one for each time that the colours have been used up.
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
#: The most rows of a legend: more are taller than the plot, which then leaves no room for itself.
LEGEND_ROWS = 8
#: Curves to draw if none is named.
CURVES_MAX = 4
#: The most characters of a series' name in a picture.
NAME_MAX = 80
#: Values beyond this, in both directions, are drawn at it: matplotlib's sums of larger ones
#: overflow.
DRAWN_MAX = 1e300


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(plot)


def plot(
    name: common_options.JobOrElement,
    *,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", help="Only this metric; repeatable. Default: all."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", "-t", help="Task, such as main-0 or worker-3. Default: the first."),
    ] = None,
    element: common_options.OfElement = None,
    over: Annotated[
        str, typer.Option("--over", help="Horizontal axis: step or time.", metavar="AXIS")
    ] = "step",
    run: Annotated[
        int | None,
        typer.Option("--run", help="A run by its number, from 1. Default: the newest.", min=1),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option("--png", help="Write a picture to this file. Default: plot in the terminal."),
    ] = None,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Plot the metrics that a task logs, or compare those of array elements.

    Metrics are the lines that a task writes to $MUSTER_METRICS, over all its tries; an upright line
    marks where a later try begins. Of an array, or several of its elements, JOB[1-3,7], a table
    compares the values, and a picture has their curves in one plot.

    Example: muster plot train --metric loss

    Example: muster plot "sweep[0-3]" --metric loss

    Example: muster plot train --png loss.png
    """
    if over not in {"step", "time"}:
        terminal.fail(
            f"--over: found {found_values.quote(over)}, expected step or time", terminal.USAGE
        )
    if png is not None and importlib.util.find_spec("matplotlib") is None:
        terminal.fail(
            f"pictures need matplotlib, which the Python of muster in {sys.prefix} has not. To "
            f"fix: {shlex.quote(sys.executable)} -m pip install matplotlib, or the extra `plots`"
        )
    name, several = _elements(name)
    if len(several) < 2:
        one = f"{name}[{several[0]}]" if several else name
        name, element = array_elements.resolve_element(one, element)
    elif element is not None:
        terminal.fail("elements are named in brackets or by --element, not both", terminal.USAGE)
    query = {"stream": "metrics", "every": "true"}
    for key, value in (("task", task), ("element", element), ("run", run)):
        if value is not None:
            query[key] = str(value)
    with context.controller(server, token_file) as api:
        if not several and element is None:
            several = _of_array(api, name, run)
            if len(several) == 1:
                query["element"] = str(several[0])
        past = (
            _of_elements(api, name, query, several)
            if len(several) > 1
            else written(api, name, query)
        )
    curves = _chosen(name, past, metric, task)
    if past.is_cut and not metric:
        terminal.note(f"job {name} logs more series; only the first {len(past.curves)} are kept")
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        documents = [curve.document() for curve in curves]
        terminal.print_document({"job": name, "curves": documents, "remarks": past.remarks}, output)
    elif png is not None:
        of_one = f"{name}[{query['element']}]" if "element" in query else name
        _picture(of_one, curves, over, png)
    elif len(several) > 1:
        _compare(curves)
    else:
        _draw(curves, over, all_named=bool(metric))


def _elements(written_name: str) -> tuple[str, tuple[int, ...]]:
    """Return the job of a name, and the elements that it names. Exit if they are too many."""
    if array_elements.BRACKETS.isdisjoint(written_name):
        return written_name, ()
    name, text = array_elements.parse_set(written_name)
    found = index_ranges.parse(text)
    if len(found) > ELEMENTS_MAX:
        terminal.fail(
            f"{written_name}: found {len(found)} elements, expected at most {ELEMENTS_MAX}",
            terminal.USAGE,
        )
    return name, found


def _of_array(api: "api_client.ApiClient", name: str, run: int | None) -> tuple[int, ...]:
    """Return the elements of an array to compare, as many as can be; of another job none.

    If a run of chosen elements is the newest, those of the whole array: each has its newest run.
    """
    job = api.get(f"/v1/jobs/{name}", run=run, attempts=1)["job"]
    if not job["array"]:
        return ()
    of_all_runs = job.get("elementsOfAllRuns") if run is None else None
    indexes = ",".join((of_all_runs or job.get("elementIndexes") or {}).values())
    found = sorted(index_ranges.parse(indexes)) if indexes else [0]
    if len(found) > ELEMENTS_MAX:
        told = index_ranges.fold(found[:ELEMENTS_MAX])
        terminal.note(
            f"{name} has {len(found)} elements; compared are {told}. Others: muster plot "
            f"'{name}[INDEXES]'"
        )
    return tuple(found[:ELEMENTS_MAX])


def _of_elements(
    api: "api_client.ApiClient", name: str, query: dict[str, str], elements: tuple[int, ...]
) -> job_plots.Past:
    """Return what tasks of several elements logged, the curves of each series together."""
    curves: list[job_plots.Curve] = []
    remarks: list[str] = []
    is_cut = False
    for element in elements:
        past = written(api, name, {**query, "element": str(element)})
        curves += [msgspec.structs.replace(one, element=element) for one in past.curves]
        remarks += past.remarks
        is_cut |= past.is_cut
    curves.sort(key=lambda one: (one.name, one.element))
    return job_plots.Past(tuple(curves), tuple(remarks), is_cut)


def _compare(curves: tuple[job_plots.Curve, ...]) -> None:
    """Print the newest, least and highest value of each element, a table for all series."""
    rows = []
    for curve in curves:
        values = [value for _, _, value in curve.points]
        step = curve.points[-1][0]
        rows.append(
            [
                curve.name,
                str(curve.element),
                *map(job_plots.number, (values[-1], min(values), max(values))),
                "-" if step is None else job_plots.number(step),
                str(1 + len(curve.tries)),
            ]
        )
    headings = ["METRIC", "ELEMENT", "NOW", "MIN", "MAX", "STEP", "TRIES"]
    terminal.print_table(headings, rows, right="ELEMENT NOW MIN MAX STEP TRIES")


def written(api: "api_client.ApiClient", name: str, query: dict[str, str]) -> job_plots.Past:
    """Return what a task logged. Exit if the array element does not exist."""
    if "element" in query:
        job = api.get(f"/v1/jobs/{name}", run=query.get("run"), element=query["element"])["job"]
        array_elements.require_element(job, int(query["element"]))
    text = b"".join(api.stream(f"/v1/jobs/{name}/logs", query))
    return job_plots.read(split_lines(text))


def _chosen(
    name: str, past: job_plots.Past, metric: list[str] | None, task: str | None
) -> tuple[job_plots.Curve, ...]:
    """Return the requested curves. Exit if there are none."""
    known = dict.fromkeys(curve.name for curve in past.curves)
    for one in metric or ():
        if one not in known and past.is_cut:
            terminal.fail(
                f"series {found_values.quote(one)} is not kept: job {name} logs many, and only "
                "the first "
                f"{len(known)} are kept"
            )
        if one not in known and known:
            hint = suggestions.hint(one, known) or f"; it logs {', '.join(sorted(known))}"
            terminal.fail(f"job {name} logs no series {found_values.quote(one)}{hint}")
    if not known:
        for remark in past.remarks:
            if not _HEADING.match(remark):
                terminal.note(f"muster: {remark}")
        which = f"task {task} of job {name}" if task else f"this task of job {name}"
        terminal.fail(f"no metrics: {which} logged none", details=NO_METRICS)
    if not metric:
        return past.curves
    return tuple(one for name in dict.fromkeys(metric) for one in past.curves if one.name == name)


def _axis(curve: job_plots.Curve, over: str) -> Literal["step", "time"]:
    return "step" if over == "step" and curve.has_steps else "time"


def _draw(curves: tuple[job_plots.Curve, ...], over: str, *, all_named: bool) -> None:
    width = min(terminal.width(), 120)
    shown = curves if all_named else curves[:CURVES_MAX]
    for position, curve in enumerate(shown):
        if position:
            terminal.out.print()
        axis = _axis(curve, over)
        points = curve.along(axis)
        lost = len(curve.points) - len(points)
        newest = curve.points[-1][2]
        words = f"{curve.name}: {job_plots.number(newest)} now, over "
        words += "steps" if axis == "step" else "seconds"
        if lost:
            words += f"; {lost} of {len(curve.points)} values are infinite or not a number"
        terminal.out.print(words, markup=False, soft_wrap=True)
        marks = curve.try_starts(axis)
        for line in (
            job_plots.draw(points, width=width, height=HEIGHT, marks=marks) if points else ()
        ):
            terminal.out.print(line, markup=False, no_wrap=True, crop=False, overflow="ignore")
        if curve.tries:
            shown_tries = "; ".join(one.text() for one in curve.tries[-TRIES_TOLD:])
            terminal.print_line(f"┊ {shown_tries}", 2)
    if len(shown) < len(curves):
        rest = ", ".join(curve.name for curve in curves[len(shown) :])
        terminal.note(f"not drawn (use --metric NAME): {rest}")


def _picture(name: str, curves: tuple[job_plots.Curve, ...], over: str, path: Path) -> None:
    """Write a PNG of the curves."""
    try:
        figure(name, curves, over).savefig(path, format="png")
    except OSError as error:
        terminal.fail(f"picture {path}: {error.strerror}")
    terminal.note(f"{path}: {len(curves)} series of job {name}")


def figure(name: str, curves: tuple[job_plots.Curve, ...], over: str) -> "Figure":
    """Return a figure with one plot per series, each under its name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - takes long
    from matplotlib.figure import Figure  # noqa: PLC0415

    groups = [list(of) for _, of in itertools.groupby(curves, key=lambda one: one.name)]
    made = Figure(figsize=(8, 2.6 * len(groups) + 0.6), dpi=120, layout="constrained")
    FigureCanvasAgg(made)
    made.suptitle(plot_text.plain(f"Job {name}"), x=0.01, ha="left")
    for axes, group in zip(made.subplots(len(groups), squeeze=False)[:, 0], groups, strict=True):
        axes_of = {_axis(one, over) for one in group}
        axis: Literal["step", "time"] = "time" if "time" in axes_of else "step"
        is_beyond = False
        for position, curve in enumerate(group):
            is_beyond |= _plot_curve(axes, curve, axis, position)
        if len(group) > 1:
            columns = math.ceil(len(group) / LEGEND_ROWS)
            # a wide one is beside the plot: within, it would hide the curves
            place = {"loc": "upper left", "bbox_to_anchor": (1, 1)} if columns > 1 else {}
            axes.legend(title="element", fontsize=8, ncols=columns, **place)
        # above the plot: beside it a long name runs into its neighbours
        title = terminal.shortened(plot_text.plain(group[0].name), NAME_MAX, middle=True)
        if is_beyond:
            title += f" (values beyond {DRAWN_MAX:g} are drawn there)"
        axes.set_title(title, loc="left", fontsize=10)
        if axis == "step":
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("step" if axis == "step" else "seconds since its start")
        axes.grid(color="#DDDDDD", linewidth=0.6)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return made


def _plot_curve(
    axes: Any, curve: job_plots.Curve, axis: Literal["step", "time"], position: int
) -> bool:
    """Draw a curve, with a dashed line where a later try begins. Return True if values were cut.

    Args:
        axes: of matplotlib.
        curve: what is drawn.
        axis: what is horizontal.
        position: of the curve among those that are compared. It chooses colour and style.
    """
    points = curve.along(axis)
    colour = COLOURS[position % len(COLOURS)]
    style = STYLES[position // len(COLOURS) % len(STYLES)]
    drawn = [(_drawn(x), _drawn(y)) for x, y in points]
    axes.plot([x for x, _ in drawn], [y for _, y in drawn], color=colour, linestyle=style,
              linewidth=1.2, marker="." if len(points) < 50 else "",
              label=str(curve.element))  # fmt: skip
    for x in curve.try_starts(axis):
        axes.axvline(_drawn(x), color=colour, linewidth=0.8, linestyle="--")
    return drawn != points


def _drawn(value: float) -> float:
    return min(DRAWN_MAX, max(-DRAWN_MAX, value))
