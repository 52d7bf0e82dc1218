"""Pictures of what a task measured: no name runs into another."""

import itertools

from matplotlib.text import Text

from reconciler.cli import plotting
from reconciler.operations import jobplots


def test_names_of_series_stay_apart_and_within_the_picture() -> None:
    points = tuple((float(step), float(step), float(step)) for step in range(60))
    names = ("loss", "a_" + "very_" * 30 + "long_name", "accuracy")
    figure = plotting.figure("train", tuple(jobplots.Curve(one, points) for one in names), "step")
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
