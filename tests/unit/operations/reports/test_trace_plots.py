"""Pictures are drawn, need nothing else to be shown, and don't change from run to run."""

import io
import os
import re
from typing import Any

import msgspec
import numpy as np
import pytest

from reconciler.operations.reports import trace_plots
from reconciler.simulation.baselines import gpu_pool
from reconciler.simulation.traces import trace_replay, workloads
from reconciler.simulation.traces.trace_results import JobResult, Occupancy, Run


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    if not os.environ.get("CI"):
        pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    workload = workloads.with_limits(workloads.generate(1, 40, 8, 1.0, queues=12), 1)
    structure = trace_replay.make_structure(2, 4, "gpu", workloads.guarantees(workload, 8))
    return [trace_replay.replay_rows(workload, structure, 4), gpu_pool.run("fifo", workload, 8)]


def test_a_png(runs: list[Run]) -> None:
    found = trace_plots.png(runs, "a title")
    assert found.startswith(b"\x89PNG")
    assert found == trace_plots.png(runs, "a title")


def test_a_page_that_needs_nothing_else(runs: list[Run]) -> None:
    found = trace_plots.page(runs, "jobs <of> mine")
    assert "jobs &lt;of&gt; mine" in found
    assert "<svg" in found
    assert "fifo" in found
    assert found == trace_plots.page(runs, "jobs <of> mine")
    loaded = re.findall(r'(?:src|href)="(?!#|data:)([^"]*)"', found)
    assert loaded == [], "nothing is fetched"


def test_names_of_others_are_drawn_as_they_are() -> None:
    """No formula, no part left out of a legend, no warning of the font, nothing that no text is."""
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    names = ("$\\frac{$", "_hidden", "日本", "x$y$z")
    shown = [Occupancy(f"j{n}", name, name, 1, 0, 10) for n, name in enumerate(names)]
    jobs = [JobResult(one.job, one.queue, 1, 0.0, 10.0, start_s=0.0, end_s=10.0) for one in shown]
    run = Run("muster", 8, jobs, shown)
    title = "$\\frac{$ of \x1b\x00"
    assert trace_plots.png([run], title).startswith(b"\x89PNG")
    found = trace_plots.page([run], title)
    assert "\x1b" not in found
    assert "\x00" not in found
    assert "<h1>$\\frac{$ of " in found
    marks = re.findall(r">([^<>]*)</text>", found)
    for told in ("$\\frac{$", "\u200b_hidden", "\\u65e5\\u672c", "x$y$z"):
        assert marks.count(told) == 2, "in the legend, and as the name of a node"


def test_slowdowns_are_plain_numbers_on_their_axis() -> None:
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    first = JobResult("j0", "q", 1, 0.0, 100_000.0, start_s=200_000.0, end_s=300_000.0)
    shown = [Occupancy("j0", "q", "n", 1, 200_000, 300_000)]
    found = trace_plots.page([Run("p", 8, [first], shown)], "a title")
    marks = " ".join(re.findall(r">([^<>]*)</text>", found))
    assert "started within 1 2 5 10 0%" in marks


def boxes(run: Run) -> list[tuple[str, Any]]:
    """The title of each part that has a legend, and where the two are on the picture."""
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    found = []
    with trace_plots._drawn([run], "a title") as figure:
        figure.savefig(io.BytesIO(), format="png")
        for axes in figure.axes:
            if (shown := axes.get_legend()) is not None:
                # the one at the left, which no getter gives
                title = axes._left_title  # type: ignore[attr-defined]
                legend = shown.get_window_extent()
                found.append((title.get_text(), (title.get_window_extent(), legend, figure.bbox)))
    return found


