"""A large cluster under the real ``reconcile``, in process, without store, server or git.

Documents of jobs and reports of nodes come in; what a controller's cycle costs goes out but for
its store: ingestion, admission, the columns, the decisions with all reasons, the records that
changed, and taking them into the memory, with what cycles recall.
"""

import itertools
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from reconciler.core import observed_state, reconcile
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.scheduler_state import NOTHING, SchedulerState
from reconciler.model.state.states import AttemptState, EndReason, JobState
from reconciler.model.values import run_set
from reconciler.scheduling import decisions
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.inputs import snapshots


class Cycle(NamedTuple):
    """What one cycle took and decided; ``phases``: CPU seconds by phase of ``reconcile``."""

    wall_s: float
    cpu_s: float
    phases: dict[str, float]
    result: outcome.Outcome


class Bed:
    """A memory with its desired state; nodes do as they are told, at once.

    Attributes:
        running: attempts that are up, in the order in which they came.
        schedule: decides what starts, from a snapshot.
    """

    schedule: Callable[[snapshots.Snapshot], decisions.Decisions] = staticmethod(
        scheduling_cycle.schedule
    )

    def __init__(self, structure: desired.Structure, now: float = 1_000_000.0) -> None:
        self.structure = structure
        self.now = now
        self.jobs: dict[str, desired.Job] = {}
        self.generation = 1
        self.running: dict[str, records.AttemptRecord] = {}
        self.memory = observed_state.ObservedState(records.Observed(), leader_since=now)
        self._sequence = itertools.count(1)
        self._news: dict[str, list[records.AttemptReport]] = {}
        self.appear()

    def appear(self) -> None:
        """Have all nodes report for the first time."""
        for pool in self.structure.pools.values():
            for name in pool.nodes:
                self._report(name, (), records.Inventory(capacity=pool.node_resources))

    def commit(self, jobs: Iterable[desired.Job]) -> None:
        """Git holds these too."""
        for job in jobs:
            self.jobs[job.name] = job
        self.generation += 1

    def load(
        self,
        jobs: Iterable[desired.Job],
        apart_s: float,
        scheduler_state: SchedulerState = NOTHING,
    ) -> None:
        """As if a controller began beside jobs that wait since long, so many seconds apart."""
        specs = list(jobs)
        began = self.now - apart_s * len(specs)
        waiting = {
            spec.name: records.JobRecord(
                spec,
                JobState.PENDING,
                bytes(spec.element_count),
                submitted_at=began + apart_s * number,
                order=number + 1,
            )
            for number, spec in enumerate(specs)
        }
        self.memory = observed_state.ObservedState.as_of(
            msgspec.structs.replace(
                self.memory.observed((), {}),
                jobs=waiting,
                active=waiting.keys(),
                past_runs=run_set.RunSet.of(spec.key for spec in specs),
                schedule_inputs=None,
                next_order=len(specs) + 1,
                scheduler_state=scheduler_state,
            )
        )
        self.commit(specs)

    def end(self, attempt: records.AttemptRecord, why: EndReason = EndReason.EXITED) -> None:
        """A task leaves."""
        self.running.pop(attempt.id, None)
        self._tell(
            attempt,
            records.AttemptReport(
                attempt.id,
                AttemptState.ENDED,
                started_at=self.now,
                ended_at=self.now,
                exit_code=0,
                end_reason=why,
            ),
        )

    def report(self, node: str) -> None:
        """A node says that all is as it was."""
        self._news.setdefault(node, [])

    def deliver(self) -> None:
        """Have nodes report what has become of their tasks."""
        for name, told in self._news.items():
            self._report(name, tuple(told), None)
        self._news.clear()

    def cycle(self) -> Cycle:
        """Decide on all reports so far. Tasks start and stop as decided; nodes report it later."""
        self.deliver()
        wanted = desired.Desired(self.generation, self.structure, self.jobs)
        phases: dict[str, float] = {}
        wall, cpu = time.perf_counter(), time.process_time()
        observed = self.memory.observed(*self.memory.take_input())
        result = reconcile.reconcile(
            wanted,
            observed,
            self.now,
            cache=self.memory.cache,
            ended=_clock(phases, cpu),
            schedule=self.schedule,
        )
        phases["outcome"] = time.process_time() - cpu - sum(phases.values())
        self.memory.absorb(result)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        phases["absorb"] = cpu - sum(phases.values())
        self._obey(result)
        return Cycle(wall, cpu, phases, result)

    def _obey(self, result: outcome.Outcome) -> None:
        for action in result.actions:
            if isinstance(action, outcome.StartAttempt):
                attempt = self.memory.attempts[action.attempt]
                self.running[attempt.id] = attempt
                up = records.AttemptReport(attempt.id, AttemptState.RUNNING, started_at=self.now)
                self._tell(attempt, up)
            elif isinstance(action, outcome.StopAttempt):
                stopped = self.memory.attempts[action.attempt]
                self.end(stopped, stopped.stop.reason if stopped.stop else EndReason.EXITED)

    def _tell(self, attempt: records.AttemptRecord, told: records.AttemptReport) -> None:
        self._news.setdefault(attempt.node, []).append(told)

    def _report(
        self,
        name: str,
        attempts: tuple[records.AttemptReport, ...],
        inventory: records.Inventory | None,
    ) -> None:
        self.memory.add_report(
            records.NodeReport(
                node=name,
                boot_id=f"boot-{name}",
                incarnation=f"agent-{name}",
                sequence=next(self._sequence),
                received_at=self.now,
                attempts=attempts,
                complete=False,
                inventory=inventory,
            )
        )


def _clock(phases: dict[str, float], began: float) -> Callable[[str], None]:
    """Note in ``phases`` what each phase took of the processor."""
    last = began

    def ended(phase: str) -> None:
        nonlocal last
        now = time.process_time()
        phases[phase] = now - last
        last = now

    return ended
