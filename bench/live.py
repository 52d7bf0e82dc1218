"""The control loop of a large cluster with its store, in process: what a person's change waits for.

The cluster is that of ``scale``: a controller begins beside jobs that wait. The real loop decides,
commits to SQLite on this machine's disk, and publishes; there is no server, no git and no agent,
whose part others measure (``sync``, ``answers``). Jobs come as desired states, as from git; nodes
report as through the server. Each figure is one cycle from input to what is durable and would be
sent: wall time, since the disk is part of it. ``memory`` is what the process has at the end, with
all documents and records.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from bench import beds, scale, situations
from bench.options import count
from reconciler.controller import control_loop, loop_inbox
from reconciler.controller.host import gc_tuning
from reconciler.core import observed_state
from reconciler.model import desired
from reconciler.model.state import outcome
from reconciler.store import sql_store

#: How often each single change is made; its figure is the median.
TIMES = 7


class _Loop(control_loop.Loop):
    """A control loop whose cycles are run one by one."""

    @property
    def state(self) -> observed_state.ObservedState:
        """Memory of the loop, to which nodes report."""
        return self._state

    def decide(self) -> outcome.Outcome:
        """Take what has come in and run one cycle."""
        self._take(self._selector.select(0))
        found = self.cycle()
        situations.expect(found is not None, True, "there is a desired state")
        assert found is not None
        return found

    def close(self) -> None:
        """Close what it listens on, and its store."""
        self._link.close()
        self._selector.close()
        self._led.store.close()


class Bed(scale.Bed):
    """The cluster of ``scale`` under a loop of its own.

    Args:
        folder: of the store.
        nodes: how many.
        jobs: how many wait.
    """

    def __init__(self, folder: Path, nodes: int, jobs: int) -> None:
        self._loop: _Loop | None = None
        super().__init__(nodes, jobs, seed=1)
        store = sql_store.Store.open(f"sqlite:///{folder}/store.db")
        epoch = store.lead("bench", self.now)
        store.commit(epoch, 1, self._known())
        self._inbox = loop_inbox.Inbox()
        self._loop = _Loop(
            led=sql_store.LedStore(store, epoch),
            socket_path=folder / "loop.sock",
            inbox=self._inbox,
            clock=lambda: self.now,
        )
        self.memory = self._loop.state
        self._began = self.now - time.monotonic()
        self.commit(())

    def _known(self) -> outcome.Outcome:
        """Return what was known before the controller began."""
        waiting = tuple(self.memory.jobs.values())
        return outcome.Outcome(
            now=self.now,
            desired_generation=self.generation,
            jobs=waiting,
            new_runs=tuple(job.spec.key for job in waiting),
            nodes=tuple(self.memory.nodes.values()),
            next_order=len(waiting) + 1,
        )

    def commit(self, jobs: Iterable[desired.Job]) -> None:
        """Have the loop find more jobs in git."""
        super().commit(jobs)
        if self._loop is not None:
            wanted = desired.Desired(self.generation, self.structure, dict(self.jobs))
            self._inbox.put_desired(wanted, None)

    def close(self) -> None:
        """End the loop."""
        if self._loop is not None:
            self._loop.close()

    def cycle(self) -> beds.Cycle:
        """Run one cycle of the loop."""
        if self._loop is None:
            return super().cycle()
        # else the loop would believe that somebody had set the clock back
        self.now = max(self.now, self._began + time.monotonic())
        self.deliver()
        wall, cpu = time.perf_counter(), time.process_time()
        result = self._loop.decide()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self._obey(result)
        return beds.Cycle(wall, cpu, {}, result)


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench live", description=__doc__)
    parser.add_argument("--nodes", type=count, default=10_000)
    parser.add_argument("--jobs", type=count, default=100_000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-live-") as folder:
        bed = Bed(Path(folder), options.nodes, options.jobs)
        bed.appear()
        gc_tuning.settle()  # as the controller does
        first = bed.cycle()
        placements = len(bed.running)
        situations.expect(placements > 0, True, "something starts")
        single = {
            what: statistics.median(cycle.wall_s for cycle in scale.single(bed, what, TIMES))
            for what in ("arrival", "end", "report")
        }
        bed.close()
    return [
        situations.row("first_s", first.wall_s, "s", below=2.5),
        situations.row("placements", placements, "jobs"),
        situations.row("arrival_s", single["arrival"], "s", below=0.01),
        situations.row("end_s", single["end"], "s", below=0.01),
        situations.row("report_s", single["report"], "s"),
        situations.row("memory", psutil.Process().memory_info().rss / 2**20, "MiB", below=400),
    ]
