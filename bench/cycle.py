"""What one call of the core costs beside a long queue, in process, without store, server or git.

100,000 jobs of one task wait for room on four full nodes. Then single things happen, each many
times over: a node reports its usage; a job ends and another one starts; a job is submitted. The
figures are wall-clock medians of ``reconcile`` and of taking its outcome into the memory.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec

from bench.options import count
from reconciler.core import observed_state, reconcile
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState, EndReason
from reconciler.model.values.resources import Resources

_GI = 2**30
_NODES, _CPUS = 4, 2


class Bed:
    """A memory with its desired state, and nodes that are full."""

    def __init__(self, jobs: int) -> None:
        names = tuple(f"n{number}" for number in range(_NODES))
        self.pool = desired.Pool(
            name="pool", nodes=names, node_resources=Resources(_CPUS * 1000, 64 * _GI, 0)
        )
        self.structure = desired.Structure(
            pools={"pool": self.pool}, queues={"bench": desired.Queue(name="bench")}
        )
        self.now = 1_000_000.0
        self.memory = observed_state.ObservedState(records.Observed(), leader_since=self.now)
        self.jobs = {spec.name: spec for spec in map(self._job, range(jobs))}
        self.generation = 1
        self.sequence = itertools.count(1)
        for name in names:
            self.report(name)

    def _job(self, number: int) -> desired.Job:
        group = desired.TaskGroup("main", 1, Resources(1000, 16 * 2**20, 0), command=("date",))
        return desired.Job(
            name=f"wait-{number:06d}",
            run=1,
            hash=f"{number:016x}",
            queue="bench",
            groups=(group,),
            owner="bench@localhost",
        )

    def report(
        self, name: str, attempts: tuple[records.AttemptReport, ...] = (), **more: Any
    ) -> None:
        """What a node says, as a part of what it knows."""
        self.memory.add_report(
            records.NodeReport(
                node=name,
                boot_id=f"boot-{name}",
                incarnation=f"agent-{name}",
                sequence=next(self.sequence),
                received_at=self.now,
                attempts=attempts,
                complete=False,
                **({"inventory": records.Inventory(capacity=self.pool.node_resources)} | more),
            )
        )

    def cycle(self) -> tuple[float, outcome.Outcome]:
        """Milliseconds of one cycle, and what it decided."""
        wanted = desired.Desired(self.generation, self.structure, self.jobs)
        began = time.perf_counter()
        observed = self.memory.observed(*self.memory.take_input())
        result = reconcile.reconcile(wanted, observed, self.now, cache=self.memory.cache)
        self.memory.absorb(result)
        return 1e3 * (time.perf_counter() - began), result

    def usage(self) -> None:
        """A node says what it uses."""
        self.now += 0.02
        usage = records.NodeUsage(at=self.now, load_1m=self.now % 7)
        self.report("n0", usage=usage, inventory=None)

    def end_one(self) -> None:
        """The oldest attempt ends well."""
        self.now += 0.02
        attempt = next(iter(self.memory.attempts.values()))
        told = records.AttemptReport(
            attempt.id,
            AttemptState.ENDED,
            started_at=self.now,
            ended_at=self.now,
            exit_code=0,
            end_reason=EndReason.EXITED,
        )
        self.report(attempt.node, (told,), inventory=None)

    def submit(self) -> None:
        """One more job in git."""
        self.now += 0.02
        spec = self._job(len(self.jobs))
        self.jobs = {**self.jobs, spec.name: spec}
        self.generation += 1


def _row(name: str, value: float) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "value": round(value, 3), "unit": "ms"}
    return row | dict.fromkeys(("peer", "peer_value", "ratio", "goal", "met"))


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench cycle", description=__doc__)
    parser.add_argument("--jobs", type=count, default=100_000, help="pending jobs")
    parser.add_argument("--times", type=count, default=5, help="how often each thing happens")
    options = parser.parse_args(arguments)
    bed = Bed(options.jobs)
    first_ms, _ = bed.cycle()
    for _ in range(3):  # until nothing follows from what was decided before
        bed.usage()
        bed.cycle()
    rows = [_row("first_ms", first_ms)]
    happenings: dict[str, Callable[[], None]] = {
        "usage_ms": bed.usage,
        "end_ms": bed.end_one,
        "submit_ms": bed.submit,
    }
    for name, happen in happenings.items():
        taken, following = [], []
        for _ in range(options.times):
            happen()
            taken.append(bed.cycle()[0])
            bed.usage()
            following.append(bed.cycle()[0])
        rows += [_row(name, statistics.median(taken)), _row(f"{name}_max", max(taken))]
        rows.append(_row(f"after_{name}", statistics.median(following)))
    snapshot = msgspec.msgpack.encode(bed.memory.observed((), {}))
    rows.append(_row("snapshot_bytes", float(len(snapshot))) | {"unit": "bytes"})
    return rows
