"""A queue takes back a full cluster: as one-GPU jobs, as 50 gangs, as one gang of half of it.

The cluster is full of one-GPU jobs of a queue without guarantee and weight; KAI-Scheduler's reclaim
tests ask for the same.
"""

import argparse
from typing import Any

from bench import situations
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.inputs.snapshots import Shape, Snapshot


def situation(nodes: int, asked: Shape, jobs: int) -> Snapshot:
    """A full cluster and jobs of the queue to which it is guaranteed."""
    whole = (0, 0, nodes * situations.GPUS * 1000)
    owners = [situations.Queue("low", weight=0.0), situations.Queue("owner", whole)]
    empty = Snapshot(
        situations.nodes(nodes),
        situations.queues(owners),
        (situations.shape(nodes, 1), asked),
        (situations.line(1, 1, jobs, first=1_000_000),),
        (),
    )
    return situations.taken(empty, situations.ones(nodes, movable=False))


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench reclaim", description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    nodes = parser.parse_args(arguments).nodes
    gpus = situations.GPUS * nodes
    cases = (
        ("a", situations.shape(nodes, 1), gpus, gpus, 694.0),
        ("b", situations.shape(nodes, 5, 10), nodes // 10, 50 * (nodes // 10), 717.0),
        ("c", situations.shape(nodes, 8, nodes // 2), 1, 8 * (nodes // 2), 85.0),
    )
    rows = []
    for name, asked, jobs, victims, published_s in cases:

        def check(decisions: Decisions, jobs: int = jobs, victims: int = victims) -> None:
            situations.expect(sum(decisions.promised.values()), jobs, "jobs that get room")
            situations.expect(len(decisions.evictions), victims, "evictions")

        rows += situations.timed_rows(
            f"reclaim_{name}",
            situation(nodes, asked, jobs),
            check,
            below=2.0,
            peer="KAI, published, control plane included",
            peer_value=published_s,
        )
    return rows
