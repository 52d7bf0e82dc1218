"""How much of a cluster's GPU is given out when work of many sizes has filled it, by policy.

The nodes and tasks of a trace of shared and whole GPUs (``--nodes``, ``--pods``: the CSV files of
Alibaba's cluster-trace-gpu-v2023, which the project does not contain, or others of their form).
By seed: the tasks once, shuffled, then drawn with replacement until they ask for 130 % of the
GPU; none leaves. *Online* they are placed one by one as they come and a policy knows what came so
far, nothing else; in *batch* all wait at once and the policy chooses the order. A task that fits
somewhere has to be placed: a referee keeps the books and refuses anything else. The figure is
the share of GPU that is given out at the end.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import gpu_trace, own_placement
from bench.gpu_trace import Trace
from bench.options import count
from bench.peers import placement
from bench.peers.placement import Cluster, Costs, Policy, Spot
from reconciler import package_data

#: GPU asked for, as a part of the cluster's.
ASKED = 1.3
#: A policy is told what came so far each time that it has grown by so much; this many at first.
TOLD_GROWTH, TOLD_FIRST = 1.5, 50
ONLINE_GOAL, AHEAD_GOAL, BATCH_GOAL = 95.5, 1.0, 99.1

#: The kind of each task, and before it what the policy is told, if anything.
Told = Iterator[tuple[int, Costs | None]]


def arrivals(trace: Trace, seed: int) -> list[int]:
    """Kinds of the tasks, as they come."""
    generator = np.random.default_rng(seed)
    sizes = np.array([kind.group.amounts[2] for kind in trace.kinds])
    left = ASKED * float(trace.capacity[:, 2].sum())
    found: list[int] = []
    shuffled = iter(trace.kind_of[generator.permutation(len(trace.kind_of))].tolist())
    while left > 0:
        kind = next(shuffled, None)
        if kind is None:
            kind = int(trace.kind_of[generator.integers(len(trace.kind_of))])
        found.append(kind)
        left -= float(sizes[kind])
    return found


def given_out(trace: Trace, cluster: Cluster, policy: Policy, told: Told) -> float:
    """The share of GPU that is given out, in percent.

    Args:
        trace: what it is about.
        cluster: empty; the policy looks at it, the referee here changes it.
        policy: decides.
        told: tasks, and what the policy is told.

    Raises:
        RuntimeError: the policy names a spot without room, or none where there is one.
    """
    for kind, news in told:
        if news is not None:
            policy.observe(news)
        spot = policy.choose(kind)
        if spot is None:
            _refuse_waiting(trace, cluster, [kind])
        else:
            book(trace, cluster, kind, spot)
    return share_given(cluster)


def share_given(cluster: Cluster) -> float:
    """Percent of the GPU that is not free."""
    total = float(cluster.capacity[:, 2].sum())
    return 100.0 * (1.0 - float(np.maximum(cluster.devices, 0).sum()) / total)


def _refuse_waiting(trace: Trace, cluster: Cluster, kinds: Sequence[int]) -> None:
    for kind in kinds:
        nodes = placement.room_for(cluster, trace.kinds[kind])
        if nodes.size:
            raise RuntimeError(f"{trace.kinds[kind].group} fits node {nodes[0]}; it was not placed")


def book(trace: Trace, cluster: Cluster, kind: int, spot: Spot) -> None:
    """Charge a task.

    Raises:
        RuntimeError: there is no such room.
    """
    asked, node, devices = trace.kinds[kind], spot.node, list(spot.devices)
    group = asked.group
    if (
        len(set(devices)) != group.devices
        or not asked.eligible[cluster.node_class[node]]
        or cluster.cpu[node] < group.amounts[0]
        or cluster.memory[node] < group.amounts[1]
        or (cluster.devices[node, devices] < group.share).any()
    ):
        raise RuntimeError(f"{group} was placed on node {node}, devices {devices}, without room")
    cluster.cpu[node] -= group.amounts[0]
    cluster.memory[node] -= group.amounts[1]
    cluster.devices[node, devices] -= group.share


def as_they_come(trace: Trace, seed: int) -> Told:
    """Tasks one by one; now and then what came so far, the newest among it."""
    counts = np.zeros(len(trace.kinds))
    due = TOLD_FIRST
    for seen, kind in enumerate(arrivals(trace, seed), start=1):
        counts[kind] += 1
        if seen < due:
            yield kind, None
            continue
        due = int(seen * TOLD_GROWTH) + 1
        yield kind, counts / seen


def by_size(trace: Trace, seed: int) -> Told:
    """The most GPUs first, then the most CPUs; first of all what there is."""

    def size(kind: int) -> tuple[int, int, int]:
        cpu, memory, gpu = trace.kinds[kind].group.amounts
        return (-gpu, -cpu, -memory)

    drawn = arrivals(trace, seed)
    shares = np.bincount(drawn, minlength=len(trace.kinds)) / len(drawn)
    for at, kind in enumerate(sorted(drawn, key=size)):
        yield kind, None if at else shares


def in_one_cycle(trace: Trace, seed: int) -> float:
    """The share of GPU that one cycle of the scheduler gives out of the whole backlog."""
    cluster, drawn = trace.empty(), arrivals(trace, seed)
    started = own_placement.backlog(trace, cluster, drawn)
    waiting = np.bincount(drawn, minlength=len(trace.kinds))
    for kind, spot in started:
        book(trace, cluster, kind, spot)
        waiting[kind] -= 1
    if waiting.min() < 0:
        raise RuntimeError("the scheduler started more tasks than there were")
    _refuse_waiting(trace, cluster, np.flatnonzero(waiting).tolist())
    return share_given(cluster)


def figures(trace: Trace, seed: int, *, cycles: bool, only: Sequence[str]) -> dict[str, float]:
    """One seed's figures by policy, each from an empty cluster."""
    kinds = trace.kinds
    own = own_placement.Cycles if cycles else own_placement.Rooms
    online: dict[str, Callable[[Cluster], Policy]] = {
        "random": lambda cluster: placement.Random(cluster, kinds, seed),
        "packing": lambda cluster: placement.Packing(cluster, kinds),
        "best_fit": lambda cluster: placement.BestFit(cluster, kinds),
        "fgd": lambda cluster: placement.Gradient(cluster, kinds),
        "fgd_tightest": lambda cluster: placement.Gradient(cluster, kinds, tight=True),
        "muster": lambda cluster: own(trace, cluster),
    }

    def measure(build: Callable[[Cluster], Policy], told: Told) -> float:
        cluster = trace.empty()
        return given_out(trace, cluster, build(cluster), told)

    runs: dict[str, Callable[[], float]] = {
        name: lambda build=build: measure(build, as_they_come(trace, seed))  # type: ignore[misc]
        for name, build in online.items()
    }
    runs["fgd_batch"] = lambda: measure(online["fgd"], by_size(trace, seed))
    runs["muster_batch"] = lambda: in_one_cycle(trace, seed)
    found = {}
    for name, run_one in runs.items():
        if only and name not in only:
            continue
        began = time.process_time()
        found[name] = run_one()
        spent = time.process_time() - began
        print(f"seed {seed}: {name} {found[name]:.3f} % ({spent:.1f} s CPU)", file=sys.stderr)
    return found