@pytest.mark.parametrize(
    ("queues", "name"),
    [(1, "q{}"), (9, "q{}"), (14, "a-queue-with-a-long-name-{}"), (14, "q{}-" + "x" * 60)],
)
def test_no_legend_hides_a_title(queues: int, name: str) -> None:
    shown = [Occupancy(f"j{n}", name.format(n), "n", 1, 0, 100 - n) for n in range(queues)]
    jobs = [JobResult(s.job, s.queue, 1, 0.0, 100.0, start_s=0.0, end_s=100.0) for s in shown]
    ((told, (title, legend, whole)),) = boxes(Run("muster", 1_000_000, jobs, shown))
    assert told == "GPUs in use by queue (muster), of 1,000,000"
    assert not title.overlaps(legend)
    assert whole.x0 <= legend.x0
    assert legend.x1 <= whole.x1


def test_what_is_counted_is_said() -> None:
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    jobs = [JobResult("j", "q", 1, 0.0, 100.0, start_s=0.0, end_s=100.0)]
    run = Run("p", 8, jobs, [Occupancy("j", "q", "n", 1, 0, 100)], unit="cpu")
    found = trace_plots.page([run], "a title")
    assert "CPUs in use by queue (p), of 8</text>" in found
    assert "GPU" not in found
    assert "seconds from the first submission on</text>" in found


def test_an_empty_part_says_why() -> None:
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    found = trace_plots.page([Run("p", 8, [], [])], "a title")
    for told in ("no job started", "no job ended", "nothing ran"):
        assert f"{told}</text>" in found


def test_jobs_that_all_start_at_once_are_a_line() -> None:
    """From nobody to the edge of the picture, not a dot on its border."""
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    jobs = [JobResult("j", "q", 1, 0.0, 100.0, start_s=0.0, end_s=100.0)] * 3
    with trace_plots._drawn([Run("p", 8, jobs, [])], "a title") as figure:
        for axes in figure.axes[:2]:
            (line,) = axes.get_lines()
            ends = np.asarray(line.get_xydata())[[0, -1]].tolist()
            assert ends == [[axes.get_xlim()[0], 0.0], [axes.get_xlim()[1], 1.0]]


def test_nodes_that_are_left_out_are_counted() -> None:
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    count = trace_plots.NODES_MAX + 2
    shown = [Occupancy(f"j{n}", "q", f"n{n:03}", 1, 0, 100) for n in range(count)]
    found = trace_plots.page([Run("p", count, [], shown)], "a title")
    assert f"the first {trace_plots.NODES_MAX} of {count} nodes</text>" in found


def test_what_the_nodes_are_not_drawn_with_is_said_and_evictions_are_marked() -> None:
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    shown = [
        Occupancy("j", "q", "n1", 1, 0, 50, evicted=True),
        Occupancy("k", "q", "n2", 1, 0, 100),
    ]
    without = Occupancy("c", "q", "n1", 0, 0, 100)
    left_out, marked = "work without GPUs is left out", "crosses mark evictions"
    for stretches, told in (
        ([shown[1]], ()),
        ([shown[1], without], (left_out,)),
        (shown, (marked,)),
        ([*shown, without], (left_out, marked)),
    ):
        with trace_plots._drawn([Run("p", 8, [], stretches)], "a title") as figure:
            nodes = figure.axes[-1]
            title = nodes.get_title(loc="left").replace("\n", " ")
            assert [one for one in (left_out, marked) if one in title] == list(told)
            points = [np.asarray(line.get_xydata()).tolist() for line in nodes.get_lines()]
            assert points == ([[[50.0, 0.0]]] if marked in told else [[]])


