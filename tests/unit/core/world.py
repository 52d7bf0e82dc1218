"""A small world that drives ``reconcile``: virtual nodes that do what they are told, and a clock.

Nothing of the core is replaced. The world keeps an ``ObservedState``, turns the engine's assignment
sets into reports as agents would, and lets a test end tasks, silence nodes and move time.
"""

from typing import Any, Literal

import msgspec

from reconciler.core import observed_state, reconcile, schedule_reuse
from reconciler.engines import agents_engine
from reconciler.model import desired
from reconciler.model.observed import health_checks
from reconciler.model.protocol import agent_messages
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState, EndReason, JobState
from reconciler.model.values.resources import Resources

GI = 2**30


def job(name: str, **changes: Any) -> desired.Job:
    """Return a one-task job of one CPU; ``cpu``, ``gpu``, ``count`` shape its single group."""
    cpu = changes.pop("cpu", 1)
    gpu = changes.pop("gpu", 0)
    count = changes.pop("count", 1)
    values: dict[str, Any] = {
        "name": name,
        "run": 1,
        "hash": "0123456789abcdef",
        "queue": "default",
        "groups": (
            desired.TaskGroup(
                name="main",
                count=int(str(count)),
                resources=Resources(int(str(cpu)) * 1000, 0, int(str(gpu)) * 1000),
                command=("true",),
            ),
        ),
        **changes,
    }
    return desired.Job(**values)


class VirtualNode:
    """A node's knowledge: attempts by id, as its agent would report them."""

    def __init__(self, name: str, pool: desired.Pool) -> None:
        self.name = name
        self.pool = pool
        self.boot_id = f"boot-{name}-1"
        self.incarnation = f"agent-{name}-1"
        self.sequence = 0
        self.attempts: dict[str, records.AttemptReport] = {}
        self.silent = False
        self.checks: tuple[health_checks.CheckResult, ...] = ()

    def take(self, payload: bytes, acknowledged: tuple[str, ...], now: float) -> None:
        """Make tasks match a set at once: starts run, stops end with SIGTERM."""
        for attempt_id in acknowledged:
            self.attempts.pop(attempt_id, None)
        wanted = msgspec.msgpack.decode(payload, type=agent_messages.AssignmentSet)
        listed = {a.attempt for a in wanted.assignments}
        for assignment in wanted.assignments:
            known = self.attempts.get(assignment.attempt)
            if known is None and assignment.stop is None:
                self.attempts[assignment.attempt] = records.AttemptReport(
                    id=assignment.attempt, state=AttemptState.RUNNING, started_at=now
                )
            elif assignment.stop is not None and (
                known is None or known.state is not AttemptState.ENDED
            ):
                self.end(assignment.attempt, now, signal=15, reason=assignment.stop.reason)
        for attempt_id in list(self.attempts):
            if attempt_id not in listed:
                del self.attempts[attempt_id]

    def end(
        self,
        attempt_id: str,
        now: float,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        reason: EndReason = EndReason.EXITED,
    ) -> None:
        """End an attempt."""
        known = self.attempts.get(attempt_id)
        self.attempts[attempt_id] = records.AttemptReport(
            id=attempt_id,
            state=AttemptState.ENDED,
            started_at=known.started_at if known else None,
            ended_at=now,
            exit_code=exit_code,
            signal=signal,
            end_reason=reason,
        )

    def report(self, now: float) -> records.NodeReport:
        """Return all that the node knows."""
        self.sequence += 1
        return records.NodeReport(
            node=self.name,
            boot_id=self.boot_id,
            incarnation=self.incarnation,
            sequence=self.sequence,
            received_at=now,
            attempts=tuple(self.attempts.values()),
            inventory=records.Inventory(capacity=self.pool.node_resources, checks=self.checks),
        )


