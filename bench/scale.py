"""A large cluster: the first cycle with everything pending, then cycles in which little happens.

10,000 nodes of eight GPUs, 100,000 jobs of 1,000 shapes in 50 queues that are guaranteed equal
parts. A shape is 1, 1, 2, 4 or 8 GPUs with 1 to 20 CPUs and 1 to 10 GiB; jobs draw queue and shape
from the seed. Work has no time limits, so that there are no reservations, and does not checkpoint.
Each figure has the changes, the snapshot by deltas, decisions, all reasons, and the recording in
it. ``--csv`` writes what the cycles of smaller clusters cost beside it.
"""

import argparse
import csv
import random
import statistics
import time
from pathlib import Path
from typing import Any

from bench import keeping, situations
from reconciler.core import keeper

QUEUES = 50
#: Nodes and jobs of the largest cluster, in parts of which the smaller ones are.
_PARTS = (0.25, 0.5, 1.0)
#: 128 CPUs, so that the GPUs run out first.
_NODE = (128_000, 256 * situations.GI, situations.GPUS * 1000)


class Bed:
    """A cluster with its seeded jobs."""

    def __init__(self, nodes: int, jobs: int, seed: int) -> None:
        self.random = random.Random(seed)
        share = situations.GPUS * nodes * 1000 // QUEUES // 1000 * 1000
        shapes = [
            situations.shape(nodes, gpus, cpu=cpu * 1000, memory=memory * situations.GI)
            for gpus in (1, 1, 2, 4, 8)
            for cpu in range(1, 21)
            for memory in range(1, 11)
        ]
        members = [situations.Queue(f"q{number:02d}", (0, 0, share)) for number in range(QUEUES)]
        self.cluster = keeping.Cluster(
            situations.nodes(nodes, _NODE), situations.queues(members), shapes
        )
        self.now = 0.0
        for _ in range(jobs):
            self.arrive()

    def arrive(self) -> None:
        """One more job."""
        kind = keeper.Kind(
            self.random.randrange(QUEUES),
            self.random.randrange(len(self.cluster.shapes)),
            50,
            preemptible=True,
        )
        self.cluster.arrive(f"j{self.cluster.arrivals:07d}", kind)

    def change(self, ends: int, arrivals: int) -> None:
        """What happens between two cycles."""
        self.now += 1.0
        for job in self.random.sample(sorted(self.cluster.running), ends):
            self.cluster.end(job)
        for _ in range(arrivals):
            self.arrive()


def measure(nodes: int, jobs: int, cycles: int, seed: int = 1) -> dict[str, Any]:
    """Wall and CPU seconds of the first cycle, and of each steady one."""
    bed = Bed(nodes, jobs, seed)
    wall, cpu = time.perf_counter(), time.process_time()
    decisions = bed.cluster.cycle(bed.now)
    found: dict[str, Any] = {
        "placements": len(decisions.placements),
        "first_s": time.perf_counter() - wall,
        "first_cpu_s": time.process_time() - cpu,
        "lines": len(decisions.reason_of_line),
        "steady": [],
        "steady_cpu": [],
        "evictions": 0,
    }
    for _ in range(cycles):
        # Which jobs end is drawn beforehand: to sort them is no work of the scheduler's.
        changes = min(100, len(bed.cluster.running))
        ends = bed.random.sample(sorted(bed.cluster.running), changes)
        bed.now += 1.0
        wall, cpu = time.perf_counter(), time.process_time()
        for job in ends:
            bed.cluster.end(job)
        for _ in range(changes):
            bed.arrive()
        decisions = bed.cluster.cycle(bed.now)
        found["steady"].append(time.perf_counter() - wall)
        found["steady_cpu"].append(time.process_time() - cpu)
        found["evictions"] += len(decisions.evictions)
    return found


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench scale", description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--cycles", type=int, default=9, help="steady cycles")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="where to write cost by size")
    options = parser.parse_args(arguments)
    table = []
    for part in _PARTS:
        nodes, jobs = int(options.nodes * part), int(options.jobs * part)
        found = measure(nodes, jobs, options.cycles)
        table.append((nodes, jobs, found))
    if options.csv is not None:
        with options.csv.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("nodes", "jobs", "lines", "placements", "first_cpu_s", "steady_cpu_s"))
            for nodes, jobs, found in table:
                steady = statistics.median(found["steady_cpu"])
                writer.writerow(
                    (
                        nodes,
                        jobs,
                        found["lines"],
                        found["placements"],
                        round(found["first_cpu_s"], 4),
                        round(steady, 4),
                    )
                )
    smallest, largest = table[0][2], table[-1][2]
    steady = statistics.median(largest["steady"])
    steady_cpu = statistics.median(largest["steady_cpu"])
    growth = largest["first_cpu_s"] / smallest["first_cpu_s"]
    steady_growth = steady_cpu / statistics.median(smallest["steady_cpu"])
    times = _PARTS[-1] / _PARTS[0]
    peer = {"peer": "kube-scheduler, published floor", "peer_value": 810.0}
    rate = largest["placements"] / largest["first_s"]
    rate_row = situations.row("first_placements_per_s", rate, "1/s", at_least=50_000, **peer)
    rate_row["ratio"] = round(rate / 810.0, 2)
    return [
        rate_row,
        situations.row(
            "first_placements_per_cpu_s", largest["placements"] / largest["first_cpu_s"], "1/s"
        ),
        situations.row("first_s", largest["first_s"], "s"),
        situations.row("first_cpu_s", largest["first_cpu_s"], "s"),
        situations.row("placements", largest["placements"], "jobs"),
        situations.row("lines", largest["lines"], "lines"),
        situations.row(
            "steady_s",
            steady,
            "s",
            below=0.25,
            peer="a KAI user, 4,000 nodes, 140,000 pods",
            peer_value=2.35,
        ),
        situations.row("steady_cpu_s", steady_cpu, "s"),
        situations.row("steady_most_s", max(largest["steady"]), "s"),
        situations.row("steady_evictions", largest["evictions"] / options.cycles, "per cycle"),
        situations.row(f"first_growth_at_{times:g}x", growth, "times", below=1.1 * times),
        situations.row(f"steady_growth_at_{times:g}x", steady_growth, "times", below=1.1 * times),
    ]
