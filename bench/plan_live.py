"""What ``muster plan`` takes against a controller at work: 10,000 jobs, 1,000 simulated nodes.

As ``bench plan``, but nothing is prepared for the plan: the nodes report to a real controller, the
jobs are committed and placed, and the command asks that controller what runs. Timed is the command
as a person starts it, with what the controller takes to tell.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from bench import cluster, plan, scraping, situations
from bench.options import count

#: After so many rounds of reports in which nothing more ran, nothing more is waited for.
_ROUNDS_SAME = 5
#: Nodes say nothing while the command is timed.
_CLUSTER = """\
apiVersion: muster/v1
kind: Cluster
metadata: {name: main}
spec: {nodeSilence: 30m, lease: 1h}
"""


def _settled(bed: cluster.Bed, nodes: list[scraping.Node], seconds: float) -> tuple[int, int]:
    """Have nodes report until nothing more starts; how many tasks run, and how many jobs wait."""
    database = bed.cluster.state / "store.db"
    running = "SELECT count(*) FROM attempts WHERE state = 'Running'"
    waiting = "SELECT count(*) FROM jobs WHERE state = 'Pending' AND newest = 1"
    ready = "SELECT count(*) FROM nodes WHERE state = 'Ready'"
    scraping.each(nodes, scraping.Node.report)
    cluster.wait_until(lambda: cluster.one(database, ready) == len(nodes) + 1, seconds)
    ends_at, before, same = time.monotonic() + seconds, -1, 0
    while time.monotonic() < ends_at and same < _ROUNDS_SAME:
        scraping.each(nodes, scraping.Node.report)
        now = int(cluster.one(database, running))
        same = same + 1 if now and now == before else 0
        before = now
    return before, int(cluster.one(database, waiting))


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench plan_live", description=__doc__)
    parser.add_argument("--jobs", type=count, default=10_000)
    parser.add_argument("--nodes", type=count, default=1_000)
    parser.add_argument("--times", type=count, default=3)
    parser.add_argument("--settle", type=float, default=300.0, help="seconds for jobs to start")
    parser.add_argument("--within", type=Path, metavar="FOLDER", help="where to put the cluster")
    options = parser.parse_args(arguments)
    with cluster.running(nodes=1, cpus=2, within=options.within) as bed:
        clone = bed.folder / "clone"
        (clone / "cluster.yaml").write_text(_CLUSTER)
        plan.propose(clone, options.nodes, options.jobs, below="bench/")
        cluster.git(clone, "push", "--quiet", "origin", "main")
        database = bed.cluster.state / "store.db"
        nodes = [
            scraping.Node(bed, number, cpus=128, memory_gib=1024, model="H200")
            for number in range(1, options.nodes + 1)
        ]
        cluster.wait_until(
            lambda: cluster.one(database, "SELECT count(*) FROM jobs") == options.jobs, 300.0
        )
        tasks, waiting = _settled(bed, nodes, options.settle)
        against = ("--against", bed.cluster.url, "--token-file", str(bed.cluster.state / "token"))
        times = range(options.times)
        without = [plan.timed(clone, "--no-forecast", *against) for _ in times]
        ahead = [plan.timed(clone, *against) for _ in times]
    row = situations.row
    return [
        row("plan_without_forecast_s", statistics.median(t for t, _ in without), "s", below=3.0),
        row("plan_with_forecast_s", statistics.median(t for t, _ in ahead), "s", below=15.0),
        row("plan_without_forecast_cpu_s", statistics.median(c for _, c in without), "s"),
        row("plan_with_forecast_cpu_s", statistics.median(c for _, c in ahead), "s"),
        row("tasks_running", float(tasks), "tasks"),
        row("jobs_waiting", float(waiting), "jobs"),
    ]
