"""Both engines of the scheduler on the same cluster, and the simplest scheduler as a floor.

``bench scale --engines`` runs them: the present cycle, and the engine over columns, in two clusters
that are drawn alike and in which the same tasks end. The starts of the first cycle must be equal.
What the engine does not cover is told, and then nothing of that cycle is measured of it.
"""

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from bench import situations
from reconciler.controller.host import gc_tuning
from reconciler.model.state import records
from reconciler.scheduling.cycle import engine_cycle, scheduling_cycle
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.engine.refusals import NotCovered
from reconciler.scheduling.inputs.snapshots import Snapshot

if TYPE_CHECKING:
    from bench import scale


class TimedSchedule:
    """A way to decide cycles, with what it took of the processor.

    Attributes:
        cpu_s: of each cycle.
        not_covered: what the engine over columns did not cover.
    """

    def __init__(self, decide: Callable[[Snapshot], Decisions]) -> None:
        self._decide = decide
        self.cpu_s: list[float] = []
        self.not_covered: list[str] = []
        self.last: Snapshot | None = None

    def __call__(self, situation: Snapshot) -> Decisions:
        """Decide one cycle."""
        self.last = situation
        began = time.process_time()
        try:
            found = self._decide(situation)
        except NotCovered as error:
            self.not_covered.append(str(error))
            return scheduling_cycle.schedule(situation)
        self.cpu_s.append(time.process_time() - began)
        return found


def rows(make: "Callable[[], scale.Bed]", cycles: int) -> list[dict[str, Any]]:
    """Measure a first cycle and steady ones by both engines; the rows of the report.

    Args:
        make: makes the cluster, each time the same.
        cycles: steady ones.
    """
    ways = {
        "present": TimedSchedule(scheduling_cycle.schedule),
        "engine": TimedSchedule(engine_cycle.decide),
    }
    beds = {name: make() for name in ways}
    for name, bed in beds.items():
        bed.schedule = ways[name]
    gc_tuning.settle()
    firsts = {name: bed.cycle() for name, bed in beds.items()}
    found: list[dict[str, Any]] = []
    first = ways["engine"].last
    if first is not None:
        found.append(_floor(first))
    starts = [_starts(bed.running) for bed in beds.values()]
    situations.expect(starts[0] == starts[1], True, "both engines start the same")
    for name, bed in beds.items():
        way, count = ways[name], len(bed.running)
        if not way.cpu_s:
            found.append({"not_measured": f"first cycle by the engine: {way.not_covered[0]}"})
            continue
        cpu_s = firsts[name].cpu_s
        found += [
            situations.row(f"{name}_first_placements_per_cpu_s", count / cpu_s, "1/s"),
            situations.row(f"{name}_first_schedule_cpu_s", way.cpu_s[0], "s"),
        ]
    return found + _steady(beds, ways, cycles)


def _starts(running: dict[str, records.AttemptRecord]) -> list[tuple[object, ...]]:
    return [(one.id, one.node, one.devices) for one in running.values()]


def _steady(
    beds: "dict[str, scale.Bed]", ways: dict[str, TimedSchedule], cycles: int
) -> list[dict[str, Any]]:
    """Measure cycles in which a hundred jobs end and a hundred arrive."""
    costs: dict[str, list[float]] = {name: [] for name in beds}
    for name, bed in beds.items():
        ways[name].cpu_s, ways[name].not_covered = [], []
        bed.now += 1.0
        bed.cycle()  # what was started tells that it is up
        for _ in range(cycles):
            changes = min(100, len(bed.running))
            bed.now += 1.0
            for attempt in bed.random.sample(sorted(bed.running), changes):
                bed.end(bed.running[attempt])
            bed.arrive(changes)
            costs[name].append(bed.cycle().cpu_s)
    found = []
    for name, cpu_s in costs.items():
        missed = ways[name].not_covered
        if missed:
            told = ", ".join(sorted(set(missed)))
            found.append({"not_measured": f"steady cycles by the engine: {told}"})
        else:
            found.append(
                situations.row(f"{name}_steady_cpu_s", statistics.median(cpu_s), "s", below=0.1)
            )
    return found


def _floor(situation: Snapshot) -> dict[str, Any]:
    """Place all jobs by age on the first node that fits, without queues, reasons or records."""
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
