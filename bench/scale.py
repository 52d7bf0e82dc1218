"""A large cluster: the first cycle with everything pending, then cycles in which little happens.

10,000 nodes of eight GPUs, 100,000 jobs of 1,000 shapes in 50 queues that are guaranteed equal
parts. A shape is 1, 1, 2, 4 or 8 GPUs with 1 to 20 CPUs and 1 to 10 GiB; jobs draw queue and shape
from the seed. The plain work has no time limits, so that there are no reservations, and does not
checkpoint; ``--mix`` adds traits of real work (``bench/mixes.py``), and measures a quarter of the
cluster and the whole. Each figure is one call of ``reconcile`` with what cycles recall, and taking
its outcome into the memory: the changes, the snapshot, decisions, all reasons and the records are
in it. Who is evicted leaves before the next cycle. Most cycles have quick schedules
(decision 43); what full ones cost is told apart. ``--csv`` writes what the cycles of smaller
clusters cost. The simplest scheduler places the same jobs (``bench/first_fit.py``).
"""

import argparse
import random
import statistics
from collections.abc import Collection
from pathlib import Path
from typing import Any

from bench import beds, first_fit, mixes, situations
from bench.options import count, new_file
from reconciler.controller.host import gc_tuning
from reconciler.core import schedule_reuse
from reconciler.model import desired
from reconciler.model.state import outcome
from reconciler.model.values.resources import Resources
from reconciler.operations.reports import csv_text
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.inputs.snapshots import Snapshot

QUEUES = 50
#: Nodes and jobs of the largest cluster, in parts of which the smaller ones are.
_PARTS = (0.25, 0.5, 1.0)
#: 128 CPUs, so that the GPUs run out first.
_NODE = Resources(128_000, 256 * situations.GI, situations.GPUS * 1000)


class Bed(beds.Bed):
    """A cluster beside which its seeded jobs wait, each since another moment."""

    def __init__(self, nodes: int, jobs: int, seed: int, traits: Collection[str] = ()) -> None:
        self.random = random.Random(seed)
        self._variation = mixes.JobVariation(traits, seed)
        self.shapes = [
            (
                desired.TaskGroup(
                    "main",
                    1,
                    Resources(cpu * 1000, memory * situations.GI, gpus * 1000),
                    command=("date",),
                ),
            )
            for gpus in (1, 1, 2, 4, 8)
            for cpu in range(1, 21)
            for memory in range(1, 11)
        ]
        share = situations.GPUS * nodes * 1000 // QUEUES // 1000 * 1000
        queues = [
            desired.Queue(name=f"q{number:02d}", guaranteed=desired.QuotaAmounts(gpu_milli=share))
            for number in range(QUEUES)
        ]
        pool = desired.Pool(
            name="pool",
            nodes=tuple(f"n{number:05d}" for number in range(nodes)),
            node_resources=_NODE,
            allow_root=True,
        )
        super().__init__(mixes.structure(traits, pool, queues))
        self.cycle()  # the nodes are seen for the first time
        pending = list(map(self.job, range(jobs)))
        self.load(pending, apart_s=0.1, scheduler_state=mixes.learned(traits, pending))

    def arrive(self, count: int) -> None:
        """So many more jobs."""
        first = len(self.jobs)
        self.commit(self.job(number) for number in range(first, first + count))

    def job(self, number: int) -> desired.Job:
        """One of random queue and shape."""
        plain = desired.Job(
            name=f"j{number:07d}",
            run=1,
            hash=f"{number:016x}",
            queue=f"q{self.random.randrange(QUEUES):02d}",
            owner="bench@localhost",
            groups=self.random.choice(self.shapes),
        )
        return self._variation.vary(plain)


def measure(
    nodes: int, jobs: int, cycles: int, seed: int = 1, traits: Collection[str] = ()
) -> dict[str, Any]:
    """Wall and CPU seconds of the first cycle, and of each steady one."""
    bed = Bed(nodes, jobs, seed, traits)
    situation: list[Snapshot] = []

    def noted(given: Snapshot) -> Decisions:
        situation.append(given)
        return scheduling_cycle.schedule(given)

    bed.schedule = noted
    gc_tuning.settle()  # as the controller does
    first = bed.cycle()
    bed.schedule = scheduling_cycle.schedule
    found: dict[str, Any] = {
        "floor": first_fit.row(situation.pop()),
        "placements": len(bed.running),
        "first_s": first.wall_s,
        "first_cpu_s": first.cpu_s,
        "first_phases": first.phases,
        "steady": [],
        "steady_cpu": [],
        "steady_phases": [],
        "steady_full": [],
        "evictions": 0,
        "records": 0,
    }
    bed.now += 1.0
    bed.cycle()  # what was started tells that it is up
    for _ in range(cycles):
        changes = min(100, len(bed.running))
        ends = bed.random.sample(sorted(bed.running), changes)
        bed.now += 1.0
        for attempt in ends:
            bed.end(bed.running[attempt])
        bed.arrive(changes)
        steady = bed.cycle()
        found["steady"].append(steady.wall_s)
        found["steady_cpu"].append(steady.cpu_s)
        found["steady_phases"].append(steady.phases)
        if _is_full(steady):
            found["steady_full"].append(steady.cpu_s)
        found["evictions"] += sum(
            isinstance(action, outcome.StopAttempt) for action in steady.result.actions
        )
        found["records"] += len(steady.result.jobs)
    found["single"] = {
        what: statistics.median(cycle.cpu_s for cycle in single(bed, what, 3))
        for what in ("arrival", "end", "report")
    }
    found["full"] = {
        what: statistics.median(
            cycle.cpu_s for cycle in single(bed, what, 3, schedule_reuse.PACE.full_s_max)
        )
        for what in ("arrival", "end")
    }
    return found


