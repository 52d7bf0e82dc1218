"""Results of simulations as commands show them: figures by policy, and unfinished jobs."""

from collections.abc import Iterator, Sequence

from reconciler.simulation.traces import trace_results

#: One policy over one workload.
Run = trace_results.Run

#: The most unfinished jobs to list in JSON.
UNFINISHED_MAX = 1000


def as_value(seed: int, run: Run) -> dict[str, object]:
    """Return the figures of a run and its unfinished jobs, for JSON."""
    value: dict[str, object] = {"seed": seed}
    value |= trace_results.as_mapping(trace_results.figures(run))
    return value | {
        "never": trace_results.never_started(run)[:UNFINISHED_MAX],
        "over_limit": trace_results.timed_out(run)[:UNFINISHED_MAX],
        "later": run.later[:UNFINISHED_MAX],
        "gave_up_s": run.gave_up_s,
    }


def gave_up_s(run: Run) -> float | None:
    """Return the second from which on nothing ran although jobs waited; None if there is none."""
    return run.gave_up_s if trace_results.never_started(run) else None


def unfinished(run: Run) -> Iterator[tuple[str, list[str]]]:
    """Yield each outcome of jobs that did not finish, with their names."""
    yield "never started", trace_results.never_started(run)
    yield "ended by their time limits", trace_results.timed_out(run)
    yield "not submitted before the end", run.later


def mean_figures(runs: Sequence[Run], policies: Sequence[str]) -> list[trace_results.Figures]:
    """Return the figures of each policy, as the mean of its runs."""
    figures = [trace_results.figures(run) for run in runs]
    return [
        trace_results.mean([one for one in figures if one.policy == policy]) for policy in policies
    ]
