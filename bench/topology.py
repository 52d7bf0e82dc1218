"""One gang of two GPUs on every node of 4 zones, 8 blocks and 8 racks of 2 nodes each.

With and without a preferred rack (KAI-Scheduler's topology test), and one that has to be in a zone.
"""

import argparse
import dataclasses
from typing import Any

import numpy as np

from bench import situations
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.inputs.snapshots import Snapshot

_LEVELS = ("zone", "block", "rack")
_RACK_NODES = 2


def situation(zones: int, level: int, tasks: int, *, required: bool = False) -> Snapshot:
    """An idle cluster of 128 nodes in each zone, and the gang."""
    racks = zones * 64
    nodes = racks * _RACK_NODES
    number = np.arange(nodes) // _RACK_NODES
    domains = np.stack([number // 64, number // 8, number], axis=1).astype(np.int64)
    asked = situations.shape(nodes, 2, tasks, preferred_level=-1 if required else level)
    if required:
        asked = dataclasses.replace(asked, required_level=level)
    return Snapshot(
        situations.nodes(nodes, domains=domains),
        situations.queues([situations.Queue("all")]),
        (asked,),
        (situations.line(0, 0, 1),),
        (),
        levels=_LEVELS,
    )


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench topology", description=__doc__)
    parser.add_argument("--zones", type=int, default=4)
    zones = parser.parse_args(arguments).zones
    tasks = zones * 64 * _RACK_NODES
    cases = (
        ("preferred_rack", situation(zones, 2, tasks), tasks),
        ("no_topology", situation(zones, -1, tasks), tasks),
        ("required_zone", situation(zones, 0, tasks // zones, required=True), tasks // zones),
    )
    rows = []
    for name, asked, count in cases:

        def check(decisions: Decisions, count: int = count) -> None:
            started = sum(len(placement.tasks) for placement in decisions.placements)
            situations.expect(started, count, "tasks started")

        peer = {"peer": "KAI, published", "peer_value": 48.7} if name == "preferred_rack" else {}
        rows += situations.timed_rows(f"topology_{name}", asked, check, below=0.5, **peer)
    return rows
