"""The Philly trace under the default policy and under textbook ones, in the same simulator.

88 nodes of 8 GPUs; virtual clusters are queues, each guaranteed its share of the trace's GPU-time
(largest remainder). Every policy sees the same seeded time limits, never the durations. Muster
runs whole, as ``muster simulate`` does it: jobs, gangs, nodes, cycles of ``reconcile``. The peers
(FIFO, EASY and conservative backfill, shortest limit first) see one number of GPUs and no nodes,
which spares them all fragmentation. Muster runs in this process, the peers in another. Between
cycles the reasons that its jobs carry are tried out by code that shares nothing with the scheduler
(``truth``); what that takes is not in its time.
"""

import argparse
import concurrent.futures
import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from bench import idleness, moment, truth
from reconciler.model import desired
from reconciler.operations.simulate import trace_simulation
from reconciler.simulation.baselines import gpu_pool, node_pool
from reconciler.simulation.engine import simulated_cluster
from reconciler.simulation.traces import trace_replay, trace_results, workloads

NODES, GPUS = 88, 8
_LIMIT_S = 300.0
#: False reasons that are printed.
_FALSE_TOLD = 20
_FIGURES = (
    ("delay_mean_s", "s"),
    ("delay_p50_s", "s"),
    ("delay_p99_s", "s"),
    ("slowdown_mean", "1"),
    ("slowdown_p99", "1"),
    ("utilisation", "1"),
    ("fairness", "1"),
    ("shortfall", "1"),
    ("lost", "1"),
)


def load(path: Path, count: int | None, seed: int) -> workloads.Workload:
    """Return the first jobs of the trace, with time limits."""
    try:
        workload = trace_simulation.read_file(path, workloads.read_philly)
    except trace_simulation.SimulateError as error:
        raise RuntimeError(str(error)) from error
    for row in workload.malformed:
        print(f"{path}: line {row.line} is left out: {row.why}", file=sys.stderr)
    return workloads.with_limits(workloads.first(workload, count), seed)


def _peer(
    name: str, workload: workloads.Workload, *, nodes: bool = False
) -> tuple[trace_results.Figures, float]:
    """One of ``peers``, over a number of GPUs or on nodes."""
    began = time.monotonic()
    if nodes:
        run = node_pool.run(name, workload, NODES, GPUS)
    else:
        run = gpu_pool.run(name, workload, NODES * GPUS)
    taken_s = time.monotonic() - began
    run.guaranteed = workloads.guarantees(workload, NODES * GPUS)
    return trace_results.figures(run), taken_s


def _seen(cluster: simulated_cluster.SimulatedCluster) -> moment.Seen:
    memory = cluster.memory
    return moment.Seen(
        now=cluster.now,
        structure=cluster.structure,
        job_records=memory.jobs,
        attempts=memory.attempts,
        nodes=memory.nodes,
        why=memory.reasons,
        promised=memory.nominations,
    )


class Idle:
    """What idle GPUs waited for after each so-many-th cycle; ``spent_s``: what looking took."""

    def __init__(self, every: int, workload: workloads.Workload) -> None:
        self.every = every
        self.spent_s = 0.0
        first, last = workload.rows[0].submit_s, workload.rows[-1].submit_s
        self.capacity_gpu_s = NODES * GPUS * (last - first)
        self.found = idleness.Idleness(trace_replay.BEGIN + last)

    def look(self, cluster: simulated_cluster.SimulatedCluster) -> None:
        """Take note of this moment."""
        if not self.every or cluster.cycles % self.every:
            return
        began = time.monotonic()
        self.found.look(_seen(cluster))
        self.spent_s += time.monotonic() - began

    def rows(self, utilisation: float) -> list[dict[str, Any]]:
        """The rows of the report: shares of the cluster while jobs came."""
        if not self.every or not self.capacity_gpu_s:
            return [{"not_measured": "what idle GPUs waited for: it was not looked at"}]
        self.found.settle(self.found.until)
        shares = {kind: gpu_s / self.capacity_gpu_s for kind, gpu_s in self.found.gpu_s.items()}
        shares["until the next look"] = max(0.0, 1 - utilisation - sum(shares.values()))
        return [row(f"muster_idle: {kind}", share, "1") for kind, share in sorted(shares.items())]