def _is_full(cycle: beds.Cycle) -> bool:
    inputs = cycle.result.schedule_inputs
    return inputs is None or not inputs.quick


def single(bed: Bed, what: str, times: int, apart_s: float = 1.0) -> list[beds.Cycle]:
    """Return so many cycles in each of which one thing happens: an arrival, an end, a report.

    ``apart_s``: seconds before each; after ``full_s_max`` its schedule is a full one.
    """
    found = []
    for _ in range(times):
        bed.now += 1.0
        bed.cycle()  # whoever was evicted or started says so here
        bed.now += apart_s
        attempt = next(iter(bed.running.values()))
        if what == "arrival":
            bed.arrive(1)
        elif what == "end":
            bed.end(attempt)
        else:
            bed.report(attempt.node)
        found.append(bed.cycle())
    return found


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench scale", description=__doc__)
    parser.add_argument("--nodes", type=count, default=10_000)
    parser.add_argument("--jobs", type=count, default=100_000)
    parser.add_argument("--cycles", type=count, default=9, help="steady cycles")
    parser.add_argument(
        "--mix",
        type=_traits,
        default=frozenset(),
        metavar="NAME[,NAME]",
        help="plain, all, or " + ", ".join(mixes.TRAITS),
    )
    parser.add_argument("--csv", type=new_file, metavar="FILE", help="where to write cost by size")
    options = parser.parse_args(arguments)
    table = []
    for part in (_PARTS[0], _PARTS[-1]) if options.mix else _PARTS:
        nodes, jobs = int(options.nodes * part), int(options.jobs * part)
        found = measure(nodes, jobs, options.cycles, traits=options.mix)
        table.append((nodes, jobs, found))
    if options.csv is not None:
        _write(options.csv, table)
    return _rows(table[0][2], table[-1][2], options.cycles)


def _traits(text: str) -> frozenset[str]:
    try:
        return mixes.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _write(path: Path, table: list[tuple[int, int, dict[str, Any]]]) -> None:
    """Cost by size, for a picture of it."""
    rows: list[tuple[object, ...]] = [
        ("nodes", "jobs", "placements", "first_cpu_s", "steady_cpu_s")
    ]
    for nodes, jobs, found in table:
        first, steady = found["first_cpu_s"], statistics.median(found["steady_cpu"])
        rows.append((nodes, jobs, found["placements"], round(first, 4), round(steady, 4)))
    path.write_text(csv_text.csv_text(rows), encoding="utf-8")


def _rows(smallest: dict[str, Any], largest: dict[str, Any], cycles: int) -> list[dict[str, Any]]:
    """The rows of the report, of what was measured at the least size and at the largest."""
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
        largest["floor"],
        situations.row(
            "first_placements_per_cpu_s", largest["placements"] / largest["first_cpu_s"], "1/s"
        ),
        situations.row("first_s", largest["first_s"], "s"),
        situations.row("first_cpu_s", largest["first_cpu_s"], "s"),
        situations.row("placements", largest["placements"], "jobs"),
        situations.row("steady_records", largest["records"] / cycles, "jobs per cycle"),
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
        situations.row("steady_full", len(largest["steady_full"]), f"of {cycles} cycles"),
        situations.row("steady_full_cpu_s", max(largest["steady_full"], default=0.0), "s"),
        situations.row("steady_evictions", largest["evictions"] / cycles, "per cycle"),
        *(
            situations.row(f"single_{what}_cpu_s", cpu_s, "s", below=0.01)
            for what, cpu_s in largest["single"].items()
        ),
        *(
            situations.row(f"full_{what}_cpu_s", cpu_s, "s")
            for what, cpu_s in largest["full"].items()
        ),
        situations.row(f"first_growth_at_{times:g}x", growth, "times", below=1.1 * times),
        situations.row(f"steady_growth_at_{times:g}x", steady_growth, "times", below=1.1 * times),
    ]
