"""Pictures of what a task measured: no name runs into another."""

import io
import itertools
import json
import math

import pytest
import typer
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from reconciler.cli.jobs import plot
from reconciler.operations.reports import job_plots, plot_text


def test_names_of_series_stay_apart_and_within_the_picture() -> None:
    points = tuple((float(step), float(step), float(step)) for step in range(60))
    names = ("loss", "a_" + "very_" * 30 + "long_name", "accuracy")
    figure = plot.figure("train", tuple(job_plots.Curve(one, points) for one in names), "step")
    figure.draw_without_rendering()
    texts = [axes.get_title("left") for axes in figure.axes]
    titles = [
        next(text for text in figure.findobj(Text) if text.get_text() == one) for one in texts
    ]
    boxes = [title.get_window_extent() for title in titles]
    assert texts[::2] == ["loss", "accuracy"]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert all(axes.get_ylabel() == "" for axes in figure.axes)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cost_$_per^^$", "cost_$_per^^$"),
        ("$x$ and $y$", "$x$ and $y$"),
        (r"a\$b", r"a\$b"),
        ("100%_of", "100%_of"),
        ("\u640d\u5931", r"\u640d\u5931"),
        ("tab\there", r"tab\there"),
        ("\ud800", r"\ud800"),
        ("_hidden", "\u200b_hidden"),
    ],
)
def test_texts_of_others_are_drawn_as_they_are_written(text: str, shown: str) -> None:
    """Warnings are errors here, as of a character that the font lacks."""
    figure = Figure()
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot([1.0, 2.0], [1.0, 2.0], label=plot_text.plain(text))
    axes.set_title(plot_text.plain(text))
    (label,) = axes.legend().get_texts()
    figure.savefig(io.BytesIO(), format="png")
    assert "$" not in label.get_text().replace(r"\$", "")
    assert label.get_text().replace(r"\$", "$") == shown


@pytest.mark.parametrize(
    "points",
    [
        ((1.0, 1.0, 1e308), (2.0, 2.0, -1e308)),
        ((1.0, 1.0, 1.7e308), (2.0, 2.0, 1e308)),
        ((0.0, 1.0, 1.0), (1e308, 2.0, 2.0)),
        ((-1e308, 1.0, 1.0), (1e308, 2.0, 2.0)),
        ((1e308, 1.0, 1e308),),
        ((1.0, 1.0, 5e-324), (2.0, 2.0, math.inf)),
    ],
)
def test_a_series_with_a_strange_name_and_huge_values_is_drawn(
    points: tuple[tuple[float, float, float], ...],
) -> None:
    curve = job_plots.Curve("cost_$_per^^$ \u640d", points)
    figure = plot.figure("train", (curve,), "step")
    figure.savefig(io.BytesIO(), format="png")
    (axes,) = figure.axes
    is_cut = any(abs(one) > 1e300 for point in points for one in point if math.isfinite(one))
    assert ("are drawn there" in axes.get_title("left")) is is_cut


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (0, 'job train logs no series "s999"; it logs s000, '),
        (1, 'series "s999" is not kept: job train logs many, and only the first 64 are kept'),
    ],
)
def test_a_series_that_is_not_kept_is_not_called_unwritten(
    more: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"s{one:03}" for one in range(job_plots.SERIES_MAX + more)]
    rows = [json.dumps({"time": 1.0, **dict.fromkeys(names, 1.0)}).encode()] * 2
    past = job_plots.read(rows)
    assert len(past.curves) == job_plots.SERIES_MAX
    with pytest.raises(typer.Exit):
        plot._chosen("train", past, ["s000", "s999"], None)
    assert told in " ".join(capsys.readouterr().err.split())


def test_elements_of_an_array_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    curves = tuple(
        job_plots.Curve("loss", ((1.0, 1.0, 5.0), (2.0, 2.0, 3.0 + element)), element=element)
        for element in (0, 3)
    )
    plot._compare(curves)
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert told == [
        ["METRIC", "ELEMENT", "NOW", "MIN", "MAX", "STEP", "TRIES"],
        ["loss", "0", "3", "3", "5", "2", "1"],
        ["loss", "3", "6", "5", "6", "2", "1"],
    ]
    (axes,) = plot.figure("sweep", curves, "step").axes
    assert [line.get_label() for line in axes.get_lines()] == ["0", "3"]
    assert plot._elements("sweep[0-3,7]") == ("sweep", (0, 1, 2, 3, 7))
    with pytest.raises(typer.Exit):
        plot._elements("sweep[0-99]")


def test_each_of_many_elements_has_a_look_of_its_own_and_a_place_in_the_legend() -> None:
    points = ((1.0, 1.0, 5.0), (2.0, 2.0, 3.0))
    names = [str(element) for element in range(plot.ELEMENTS_MAX)]
    curves = tuple(
        job_plots.Curve(name, points, element=int(element))
        for name in ("accuracy", "loss")
        for element in names
    )
    for shown in (curves, curves[: len(names)]):
        figure = plot.figure("sweep", shown, "step")
        figure.draw_without_rendering()  # warns where the plot has no room beside its legend
        for axes in figure.axes:
            lines, legend = axes.get_lines(), axes.get_legend()
            assert legend is not None
            assert [text.get_text() for text in legend.get_texts()] == names
            looks = {(line.get_color(), str(line._dash_pattern)) for line in lines}  # type: ignore[attr-defined]
            assert len(looks) == len(names)
            box, plotted = legend.get_window_extent(), axes.get_window_extent()
            assert figure.bbox.y0 <= box.y0
            assert box.y1 <= figure.bbox.y1
            assert box.x1 <= figure.bbox.x1
            assert plotted.width > figure.bbox.width / 2