class Reasons:
    """What was found of the reasons that jobs carried, looked at after each so-many-th cycle.

    Attributes:
        found: how many were true, false and open, by code. false: the first few that were false.
        spent_s: what looking took.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.found: Counter[tuple[str, truth.Verdict]] = Counter()
        self.false: list[str] = []
        self.spent_s = 0.0

    def look(self, cluster: simulated_cluster.SimulatedCluster) -> None:
        """Try out all reasons of this moment."""
        if not self.every or cluster.cycles % self.every:
            return
        began = time.monotonic()
        for finding in truth.Checker(_seen(cluster)).findings():
            self.found[finding.reason.code.value, finding.verdict] += 1
            if finding.verdict is truth.Verdict.FALSE and len(self.false) < _FALSE_TOLD:
                self.false.append(
                    f"{finding.job} at {cluster.now:.0f}: {finding.reason.code}: "
                    f"{finding.reason.message}; {finding.because}"
                )
        self.spent_s += time.monotonic() - began

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the report."""
        if not self.found:
            return [{"not_measured": "whether reasons are true: none was looked at"}]
        for line in self.false:
            print(f"false: {line}", file=sys.stderr)
        for (code, verdict), count in sorted(self.found.items()):
            print(f"reasons: {code} {verdict} {count}", file=sys.stderr)
        sums = Counter[truth.Verdict]()
        for (_, verdict), count in self.found.items():
            sums[verdict] += count
        false = sums[truth.Verdict.FALSE]
        return [
            row("muster_reasons_checked", sums.total() - sums[truth.Verdict.OPEN], "count"),
            row("muster_reasons_false", false, "count", goal="value == 0", met=not false),
            row("muster_reasons_not_decided", sums[truth.Verdict.OPEN], "count"),
        ]


def _muster(
    workload: workloads.Workload, options: argparse.Namespace, told: Reasons, idle: Idle
) -> tuple[trace_results.Figures, list[float], float]:
    guaranteed = workloads.guarantees(workload, NODES * GPUS)
    settings = desired.ClusterSettings(
        scheduling=desired.Scheduling(learned_quantile=options.learned)
    )
    structure = trace_replay.make_structure(NODES, GPUS, "gpu", guaranteed, settings)
    shown = 0

    def tell(ended: int) -> None:
        nonlocal shown
        if ended - shown >= len(workload.rows) / 20:
            shown = ended
            spent_s = time.monotonic() - began
            print(f"muster: {ended} jobs have ended, {spent_s:.0f} s", file=sys.stderr)

    def look(cluster: simulated_cluster.SimulatedCluster) -> None:
        told.look(cluster)
        idle.look(cluster)

    began = time.monotonic()
    each = trace_replay.Options(cycle_every_s=options.cycle_every)
    run = trace_replay.replay_rows(workload, structure, GPUS, each, tell, look=look)
    own_s = time.monotonic() - began - told.spent_s - idle.spent_s
    return (
        trace_results.figures(run),
        [one.started_s - one.expected_s for one in run.estimates],
        own_s,
    )


def row(name: str, value: float | None, unit: str, **more: Any) -> dict[str, Any]:
    """Return a row of a report, with what more there is to say."""
    made = {"name": name, "value": value, "unit": unit}
    made.update({"peer": None, "peer_value": None, "ratio": None, "goal": None, "met": None})
    return made | more


def compare(
    own: trace_results.Figures, others: dict[str, trace_results.Figures]
) -> list[dict[str, Any]]:
    """A row for each figure beside each peer, and the goals that it has."""
    rows = []
    for peer, found in others.items():
        for field, unit in _FIGURES:
            value, peer_value = getattr(own, field), getattr(found, field)
            found_row = row(
                f"muster_{field}",
                value,
                unit,
                peer=peer,
                peer_value=peer_value,
                ratio=value / peer_value if peer_value else None,
            )
            if field == "slowdown_mean":
                found_row |= {"goal": "value < peer_value", "met": value < peer_value}
            if field == "utilisation":
                met = value >= peer_value or math.isclose(value, peer_value, rel_tol=1e-3)
                found_row |= {"goal": "value >= peer_value", "met": met}
            rows.append(found_row)
    rows.append(
        row(
            "muster_shortfall",
            own.shortfall,
            "1",
            goal="value == 0: no queue with demand below its guarantee",
            met=own.shortfall < 1e-4,
        )
    )
    return rows