def _row(name: str, values: Sequence[float], **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name,
        "value": round(statistics.mean(values), 2),
        "unit": "% of GPU",
        "by_seed": [round(value, 2) for value in values],
    }
    row.update({"peer": None, "peer_value": None, "ratio": None, "goal": None, "met": None})
    return row | more


def rows_of(found: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
    """The rows of the report."""
    values = {name: [one[name] for one in found] for name in found[0]}
    means = {name: statistics.mean(of) for name, of in values.items()}
    rows = [
        _row(f"online_{name}", values[name])
        for name in ("random", "packing", "best_fit", "fgd", "fgd_tightest")
        if name in values
    ]

    def against(peer: str, own: str, label: str) -> dict[str, Any]:
        if peer not in means:
            return {}
        return {
            "peer": label,
            "peer_value": round(means[peer], 2),
            "ratio": round(means[own] / means[peer], 4),
        }

    if "muster" in means:
        ahead = "fgd" not in means or means["muster"] >= means["fgd"] + AHEAD_GOAL
        goal = {
            "goal": f"> {ONLINE_GOAL}, FGD + {AHEAD_GOAL:g}",
            "met": means["muster"] > ONLINE_GOAL and ahead if "fgd" in means else None,
        }
        more = against("fgd", "muster", "FGD, all classes") | goal
        rows.append(_row("online", values["muster"], **more))
    if "muster_batch" in means:
        more = against("fgd_batch", "muster_batch", "FGD, by GPUs then CPUs")
        goal = {"goal": f"> {BATCH_GOAL}", "met": means["muster_batch"] > BATCH_GOAL}
        rows.append(_row("batch", values["muster_batch"], **(more | goal)))
    return rows


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench fragmentation", description=__doc__)
    traces = package_data.checkout().parent / "shared" / "traces" / "openb"
    parser.add_argument("--nodes", type=Path, default=traces / "nodes.csv", metavar="CSV")
    parser.add_argument("--pods", type=Path, default=traces / "pods.csv", metavar="CSV")
    parser.add_argument("--seeds", type=count, default=10, help="how many")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    parser.add_argument(
        "--cycles",
        action="store_true",
        help="online by one whole cycle a task rather than by its room: slower, same nodes",
    )
    parser.add_argument("--only", action="append", default=[], metavar="POLICY")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: expected one at least")
    trace = gpu_trace.read(options.nodes, options.pods)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    found = [figures(trace, seed, cycles=options.cycles, only=options.only) for seed in seeds]
    if not found[0]:
        parser.error(f"--only {options.only}: no such policy")
    return rows_of(found)
