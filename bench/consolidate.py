"""Gangs that fit only after work was moved: three of eight GPUs of each node are in use.

Gangs of ten tasks with six GPUs each come, as many as fit once everything has moved together
(KAI-Scheduler's consolidation test: 41 on 500 nodes). No node has six GPUs free, so that each task
goes to a node of its own from which one of the three has to move: ten moves a gang are the fewest.
"""

import argparse
from typing import Any

from bench import situations
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.inputs.snapshots import SchedulingPolicy, Snapshot

_TASKS, _GPUS, _USED = 10, 6, 3


def gangs(nodes: int) -> int:
    """How many gangs there are to place."""
    free = (situations.GPUS - _USED) * nodes
    return free // (_TASKS * _GPUS)


def situation(nodes: int) -> Snapshot:
    """The cluster with its gaps, and the gangs."""
    owners = [situations.Queue("low", weight=0.0), situations.Queue("high")]
    empty = Snapshot(
        situations.nodes(nodes),
        situations.queues(owners),
        (situations.shape(nodes, 1), situations.shape(nodes, _GPUS, _TASKS)),
        (situations.line(1, 1, gangs(nodes), first=1_000_000),),
        (),
        policy=SchedulingPolicy(reclaim=False, preempt=False, moves_max=nodes * situations.GPUS),
    )
    return situations.taken(empty, situations.ones(nodes, each=_USED))


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench consolidate", description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    nodes = parser.parse_args(arguments).nodes
    counted = []

    def check(decisions: Decisions) -> None:
        got = sum(n for job, n in decisions.promised.items() if job.startswith("job-"))
        situations.expect(got, gangs(nodes), "gangs that get room")
        counted.append(len(decisions.evictions))

    rows = situations.timed_rows(
        "consolidate",
        situation(nodes),
        check,
        below=3.0,
        peer="KAI, published, control plane included",
        peer_value=456.0,
    )
    least = _TASKS * gangs(nodes)
    rows.append(
        situations.row(
            "moves", counted[0], "elements", goal=f"{least}, the fewest", met=counted[0] == least
        )
    )
    return rows