def test_a_run_in_which_nothing_ran_is_drawn_too(runs: list[Run]) -> None:
    assert trace_plots.png([Run("empty", 8, [], [])], "nothing").startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("sizes", "told", "on_the_right"),
    [
        ((1, 4, 4), "waiting", False),
        ((1, 12, 12), "waiting", False),
        ((1, 12, 13), "waiting (up to 25 GPUs, scale at the right)", True),
        ((1, 9, 9000), "waiting (up to 9,009 GPUs, scale at the right)", True),
    ],
)
def test_the_axis_of_what_waits_reaches_its_most(
    sizes: tuple[int, ...], told: str, *, on_the_right: bool
) -> None:
    patches = pytest.importorskip("matplotlib.patches", reason="the extra `plots` is not installed")
    first, *others = (JobResult(f"j{n}", "q", n, 0.0, 100.0) for n in sizes)
    first = msgspec.structs.replace(first, start_s=0.0, end_s=100.0)
    run = Run("p", 8, [first, *others], [Occupancy(first.name, "q", "n", 1, 0, 100)])
    assert f"{told}</text>" in trace_plots.page([run], "a title")
    with trace_plots._drawn([run], "a title") as figure:
        shown = [
            (axes, float(patch.get_data().values.max()))
            for axes in figure.axes
            for patch in axes.patches
            if isinstance(patch, patches.StepPatch) and patch.get_linestyle() == ":"
        ]
        ((axes, most),) = shown
        assert most == pytest.approx(sum(sizes[1:]))
        assert axes.get_ylim()[0] == 0
        assert axes.get_ylim()[1] >= most
        assert (axes.yaxis.get_ticks_position() == "right") is on_the_right


def test_work_without_gpus_among_others_has_no_bar() -> None:
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    jobs = [JobResult(f"j{n}", "q", n, 0.0, 100.0, start_s=0.0, end_s=100.0) for n in (0, 1)]
    with_gpu = Occupancy("j1", "q", "n", 1, 0, 100)
    alone = trace_plots.page([Run("p", 8, jobs, [with_gpu])], "a title")
    for node in ("n", "a-node-of-cpus"):
        without = Occupancy("j0", "q", node, 0, 0, 100)
        found = trace_plots.page([Run("p", 8, jobs, [without, with_gpu])], "a title")
        assert found.replace("; work without GPUs is left out", "") == alone
        assert "<svg" in trace_plots.page([Run("p", 8, jobs, [without])], "a title")


def test_queues_beyond_the_colours_share_grey() -> None:
    stretches = [Occupancy(f"j{n}", f"q{n:02}", "n", 1, 0, 100 - n) for n in range(12)]
    colours = trace_plots.queue_colours(Run("p", 8, [], stretches))
    assert list(colours) == [f"q{n:02}" for n in range(12)], "the most work first"
    assert len(set(colours.values())) == trace_plots.QUEUES_MAX + 1
    assert colours["q10"] == colours["q11"]


def test_bars_of_one_moment_never_overlap() -> None:
    bars = [
        Occupancy("a", "q", "n", 2, 0, 10),
        Occupancy("b", "q", "n", 1, 0, 5),
        Occupancy("c", "q", "n", 1, 5, 10),
        Occupancy("d", "q", "n", 2, 10, 20),
        Occupancy("e", "q", "m", 2, 0, 20),
    ]
    assert trace_plots.lanes_of(bars) == [[(0, 2)], [(2, 3)], [(2, 3)], [(0, 2)], [(0, 2)]]


def test_no_node_has_more_lanes_than_units_are_busy() -> None:
    bars = [
        Occupancy("a", "q", "n", 1, 0, 10),
        Occupancy("b", "q", "n", 1, 0, 5),
        Occupancy("c", "q", "n", 1, 0, 10),
        Occupancy("d", "q", "n", 2, 5, 10),
    ]
    assert trace_plots.lanes_of(bars)[3] == [(1, 2), (3, 4)]


def test_delays_are_told_as_the_terminal_tells_them() -> None:
    form = next(form for field, _, form in trace_plots._COLUMNS if field == "delay_mean_s")
    assert trace_plots._told(form, 78_247.0) == "21h44m"


def test_what_colours_tell_apart_is_told_apart_without_them_too() -> None:
    assert len(trace_plots.HATCHES) == len(set(trace_plots.HATCHES)) == len(trace_plots.COLOURS)
    assert trace_plots.hatch_of("#B0B0B0") == ""
    looks = list(trace_plots._looks())
    assert len({(look["color"], str(look["linestyle"])) for look in looks}) == len(looks)
    assert len({str(look["linestyle"]) for look in looks[: len(trace_plots.DASHES)]}) == 5
