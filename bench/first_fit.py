"""The simplest scheduler, as a floor beside ours: jobs by age, each on the first nodes that fit."""

import time
from typing import Any

import numpy as np

from bench import situations
from reconciler.scheduling.inputs.snapshots import Snapshot


def row(situation: Snapshot) -> dict[str, Any]:
    """Return the row of the report: all jobs placed without queues, reasons or records."""
    began = time.process_time()
    placed = _first_fit(situation)
    cpu_s = time.process_time() - began
    return situations.row("fifo_first_fit_placements_per_cpu_s", placed / cpu_s, "1/s")


def _first_fit(situation: Snapshot) -> int:
    """Return how many tasks a scheduler places that knows of nothing but amounts."""
    free = situation.nodes.free.T.copy()
    jobs = sorted((claim.order, line.shape) for line in situation.lines for claim in line.claims)
    asked = np.array([shape.groups[0].amounts for shape in situation.shapes], dtype=np.int64)
    many = [shape.groups[0].least for shape in situation.shapes]
    full, placed = set(), 0
    for _, shape in jobs:
        if shape in full:
            continue
        amounts = asked[shape]
        fits = (free >= amounts[:, None]).all(axis=0)
        nodes = np.flatnonzero(fits)[: many[shape]]
        if len(nodes) < many[shape]:
            full.add(shape)
            continue
        free[:, nodes] -= amounts[:, None]
        placed += 1
    return placed
