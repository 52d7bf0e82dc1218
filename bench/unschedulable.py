"""How long the verdict takes on a gang that can get no room: 10 tasks of 8 GPUs, a full cluster.

What runs belongs to a queue that is guaranteed all but 79 GPUs, so that 80 can't be taken from it.
"""

import argparse
from typing import Any

from bench import situations
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.inputs.snapshots import Snapshot


def situation(nodes: int) -> Snapshot:
    """A full, protected cluster and the gang."""
    protected = (0, 0, (nodes * situations.GPUS - 80 + 1) * 1000)
    owners = [situations.Queue("protected", protected), situations.Queue("other")]
    empty = Snapshot(
        situations.nodes(nodes),
        situations.queues(owners),
        (situations.shape(nodes, 1), situations.shape(nodes, 8, 10)),
        (situations.line(1, 1, 1, first=1_000_000),),
        (),
    )
    return situations.taken(empty, situations.ones(nodes))


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench unschedulable", description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    nodes = parser.parse_args(arguments).nodes

    def check(decisions: Decisions) -> None:
        situations.expect(len(decisions.evictions) + len(decisions.promised), 0, "disturbed")
        situations.expect(bool(decisions.reasons[decisions.reason_of_line[0]]), True, "a reason")

    return situations.timed_rows(
        "unschedulable",
        situation(nodes),
        check,
        below=0.1,
        peer="KAI, published, control plane included",
        peer_value=249.5,
    )