class World:
    """A cluster of virtual nodes under the real core."""

    def __init__(
        self,
        *,
        nodes: int = 2,
        cpu: int = 4,
        gpu: int = 0,
        queues: tuple[desired.Queue, ...] = (desired.Queue(name="default"),),
        settings: desired.ClusterSettings | None = None,
    ) -> None:
        names = tuple(f"n{number}" for number in range(nodes))
        self.pool = desired.Pool(
            name="pool",
            nodes=names,
            node_resources=Resources(cpu * 1000, 64 * GI, gpu * 1000),
            runs_unmapped=True,
        )
        self.structure = desired.Structure(
            settings=settings or desired.ClusterSettings(),
            pools={"pool": self.pool},
            queues={queue.name: queue for queue in queues},
        )
        self.now = 1_000_000.0
        self.jobs: dict[str, desired.Job] = {}
        self.generation = 0
        self.refused: dict[str, str] = {}
        self.removals: dict[str, desired.Removal] = {}
        self.sync: Literal["Synced", "Unknown"] = "Synced"
        self.status: desired.SyncStatus | None = None
        self.memory = observed_state.ObservedState(records.Observed(), leader_since=self.now)
        self.engine = agents_engine.AgentsEngine(epoch=1)
        self.nodes = {name: VirtualNode(name, self.pool) for name in names}
        self.outcomes: list[outcome.Outcome] = []
        self.pace = schedule_reuse.PACE
        self.hear()

    # -- what people and time do

    def commit(self, *jobs: desired.Job, remove: tuple[str, ...] = ()) -> None:
        """Add these jobs to git, and remove those of ``remove``."""
        self.jobs = {name: spec for name, spec in self.jobs.items() if name not in remove}
        self.jobs.update({spec.name: spec for spec in jobs})
        self.generation += 1

    def change_structure(self, **changes: Any) -> None:
        """Change the structure in git."""
        self.structure = msgspec.structs.replace(self.structure, **changes)
        self.generation += 1

    def hear(self) -> None:
        """Let every node that is not silent report."""
        for node in self.nodes.values():
            if not node.silent:
                self.memory.add_report(node.report(self.now))

    def cycle(self) -> outcome.Outcome:
        """Run one cycle, absorb its outcome and deliver it to the nodes."""
        wanted = desired.Desired(
            generation=self.generation,
            structure=self.structure,
            jobs=dict(self.jobs),
            refused=dict(self.refused),
            removals=dict(self.removals),
            status=self.status or desired.SyncStatus(sync=self.sync),
        )
        reports, answered = self.memory.take_input()
        observed = self.memory.observed(
            reports, answered, self.memory.take_asked(), self.memory.take_provisioned()
        )
        result = reconcile.reconcile(
            wanted, observed, self.now, cache=self.memory.cache, pace=self.pace
        )
        self.memory.absorb(result)
        for update in self.engine.apply(result.actions, self.structure, self.memory):
            node = self.nodes.get(update.node)
            if node is not None and not node.silent and update.payload is not None:
                node.take(update.payload, update.acknowledged, self.now)
        self.outcomes.append(result)
        return result

    def settle(self, rounds: int = 6) -> None:
        """Run cycles until nothing changes any more."""
        for _ in range(rounds):
            self.hear()
            result = self.cycle()
            if not result.actions and not result.jobs and not result.attempts:
                return

    def advance(self, seconds: float) -> None:
        """Let time pass and nodes report until everything settles."""
        self.now += seconds
        self.settle()

    def end(
        self,
        name: str,
        *,
        element: int = 0,
        exit_code: int | None = 0,
        index: int = 0,
        group: str = "",
        reason: EndReason = EndReason.EXITED,
    ) -> None:
        """End a task of a job with this status, and settle."""
        for node in self.nodes.values():
            for attempt_id, told in list(node.attempts.items()):
                attempt = self.memory.attempts.get(attempt_id)
                if (
                    attempt is not None
                    and attempt.job == name
                    and attempt.element == element
                    and attempt.index == index
                    and (not group or attempt.group == group)
                    and told.state is not AttemptState.ENDED
                ):
                    node.end(attempt_id, self.now, exit_code=exit_code, reason=reason)
                    self.settle()
                    return
        raise AssertionError(f"no live task {name}-{element}.{index}")

    # -- what there is

    def state(self, name: str) -> JobState:
        """Return the state of a job."""
        return self.memory.jobs[name].state

    def states(self) -> dict[str, str]:
        """Return the states of all jobs."""
        return {name: record.state.value for name, record in sorted(self.memory.jobs.items())}

    def reason(self, name: str) -> str:
        """Return the first reason of a pending job, if any."""
        reasons = self.memory.reasons.get(self.memory.jobs[name].reason_key, ())
        return reasons[0].code.value if reasons else ""

    def attempts(self, name: str) -> list[records.AttemptRecord]:
        """Return the live attempts of a job."""
        return [a for a in self.memory.attempts.values() if a.job == name]

    def events(self, kind: str) -> list[str]:
        """Return the jobs or nodes of all events of a kind so far."""
        return [
            event.job or event.node
            for result in self.outcomes
            for event in result.events
            if event.kind == kind
        ]