def _estimates(errors_s: list[float]) -> list[dict[str, Any]]:
    """By how much first starts missed the first estimate of them."""
    if not errors_s:
        return [{"not_measured": "error of estimated starts: nobody who waited had an estimate"}]
    ordered = sorted(errors_s)
    rows = [row("muster_estimates", len(ordered), "count")]
    for name, place in (("p05", 0.05), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p95", 0.95)):
        value = ordered[round(place * (len(ordered) - 1))]
        rows.append(row(f"muster_estimate_error_{name}_s", value, "s"))
    mean_s = sum(map(abs, ordered)) / len(ordered)
    return [*rows, row("muster_estimate_error_mean_of_amounts_s", mean_s, "s")]


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench philly", description=__doc__)
    parser.add_argument("--jobs", type=Path, required=True, help="the trace, .csv or .csv.gz")
    parser.add_argument("--first", type=int, help="only so many jobs from its beginning")
    parser.add_argument("--seed", type=int, default=1, help="of the time limits")
    parser.add_argument(
        "--cycle-every", type=float, default=0.0, help="seconds between cycles of Muster at least"
    )
    parser.add_argument(
        "--reasons-every",
        type=int,
        default=200,
        metavar="CYCLES",
        help="try out whether all reasons are true after each so-many-th cycle; 0: never",
    )
    parser.add_argument(
        "--idle-every",
        type=int,
        default=10,
        metavar="CYCLES",
        help="find out after each so-many-th cycle what idle GPUs wait for; 0: never",
    )
    parser.add_argument(
        "--on-nodes", action="store_true", help="the peers on nodes too, which the rows then name"
    )
    parser.add_argument(
        "--learned",
        type=float,
        metavar="QUANTILE",
        help="plan by this quantile of run times before, not by time limits alone",
    )
    return parser.parse_args(arguments)


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    options = _options(arguments)
    workload = load(options.jobs, options.first, options.seed)
    if not workload.rows:
        raise RuntimeError(f"{options.jobs} holds no job that could be read")
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        waiting = {name: pool.submit(_peer, name, workload) for name in gpu_pool.POLICIES}
        for name in node_pool.POLICIES if options.on_nodes else ():
            waiting[f"{name} on nodes"] = pool.submit(_peer, name, workload, nodes=True)
        told = Reasons(options.reasons_every)
        idle = Idle(options.idle_every, workload)
        own, errors_s, own_s = _muster(workload, options, told, idle)
        others = {name: future.result() for name, future in waiting.items()}
    rows = compare(own, {name: found for name, (found, _) in others.items()})
    goal = f"value < {_LIMIT_S:g}"
    whole = options.first is None and not options.cycle_every
    rows.append(
        row("muster_wall_s", own_s, "s", goal=goal if whole else None,
             met=own_s < _LIMIT_S if whole else None)
    )  # fmt: skip
    rows += [row(f"{name}_wall_s", taken_s, "s") for name, (_, taken_s) in others.items()]
    rows.append(row("jobs", own.jobs, "count"))
    rows.append(row("malformed_rows", workload.malformed_count, "count"))
    rows.append(row("muster_cycles", own.cycles, "count"))
    rows.append(row("muster_evictions", own.evictions, "count"))
    rows += _estimates(errors_s)
    rows += told.rows() + idle.rows(own.utilisation)
    if options.first is not None:
        said = f"the trace beyond its first {options.first} jobs"
        rows.append({"not_measured": said})
    if options.cycle_every:
        said = f"cycles at every event: they were {options.cycle_every:g} s apart at the least"
        rows.append({"not_measured": said})
    print(msgspec.json.encode(trace_results.as_mapping(own)).decode(), file=sys.stderr)
    return rows
