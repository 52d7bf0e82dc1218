"""Estimated starts beside actual ones: the Philly trace, and drawn queues with nothing learned.

Of each job that waits and has an estimate the first one counts: the ratio of the wait that it
tells to the wait that came of it, from the moment at which it was told. Waits below a minute are
told by their difference alone. A start that is said to be certain is wrong if it comes later.
The estimates of all waiting jobs are also noted once an hour, with the middle ratio of these.
"""

import argparse
import math
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import philly
from reconciler.model import desired
from reconciler.simulation.traces import trace_replay, trace_results, workloads

#: Shorter waits have no ratio.
LEAST_S = 60.0
_LIMIT_RATIO = 0.25
_WRONG_MAX = 1e-3
#: Drawn queues: nodes of 8 GPUs, jobs of each, and people.
_NODES, _GPUS, _JOBS, _OWNERS = 8, 8, 400, 6


class _Kind(NamedTuple):
    """Work that a person repeats."""

    stem: str
    owner: str
    queue: str
    gpus: int
    usual_s: float


def drawn(seed: int) -> workloads.Workload:
    """Return jobs of a few people on a small cluster, which is asked for a little more than it has.

    Each person repeats a few kinds of work, whose run times vary, with limits that are generous.
    """
    random_ = random.Random(seed)
    kinds = [
        _Kind(
            f"kind-{number}-of-{owner}",
            f"owner{owner}@example.org",
            f"q{owner % 3}",
            random_.choice([1, 1, 2, 4, 8]),
            random_.lognormvariate(7.0, 1.0),
        )
        for owner in range(_OWNERS)
        for number in range(3)
    ]
    rows, at_s = [], 0.0
    load = sum(kind.gpus * kind.usual_s for kind in kinds) / len(kinds)
    for number in range(_JOBS):
        kind = random_.choice(kinds)
        limit_s = int(60 * math.ceil(kind.usual_s * random_.uniform(1.5, 3.0) / 60))
        runs_s = min(limit_s, kind.usual_s * random_.lognormvariate(0.0, 0.3))
        at_s += random_.expovariate(1.1 * _NODES * _GPUS / load)
        name = f"{kind.stem}-{number}"
        rows.append(
            workloads.TraceJob(name, at_s, runs_s, kind.gpus, kind.queue, kind.owner, limit_s)
        )
    return workloads.Workload(tuple(rows))


def replayed(
    workload: workloads.Workload, nodes: int, gpus: int, cycle_every_s: float
) -> trace_results.Run:
    """Return a replay, with its estimates."""
    guaranteed = workloads.guarantees(workload, nodes * gpus)
    structure = trace_replay.make_structure(
        nodes, gpus, "gpu", guaranteed, desired.ClusterSettings()
    )
    options = trace_replay.Options(cycle_every_s=cycle_every_s)
    return trace_replay.replay_rows(workload, structure, gpus, options, lambda _: None)


def _ratios(told: Sequence[trace_results.StartEstimate]) -> list[float]:
    """Return told waits by real ones, of those that were long enough, in ascending order."""
    return sorted(
        (one.expected_s - one.told_s) / (one.started_s - one.told_s)
        for one in told
        if one.started_s - one.told_s >= LEAST_S
    )


def figures(
    name: str,
    told: Sequence[trace_results.StartEstimate],
    retold: Sequence[trace_results.StartEstimate],
) -> list[dict[str, Any]]:
    """Return the rows of one workload."""
    ratios = _ratios(told)
    rows = [
        philly.row(f"{name}: estimates", len(told), "count"),
        philly.row(f"{name}: waits of a minute or more", len(ratios), "count"),
    ]
    if not ratios:
        return [*rows, {"not_measured": f"{name}: nobody waited for a minute with an estimate"}]
    for part, place in (("p05", 0.05), ("p25", 0.25), ("p75", 0.75), ("p95", 0.95)):
        rows.append(philly.row(f"{name}: ratio {part}", _at(ratios, place), "1"))
    median = _at(ratios, 0.5)
    rows.append(
        philly.row(
            f"{name}: ratio p50",
            median,
            "1",
            goal="0.75 <= value <= 1.25",
            met=abs(median - 1) <= _LIMIT_RATIO,
        )
    )
    errors_s = sorted(abs(one.started_s - one.expected_s) for one in told)
    rows.append(philly.row(f"{name}: amount of the error p50", _at(errors_s, 0.5), "s"))
    if hourly := _ratios(retold):
        rows.append(philly.row(f"{name}: told each hour, ratio p50", _at(hourly, 0.5), "1"))
    ranged = [one for one in told if one.between_s]
    within = sum(one.between_s[0] <= one.started_s <= one.between_s[1] for one in ranged)
    rows.append(philly.row(f"{name}: told with a range", len(ranged) / len(told), "1"))
    if ranged:
        rows.append(philly.row(f"{name}: started within it", within / len(ranged), "1"))
    certain = [one for one in told if one.is_certain]
    wrong = sum(one.started_s > one.latest_s + 1.0 for one in certain)
    rows.append(philly.row(f"{name}: said to be certain", len(certain) / len(told), "1"))
    share = wrong / len(certain) if certain else 0.0
    goal = {"goal": "value <= 0.001", "met": share <= _WRONG_MAX} if certain else {}
    rows.append(philly.row(f"{name}: certain and later", share, "1", **goal))
    return rows


def _at(ordered: Sequence[float], place: float) -> float:
    return ordered[round(place * (len(ordered) - 1))]


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench estimates", description=__doc__)
    parser.add_argument("--jobs", type=Path, help="the Philly trace, .csv or .csv.gz")
    parser.add_argument("--first", type=int, default=3000, help="jobs of its beginning")
    parser.add_argument("--seed", type=int, default=1, help="of its time limits")
    parser.add_argument("--cycle-every", type=float, default=60.0, help="seconds between cycles")
    parser.add_argument("--seeds", type=int, default=10, help="number of drawn queues")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    began = time.monotonic()
    runs = [
        replayed(drawn(seed), _NODES, _GPUS, options.cycle_every) for seed in range(options.seeds)
    ]
    print(f"drawn: {time.monotonic() - began:.0f} s", file=sys.stderr)
    told = [one for run in runs for one in run.estimates]
    rows += figures("drawn", told, [one for run in runs for one in run.retold])
    if options.jobs is None:
        return [*rows, {"not_measured": "the Philly trace: no --jobs was given"}]
    workload = philly.load(options.jobs, options.first, options.seed)
    found = replayed(workload, philly.NODES, philly.GPUS, options.cycle_every)
    return rows + figures("philly", found.estimates, found.retold)
