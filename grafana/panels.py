"""The few kinds of panel that the dashboards are made of, and what all of them have in common.

A panel is given by title, description, expressions with their legends, unit and thresholds. What a
threshold means is said in the description; colours go from good to bad.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import dashboard as boards
from grafana_foundation_sdk.cog import builder as builders
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models import prometheus as prometheus_models

SOURCE = models.DataSourceRef("prometheus", "${datasource}")
HEIGHT, STAT_HEIGHT = 8, 4
#: What a panel says that has nothing to show. Grafana's own "No data" reads like a fault.
EMPTY = "none"
GOOD, WARNING, BAD = "green", "orange", "red"
#: A percentage that is better when it is high.
RISING = ((None, BAD), (0.5, WARNING), (0.8, GOOD))
Steps = Sequence[tuple[float | None, str]]
#: Nothing to be judged by.
PLAIN: Steps = ((None, "blue"),)
Exprs = Mapping[str, str]
NO_UNITS: Mapping[str, str] = {}
Link = tuple[str, str]
"""Title and address."""
Panel = Any
"""A builder of a panel; the library gives them no common type that mypy can use."""


class Look(NamedTuple):
    """The scale, colours and size of a panel; None: those of its kind.

    Attributes:
        unit: of the values.
        steps: thresholds with their colours.
        most: upper end of the scale.
        width: of 24.
    """

    unit: str = "short"
    steps: Steps | None = None
    most: float | None = None
    width: int | None = None


#: The look of a kind, unless a panel has its own.
USUAL = Look()


def _steps(steps: Steps) -> boards.ThresholdsConfig:
    return (
        boards.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value, color) for value, color in steps])
    )


def _target(letter: str, expr: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id(letter).expr(expr).legend_format(legend)


#: The value of now.
_LAST = common.ReduceDataOptions().calcs(["lastNotNull"])


def _with(panel: Panel, title: str, description: str, look: Look, width: int) -> Panel:
    panel = panel.title(title).description(description).unit(look.unit).no_value(EMPTY)
    return panel.span(width if look.width is None else look.width).datasource(SOURCE)


def number(
    title: str,
    description: str,
    expr: str,
    *,
    look: Look = USUAL,
    words: Mapping[str, tuple[str, str]] | None = None,
    name: str = "",
    link: Link | None = None,
) -> Panel:
    """One number; ``words`` maps values to a word and its colour.

    ``name``: the value of this label is what is shown, instead of the number.
    """
    panel = _with(stat.Panel(), title, description, look, 3).height(STAT_HEIGHT)
    legend = f"{{{{{name}}}}}" if name else ""
    steps = _steps(PLAIN if look.steps is None else look.steps)
    panel = panel.with_target(_target("A", expr, legend).instant()).thresholds(steps)
    shows = common_models.BigValueTextMode.NAME if name else common_models.BigValueTextMode.AUTO
    panel = panel.reduce_options(_LAST).text_mode(shows)
    if link is not None:
        panel = panel.data_links([boards.DashboardLink(link[0]).url(link[1])])
    if words is not None:
        shown = {
            value: models.ValueMappingResult(text=text, color=color)
            for value, (text, color) in words.items()
        }
        panel = panel.mappings([models.ValueMap(shown)])
    return panel.color_mode(common_models.BigValueColorMode.VALUE).graph_mode(
        common_models.BigValueGraphMode.NONE
    )


def lines(
    title: str,
    description: str,
    exprs: Exprs,
    *,
    look: Look = USUAL,
    stacked: bool = False,
) -> Panel:
    """Lines over time from 0, by legend; ``stacked`` where their sum means something."""
    panel = _with(timeseries.Panel(), title, description, look, 12).height(HEIGHT).min(0)
    for position, (legend, expr) in enumerate(exprs.items()):
        panel = panel.with_target(_target(chr(ord("A") + position), expr, legend))
    if look.most is not None:
        panel = panel.max(look.most)
    if stacked:
        mode = common.StackingConfig().mode(common_models.StackingMode.NORMAL)
        panel = panel.stacking(mode).fill_opacity(40)
    if look.steps:
        line = common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.LINE)
        panel = panel.thresholds(_steps(look.steps)).thresholds_style(line)
    legends = (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
        .calcs([])
    )
    hints = (
        common.VizTooltipOptions()
        .mode(common_models.TooltipDisplayMode.MULTI)
        .sort(common_models.SortOrder.DESCENDING)
    )
    return panel.legend(legends).tooltip(hints)


def bars(
    title: str,
    description: str,
    expr: str,
    legend: str,
    *,
    look: Look = USUAL,
) -> Panel:
    """Values of now, side by side."""
    panel = _with(bargauge.Panel(), title, description, look, 12).height(HEIGHT).min(0)
    if look.most is not None:
        panel = panel.max(look.most)
    return (
        panel.with_target(_target("A", expr, legend).instant())
        .thresholds(_steps(PLAIN if look.steps is None else look.steps))
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .reduce_options(_LAST)
    )


def rows(
    title: str,
    description: str,
    exprs: Exprs,
    *,
    look: Look = USUAL,
    units: Mapping[str, str] = NO_UNITS,
    hide: Sequence[str] = (),
    link: Link | None = None,
) -> Panel:
    """A table of values of now, a column an expression.

    Rows of several expressions come together where all their labels agree, the series' name among
    them: such expressions have to be aggregated by the same labels.

    ``units`` are those of columns that have one of their own; ``hide`` leaves columns out, labels
    by their names, and values too.
    """
    panel = _with(table.Panel(), title, description, look, 24).height(HEIGHT).show_header(True)
    for column, own in units.items():
        panel = panel.override_by_name(column, [models.DynamicConfigValue("unit", own)])
    names = {}
    for position, (column, expr) in enumerate(exprs.items()):
        letter = chr(ord("A") + position)
        query = _target(letter, expr, column).instant()
        panel = panel.with_target(query.format(prometheus_models.PromQueryFormat.TABLE))
        names["Value" if len(exprs) == 1 else f"Value #{letter}"] = column
    # what is left out goes by the names of before, what is shown by those of after
    before = {column: name for name, column in names.items()}
    hidden = [before.get(one, one) for one in hide]
    left_out = dict.fromkeys(("Time", "__name__", "instance", "job", *hidden), True)
    panel = panel.transformations(
        [
            models.DataTransformerConfig(id_val="merge", options={}),
            models.DataTransformerConfig(
                id_val="organize",
                options={"excludeByName": left_out, "renameByName": names},
            ),
        ]
    )
    if link is not None:
        panel = panel.data_links([boards.DashboardLink(link[0]).url(link[1])])
    return panel


def states(
    title: str, description: str, expr: str, legend: str, words: Mapping[str, tuple[str, str]]
) -> Panel:
    """States over time, a row each."""
    shown = {
        value: models.ValueMappingResult(text=text, color=color)
        for value, (text, color) in words.items()
    }
    panel = _with(statetimeline.Panel(), title, description, USUAL, 12).height(HEIGHT)
    panel = panel.show_value(common_models.VisibilityMode.NEVER).row_height(0.8).merge_values(True)
    return panel.with_target(_target("A", expr, legend)).mappings([models.ValueMap(shown)])


def heat(
    title: str,
    description: str,
    series: str,
    selector: str = "",
    *,
    exemplars: bool = False,
    width: int = 12,
) -> Panel:
    """Where the observations of a histogram of durations lie, over time.

    ``exemplars``: with a point for each job that Prometheus kept of them.
    """
    expr = f"sum by (le) (increase({series}_bucket{selector}[$__rate_interval]))"
    panel = _with(heatmap.Panel(), title, description, USUAL, width).height(HEIGHT)
    query = _target("A", expr, "{{le}}").format(prometheus_models.PromQueryFormat.HEATMAP)
    query = query.exemplar(exemplars)
    colors = heatmap.HeatmapColorOptions().mode(heatmap_models.HeatmapColorMode.SCHEME)
    return (
        panel.with_target(query)
        .y_axis(heatmap.YAxisConfig().unit("s"))
        .color(colors.scheme("Oranges").steps(32))
    )


def variable(name: str, query: str, description: str, *, many: bool = True) -> Any:
    """A variable whose values are those of a label."""
    made = (
        boards.QueryVariable(name)
        .label(name)
        .description(description)
        .query(query)
        .datasource(SOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    if many:
        made = made.multi(True).include_all(True).all_value(".*")
    return made


class _Annotation(models.AnnotationQuery):
    """An annotation of the Prometheus data source, whose own fields the library lacks."""

    title = ""
    by_value = False

    def to_json(self) -> dict[str, object]:
        """With them."""
        own = {"titleFormat": self.title, "useValueForTime": self.by_value}
        return {**super().to_json(), **own}


class Moments(builders.Builder[models.AnnotationQuery]):
    """Builds the annotation of the moments in which an expression has a value.

    ``title`` may have labels, as legends do. ``by_value``: the value is the moment, in
    milliseconds.
    """

    def __init__(
        self, name: str, expr: str, title: str, color: str, *, by_value: bool = False
    ) -> None:
        self._made = _Annotation(
            name=name, datasource=SOURCE, enable=True, icon_color=color, expr=expr
        )
        self._made.title, self._made.by_value = title, by_value

    def build(self) -> models.AnnotationQuery:
        """The annotation."""
        return self._made


def board(
    uid: str,
    title: str,
    description: str,
    panels: Mapping[str, Sequence[Panel]],
    variables: Sequence[Any] = (),
    *,
    moments: Sequence[Moments] = (),
) -> models.Dashboard:
    """A dashboard: its rows by title, with what every one has; ``moments`` are its own."""
    source = boards.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    made = (
        boards.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["muster"])
        .readonly()
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .variables([source, *variables])
        .annotation(Moments("Commits", COMMITS, "commit {{attempted}}", "blue"))
        .annotation(Moments("Evictions", EVICTIONS, "asked to leave: {{reason}}", "orange"))
        .link(
            boards.DashboardLink("Muster")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["muster"])
            .as_dropdown(True)
            .keep_time(True)
            .include_vars(True)
        )
    )
    for one in moments:
        made = made.annotation(one)
    for row, members in panels.items():
        made = made.with_row(boards.Row(row))
        for panel in members:
            made = made.with_panel(panel)
    built = made.build()
    for position, panel in enumerate(built.panels or (), start=1):
        panel.id_val = position  # the library numbers panels, and gives every row a 0
    return built


_HEAD = "max by (attempted) (muster_sync_revision_info%s)"
#: A commit is there that was not there before.
COMMITS = f"{_HEAD % ''} unless {_HEAD % ' offset $__rate_interval'}"
EVICTIONS = "sum by (reason) (increase(muster_evictions_total[$__rate_interval])) > 0"
