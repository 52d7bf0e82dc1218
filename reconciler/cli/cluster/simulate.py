"""Commands that run the controller's own function in virtual time: `scenario`, `simulate`."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from reconciler.cli import context, lazy_import, terminal
from reconciler.cli.cluster import simulate_options
from reconciler.model.values import times

if TYPE_CHECKING:
    import rich.progress as bars

    from reconciler.operations.reports import trace_plots
    from reconciler.operations.simulate import scenarios, simulation_results, trace_simulation
else:
    bars = lazy_import.module("rich.progress")
    scenarios = lazy_import.module("reconciler.operations.simulate.scenarios")
    trace_simulation = lazy_import.module("reconciler.operations.simulate.trace_simulation")
    simulation_results = lazy_import.module("reconciler.operations.simulate.simulation_results")
    trace_plots = lazy_import.module("reconciler.operations.reports.trace_plots")


#: The most jobs to print by name that are never submitted or not finished in virtual time.
NEVER_TOLD = 4


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(scenario)
    app.command()(simulate)


def scenario(
    paths: Annotated[list[Path], typer.Argument(help="Scenario files, or folders of them.")],
    *,
    output: context.Form = terminal.Output.TABLE,
) -> None:
    """Run scheduling scenarios and compare the results.

    Uses the controller's own scheduler. Exits with 0 if the states of every document are as
    expected or listed as intended differences, else with 1.

    Example: muster scenario scenarios/fair-share -o json
    """
    try:
        files = scenarios.find(paths)
    except scenarios.PathError as error:
        terminal.fail(str(error))
    report = scenarios.run(files)
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_document({"folders": msgspec.to_builtins(report.folders)}, output)
    else:
        _show(report, wide=output is terminal.Output.WIDE)
    for told in report.errors:
        terminal.note(f"muster: {told}")
    raise typer.Exit(terminal.DONE if report.agrees else terminal.ERROR)


def _show(report: scenarios.ScenarioReport, *, wide: bool) -> None:
    rows = [
        [name, str(f.total), str(f.exact), str(f.states), str(len(f.diverging))]
        for name, f in report.folders.items()
    ]
    headings = ["FOLDER", "DOCUMENTS", "EXACT", "STATES", "DIVERGING"]
    terminal.print_table(headings, rows, right="DOCUMENTS EXACT STATES DIVERGING")
    for name, folder in report.folders.items():
        for one in folder.diverging:
            meant = f" (intended: {one.meant})" if one.meant else ""
            terminal.out.print()
            terminal.out.print(f"{name}/{one.file}{meant}", markup=False, soft_wrap=True)
            for subject, found in one.found.items():
                expected = one.expected.get(subject)
                line = f"  {subject}: found {_told(found)}"
                if expected is not None:
                    line += f"; expected {_told(expected)}"
                terminal.out.print(line, markup=False, soft_wrap=True)
        for file in folder.elsewhere if wide else ():
            terminal.out.print()
            line = f"{name}/{file}: as expected, on other nodes"
            terminal.out.print(line, markup=False, soft_wrap=True)


def _told(fields: dict[str, object]) -> str:
    parts = []
    for key, value in fields.items():
        if key == "state":
            parts.append(str(value))
        elif key == "node":
            parts.append(f"on {value}")
        elif isinstance(value, float):
            parts.append(f"since second {value:g}")
    return " ".join(parts)


Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        help="muster, fifo, easy, conservative or shortest; repeatable. Default: muster.",
    ),
]
Source = Annotated[
    Path | None, typer.Argument(help="Folder with YAML, or a trace. Default: generated jobs.")
]
TraceForm = Annotated[
    str | None,
    typer.Option("--form", help="Format of the trace: philly or swf. Default: by its name."),
]
#: The largest cluster and the most jobs to simulate.
NODES_MAX, PER_NODE_MAX, JOBS_MAX = 100_000, 1_000_000, 5_000_000
Nodes = Annotated[int, typer.Option("--nodes", help="Nodes of the cluster.", min=1, max=NODES_MAX)]
PerNode = Annotated[
    int,
    typer.Option("--per-node", help="GPUs per node, or CPUs for swf.", min=1, max=PER_NODE_MAX),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", help="The most jobs. Default: all, or 1000 generated.", min=1, max=JOBS_MAX
    ),
]
Load = Annotated[
    float,
    typer.Option(
        "--load",
        help="Work that generated jobs bring, as a share of the cluster.",
        min=0.01,
        max=1000.0,
        callback=context.require_finite,
    ),
]
SpeedUp = Annotated[
    float,
    typer.Option(
        "--speed-up",
        help="Factor by which jobs arrive faster.",
        min=0.001,
        max=1_000_000.0,
        callback=context.require_finite,
    ),
]
Seeds = Annotated[
    list[int] | None,
    typer.Option("--seed", help="Random seed; repeatable, then the mean is shown. Default: 1."),
]
OverEstimate = Annotated[
    float,
    typer.Option(
        "--over-estimate",
        help="Spread (sigma) of time limits above durations.",
        min=0.0,
        max=10.0,
        callback=context.require_finite,
    ),
]
CycleEvery = Annotated[
    str,
    typer.Option(
        "--cycle-every", help="Least time between two cycles, such as 30s; 0 for no pause."
    ),
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option(
        "--checkpoint-every",
        help="The most work an eviction loses, such as 10m. Default: all of the try.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="DURATION",
        help="Stop after this virtual time, such as 7d. Default: when all jobs have ended.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--scheduling",
        help="Scheduler setting, such as fairness.halfLife=7d; repeatable. Default: none.",
    ),
]
Png = Annotated[
    Path | None, typer.Option("--png", help="Also write a picture to this file. Default: none.")
]
Html = Annotated[
    Path | None, typer.Option("--html", help="Also write a page to this file. Default: none.")
]


def simulate(
    at: typer.Context,
    source: Source = None,
    *,
    form: TraceForm = None,
    policy: Policies = None,
    nodes: Nodes = 16,
    per_node: PerNode = 8,
    jobs: Jobs = None,
    load: Load = 0.9,
    speed_up: SpeedUp = 1.0,
    seed: Seeds = None,
    over_estimate: OverEstimate = 1.0,
    cycle_every: CycleEvery = "0",
    checkpoint_every: CheckpointEvery = None,
    until: Until = None,
    scheduling: Settings = None,
    png: Png = None,
    html: Html = None,
    output: context.Form = terminal.Output.TABLE,
) -> None:
    """Simulate jobs on a cluster in virtual time.

    Uses the controller's own scheduler. Jobs come from a folder of YAML, from a trace (philly CSV
    or Standard Workload Format, optionally gzipped), or are generated. Every policy sees the same
    time limits and no job's real duration.

    Example: muster simulate trace.swf --nodes 64 --per-node 32 --policy muster --policy easy
    """
    policies = tuple(dict.fromkeys(policy or [trace_simulation.OWN]))
    given = simulate_options.given(at)
    simulate_options.refuse(given, source, policies)
    options = trace_simulation.ReplayOptions(
        cycle_every_s=float(context.parse_seconds("--cycle-every", cycle_every)),
        checkpoint_every_s=_checkpoints(checkpoint_every),
        until_s=_seconds("--until", until),
    )
    try:
        settings = trace_simulation.scheduling_settings(scheduling or [])
    except trace_simulation.SimulateError as error:
        terminal.fail(str(error), terminal.USAGE)
    request = trace_simulation.SimulationRequest(
        source=source,
        form=form,
        policies=policies,
        nodes=nodes,
        per_node=per_node,
        jobs=jobs,
        load=load,
        speed_up=speed_up,
        over_estimate=over_estimate,
        options=options,
        scheduling=settings,
    )
    _carry_out(request, seed or [1], output, (png, html), given)


def _seconds(option: str, written: str | None) -> float | None:
    return None if written is None else context.parse_seconds(option, written)


def _checkpoints(written: str | None) -> float | None:
    """Return how many seconds of work an eviction loses at most."""
    found = _seconds("--checkpoint-every", written)
    if found == 0:
        terminal.fail(
            "--checkpoint-every: found 0, expected a duration above 0s such as 10m. Without the "
            "option an eviction loses all work",
            terminal.USAGE,
        )
    return found


def _carry_out(
    request: trace_simulation.SimulationRequest,
    seeds: list[int],
    output: terminal.Output,
    files: tuple[Path | None, Path | None],
    given: dict[str, str],
) -> None:
    """Run the request with each seed, and show the results.

    Args:
        request: what to simulate.
        seeds: one run each.
        output: format of the figures.
        files: a picture and a page to write.
        given: the options that were given.
    """
    several: list[tuple[int, trace_simulation.Prepared, list[simulation_results.Run]]] = []
    _require_pictures([path for path in files if path is not None], request.source)
    try:
        for one in dict.fromkeys(seeds):
            prepared = trace_simulation.prepare(msgspec.structs.replace(request, seed=one))
            simulate_options.refuse_drawn(given, prepared)
            if not several:
                _tell_malformed(prepared)
                _tell_never(prepared)
            with _bar(prepared) as progress:
                several.append((one, prepared, list(trace_simulation.run(prepared, progress))))
    except trace_simulation.SimulateError as error:
        terminal.fail(str(error), terminal.USAGE if error.is_usage else terminal.ERROR)
    _show_runs(several, output)
    one, prepared, runs = several[0]
    if len(several) > 1 and any(files):
        terminal.note(f"the picture shows the run of seed {one}")
    _draw(prepared, runs, *files)


def _require_pictures(paths: list[Path], source: Path | None) -> None:
    """Exit if the pictures could not be drawn or written, before anything is simulated."""
    if not paths:
        return
    places = [path.resolve() for path in paths]
    if source is not None and source.is_file() and source.resolve() in places:
        terminal.fail(f"{source} is the input; write the picture elsewhere", terminal.USAGE)
    if len(set(places)) < len(places):
        terminal.fail(f"--png and --html are both {paths[0]}; use two files", terminal.USAGE)
    try:
        trace_plots.require()
    except trace_plots.PicturesMissingError as error:
        terminal.fail(str(error))
    for path in paths:
        there = path if path.exists() else path.parent
        wrong = errno.EISDIR if path.is_dir() else 0 if there.exists() else errno.ENOENT
        if not wrong and not os.access(there, os.W_OK):
            wrong = errno.EACCES
        if wrong:
            terminal.fail(f"{path}: {os.strerror(wrong)}")


def _tell_malformed(prepared: trace_simulation.Prepared) -> None:
    workload = prepared.workload
    if workload is None or not workload.malformed_count:
        return
    count = workload.malformed_count
    terminal.note(f"skipping {terminal.counted(count, 'malformed row')}:")
    for row in workload.malformed:
        terminal.note(f"  line {row.line}: {row.why}")
    if workload.malformed_count > len(workload.malformed):
        terminal.note(f"  and {workload.malformed_count - len(workload.malformed)} more")


def _tell_never(prepared: trace_simulation.Prepared) -> None:
    if prepared.never:
        begin = times.format_time(trace_simulation.BEGIN)
        names = ", ".join(prepared.never[:NEVER_TOLD])
        more = len(prepared.never) - NEVER_TOLD
        names += f" and {more} more" if more > 0 else ""
        terminal.note(f"virtual time begins at {begin}, so these never happen: {names}")


@contextmanager
def _bar(prepared: trace_simulation.Prepared) -> Iterator[trace_simulation.Progress | None]:
    """Show a live bar for each policy on a terminal, and nothing in a pipe."""
    if not terminal.err.is_terminal:
        yield None
        return
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=terminal.err) as bar:
        tasks = {
            policy: bar.add_task(policy, total=prepared.total)
            for policy in prepared.request.policies
        }
        yield lambda policy, ended: bar.update(tasks[policy], completed=ended)


def _show_runs(
    several: list[tuple[int, trace_simulation.Prepared, list[simulation_results.Run]]],
    output: terminal.Output,
) -> None:
    _, prepared, _ = several[0]
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        value = {
            "title": prepared.title,
            "malformed": prepared.workload.malformed_count if prepared.workload else 0,
            "runs": [
                simulation_results.as_value(seed, run) for seed, _, runs in several for run in runs
            ],
        }
        terminal.print_document(value, output)
        return
    terminal.note(prepared.title)
    if len(several) > 1:
        terminal.note(f"mean of {len(several)} seeds")
    _show_figures(several, wide=output is terminal.Output.WIDE)
    for seed, _, runs in several:
        of_seed = f" (seed {seed})" if len(several) > 1 else ""
        for run in runs:
            since_s = simulation_results.gave_up_s(run)
            if since_s is not None:
                terminal.note(f"{run.policy}{of_seed}: {_given_up(since_s)}")
            for what, names in simulation_results.unfinished(run):
                if names:
                    terminal.note(f"{run.policy}{of_seed}: {what}: {_jobs_told(names)}")


def _given_up(since_s: float) -> str:
    """Return a sentence about a run that ended although jobs waited."""
    since = terminal.format_duration(since_s)
    return (
        f"stopped: nothing ran from {since} after the first submission on; it is unknown whether "
        "the jobs that never started would start much later"
    )


def _jobs_told(names: list[str]) -> str:
    """Return the first names, with elements of an array counted together."""
    counted = Counter(name.partition("[")[0] for name in names)
    arrays = {name.partition("[")[0] for name in names if name.endswith("]")}
    shown = [
        f"{name} ({count:,} {'element' if count == 1 else 'elements'})" if name in arrays else name
        for name, count in list(counted.items())[:NEVER_TOLD]
    ]
    more = len(counted) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _show_figures(
    several: list[tuple[int, trace_simulation.Prepared, list[simulation_results.Run]]],
    *,
    wide: bool,
) -> None:
    all_runs = [run for _, _, runs in several for run in runs]
    policies = several[0][1].request.policies
    headings = ["POLICY", "DONE", "NEVER", "DELAY", "D-P50", "D-P99", "SLOWDOWN", "S-P99", "USED"]
    if wide:
        headings += ["LIMIT", "LATER", "FAIR", "SHORT", "EVICTED", "LOST", "SPAN", "CYCLES"]
    rows = []
    for found in simulation_results.mean_figures(all_runs, policies):
        row = [
            found.policy,
            str(found.finished),
            str(found.never_started),
            terminal.format_duration(found.delay_mean_s),
            terminal.format_duration(found.delay_p50_s),
            terminal.format_duration(found.delay_p99_s),
            f"{found.slowdown_mean:.2f}",
            f"{found.slowdown_p99:.1f}",
            f"{found.utilisation:.1%}",
        ]
        if wide:
            row += [
                str(found.timed_out),
                str(found.not_submitted),
                f"{found.fairness:.2f}",
                f"{found.shortfall:.2%}",
                str(found.evictions),
                f"{found.lost:.2%}",
                terminal.format_duration(found.makespan_s),
                str(found.cycles),
            ]
        rows.append(row)
    terminal.print_table(headings, rows, right=" ".join(headings[1:]))


def _draw(
    prepared: trace_simulation.Prepared,
    runs: list[simulation_results.Run],
    png: Path | None,
    html: Path | None,
) -> None:
    try:
        if png is not None:
            png.write_bytes(trace_plots.png(runs, prepared.title))
        if html is not None:
            page = trace_plots.page(runs, prepared.title).encode(errors="replace")
            html.write_bytes(page)
    except trace_plots.PicturesMissingError as error:
        terminal.fail(str(error))
    except OSError as error:
        terminal.fail(terminal.describe_unusable(error) or str(error))
