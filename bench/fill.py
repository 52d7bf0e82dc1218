"""One call that places 4,000 one-GPU jobs on 500 nodes of eight GPUs (KAI's fill test)."""

import argparse
from typing import Any

from bench import situations
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.inputs.snapshots import Snapshot


def situation(nodes: int) -> Snapshot:
    """An idle cluster and as many jobs as it has GPUs."""
    return Snapshot(
        situations.nodes(nodes),
        situations.queues([situations.Queue("all")]),
        (situations.shape(nodes, 1),),
        (situations.line(0, 0, situations.GPUS * nodes),),
        (),
    )


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench fill", description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    options = parser.parse_args(arguments)

    def check(decisions: Decisions) -> None:
        situations.expect(len(decisions.placements), situations.GPUS * options.nodes, "started")

    peer = {"peer": "KAI, published, control plane included", "peer_value": 398.0}
    return situations.timed_rows("fill", situation(options.nodes), check, below=0.5, **peer)
