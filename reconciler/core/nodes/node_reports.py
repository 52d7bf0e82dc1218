"""First phase: applies reports of nodes to attempts and nodes.

A report is what a node knows, not an order of events: it may come twice, late, or cross a newer
one. Nothing is concluded from a report that an older state can't lead to.
"""

import math
from collections.abc import Mapping

import msgspec

from reconciler.core import cycle_attempts, cycle_context
from reconciler.core.cycle import (
    attempt_losses,
    cycle_events,
    cycle_jobs,
    cycle_nodes,
    report_order,
)
from reconciler.core.jobs import late_successes
from reconciler.model import desired
from reconciler.model.observed import task_reports, task_usage
from reconciler.model.state import records, report_limits
from reconciler.model.state.states import ATTEMPT_TRANSITIONS, AttemptState, EndReason, NodeState

#: States that a node may report of a live attempt.
_ALIVE = (
    AttemptState.FETCHING,
    AttemptState.READY,
    AttemptState.STARTING,
    AttemptState.RUNNING,
    AttemptState.STOPPING,
)
#: States in which no process of a task runs yet.
_AHEAD = frozenset({AttemptState.FETCHING, AttemptState.READY, AttemptState.STARTING})
#: The longest text of a node that is kept.
MESSAGE_CHARACTERS_MAX = 2000
#: The most owners whose failures on a node are remembered.
FAILURES_MAX = 16
_SEEN_RUNNING = (AttemptState.STARTING, AttemptState.RUNNING)


def apply_reports(context: cycle_context.CycleContext, structure: desired.Structure) -> None:
    """Apply every report, oldest first, then the times at which nodes were answered."""
    nodes, now = context.nodes, context.now
    tasks = _TaskReports(
        context.attempts,
        context.losses,
        nodes=nodes,
        jobs=context.jobs,
        pools=structure.pools,
        events=context.events,
        now=now,
    )
    reader = _NodeReports(
        structure,
        nodes,
        attempts=context.attempts,
        losses=context.losses,
        tasks=tasks,
        events=context.events,
        now=now,
    )
    for report in report_order.in_order(context.observed.reports, nodes.known):
        reader.apply(report)
    for name, told_at in context.observed.answered.items():
        node, at = nodes.get(name), min(now, told_at)
        if node is not None and at > node.last_answer_at:
            nodes.renew(node, last_answer_at=at)


def _inventory(node: records.NodeRecord, report: records.NodeReport) -> records.Inventory:
    """Return the node's inventory. An agent that has just begun has checked nothing yet."""
    if report.inventory is None:
        return node.inventory
    reported = report_limits.inventory(report.inventory)
    if reported.unchecked:
        reported = msgspec.structs.replace(reported, checks=node.inventory.checks)
    return reported


class _TaskReports:
    """The reports about tasks.

    Args:
        attempts: of this cycle.
        losses: of attempts in this cycle.
        nodes: of this cycle. Failures of tasks are counted there.
        jobs: of this cycle.
        pools: by name.
        events: of this cycle.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        attempts: cycle_attempts.CycleAttempts,
        losses: attempt_losses.AttemptLosses,
        *,
        nodes: cycle_nodes.CycleNodes,
        jobs: cycle_jobs.CycleJobs,
        pools: Mapping[str, desired.Pool],
        events: cycle_events.CycleEvents,
        now: float,
    ) -> None:
        self._attempts = attempts
        self._losses = losses
        self._nodes = nodes
        self._jobs = jobs
        self._pools = pools
        self._events = events
        self._now = now

    def apply(self, node: records.NodeRecord, reported: records.AttemptReport) -> None:
        attempt = self._attempts.get(reported.id)
        if attempt is None or attempt.node != node.name:
            if reported.state is AttemptState.ENDED:
                self._attempts.acknowledge(reported.id, node.name)
            return
        if reported.state is AttemptState.ENDED:
            if attempt.state is not AttemptState.ENDED or late_successes.may_correct(
                attempt, reported
            ):
                self._end(attempt, reported)
            self._attempts.acknowledge(reported.id, node.name)
            return
        if attempt.state is AttemptState.ENDED:
            return  # it was given up but lives: the node stops it, because its set does not have it
        state = AttemptState.STOPPING if attempt.stop is not None else reported.state
        if reported.state not in _ALIVE or (attempt.state, state) not in ATTEMPT_TRANSITIONS:
            state = attempt.state
        started_at, saved = self._started_at(attempt, reported), self._saved(attempt, reported)
        message = attempt.message
        if reported.state is AttemptState.RUNNING and reported.message:  # told of its start
            message = task_reports.told_text(reported.message, MESSAGE_CHARACTERS_MAX)
        before = (attempt.state, attempt.started_at, attempt.saved, attempt.message)
        if (state, started_at, saved, message) != before:
            self._attempts.renew(
                attempt, state=state, started_at=started_at, saved=saved, message=message
            )
            if state is AttemptState.RUNNING and attempt.state is not AttemptState.RUNNING:
                self._events.add(
                    "AttemptRunning",
                    f"{self._losses.task_text(attempt)} runs",
                    job=attempt.job,
                    node=attempt.node,
                    attempt=attempt.id,
                )

    def _end(
        self,
        attempt: records.AttemptRecord,
        reported: records.AttemptReport,
    ) -> None:
        code = task_reports.exit_code(reported.exit_code)
        signal = task_reports.signal_number(reported.signal)
        reason = reported.end_reason or EndReason.EXITED
        message = task_reports.told_text(reported.message, MESSAGE_CHARACTERS_MAX)
        self._attempts.renew(
            attempt,
            state=AttemptState.ENDED,
            started_at=self._started_at(attempt, reported),
            ended_at=self._now
            if reported.ended_at is None
            else self._moment(attempt, reported.ended_at),
            exit_code=code,
            signal=signal,
            end_reason=reason,
            message=message,
            max_memory_bytes=min(report_limits.AMOUNT_MAX, max(0, reported.max_memory_bytes)),
            cpu_s=task_usage.seconds(reported.cpu_s),
            measured_gpu_s=task_usage.seconds(reported.measured_gpu_s),
            busy_gpu_s=min(
                task_usage.seconds(reported.busy_gpu_s), task_usage.seconds(reported.measured_gpu_s)
            ),
            read_bytes=min(report_limits.AMOUNT_MAX, max(0, reported.read_bytes)),
            written_bytes=min(report_limits.AMOUNT_MAX, max(0, reported.written_bytes)),
            saved=self._saved(attempt, reported),
        )
        self._count_failure(self._attempts.renewed[attempt.id])
        how = f" with signal {signal}" if signal else "" if code is None else f" with status {code}"
        detail = f": {message}" if message else ""
        self._events.add(
            "AttemptEnded",
            f"{self._losses.task_text(attempt)}: {reason.value}{how}{detail}",
            job=attempt.job,
            node=attempt.node,
            attempt=attempt.id,
        )

    def _started_at(
        self,
        attempt: records.AttemptRecord,
        reported: records.AttemptReport,
    ) -> float | None:
        if attempt.started_at is not None or reported.started_at is None:
            return attempt.started_at
        return self._moment(attempt, reported.started_at)

    def _saved(
        self,
        attempt: records.AttemptRecord,
        reported: records.AttemptReport,
    ) -> task_reports.Saved | None:
        """Return the newest checkpoint. One that the node no longer reports stays known."""
        one = reported.checkpoint
        if one is None or not one.path or len(one.path) > task_reports.PATH_CHARACTERS_MAX:
            return attempt.saved
        at = min(self._now, max(0.0, one.at))  # this order of arguments drops NaN
        if attempt.saved is not None and at <= attempt.saved.at:
            return attempt.saved
        step = one.step if one.step is not None and math.isfinite(one.step) else None
        return task_reports.Saved(
            one.path, at, step, min(report_limits.AMOUNT_MAX, max(0, one.bytes))
        )

    def _moment(self, attempt: records.AttemptRecord, reported: float) -> float:
        """Return a moment of a node's clock, bounded by the assignment and now."""
        return min(
            self._now, max(attempt.assigned_at, reported)
        )  # this order of arguments drops NaN

    def _count_failure(self, ended: records.AttemptRecord) -> None:
        """Note that a task failed on its own on its node. A success clears the count."""
        node = self._nodes.get(ended.node)
        pool = self._pools.get(node.pool) if node else None
        if node is None or pool is None or pool.black_hole is None or ended.stop is not None:
            return
        if ended.end_reason is not EndReason.EXITED or ended.started_at is None:
            return
        if ended.exit_code == 0:
            if node.failures:
                self._nodes.renew(node, failures=())
            return
        spec = self._jobs.spec_of(ended.job)
        owner = spec.owner if spec else ""
        ran_s = max(0.0, (ended.ended_at or self._now) - ended.started_at)
        others = tuple(one for one in node.failures if one.owner != owner)
        failures = (*others, records.QuickFailure(owner, self._now, ran_s))[-FAILURES_MAX:]
        self._nodes.renew(node, failures=failures)


class _NodeReports:
    """The reports of nodes about themselves and their tasks.

    Args:
        structure: in force.
        nodes: of this cycle.
        attempts: of this cycle.
        losses: of attempts in this cycle.
        tasks: applies what is reported of each task.
        events: of this cycle.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        structure: desired.Structure,
        nodes: cycle_nodes.CycleNodes,
        *,
        attempts: cycle_attempts.CycleAttempts,
        losses: attempt_losses.AttemptLosses,
        tasks: _TaskReports,
        events: cycle_events.CycleEvents,
        now: float,
    ) -> None:
        self._structure = structure
        self._nodes = nodes
        self._attempts = attempts
        self._losses = losses
        self._tasks = tasks
        self._events = events
        self._now = now

    def apply(self, report: records.NodeReport) -> None:
        node = self._nodes.get(report.node)
        if node is None:
            pool = self._structure.pool_of_node().get(report.node, "")
            node = records.NodeRecord(
                name=report.node,
                state=NodeState.UNKNOWN,
                pool=pool,
                first_seen_at=report.received_at,
            )
            self._nodes.add(node)
            self._events.add("NodeSeen", "its agent reports for the first time", node=node.name)
        heard_at = max(node.last_report_at, min(self._now, report.received_at))
        if report_order.tells_nothing(report):
            self._nodes.renew(node, undecided=report.undecided, last_report_at=heard_at)
            return
        if node.boot_id and report.boot_id != node.boot_id:
            self._lose_earlier_boot(node, report)
        if node.incarnation and report.incarnation != node.incarnation:
            self._events.add("AgentRestarted", "a new agent process reports", node=node.name)
        node = self._nodes.renew(
            node,
            boot_id=report.boot_id,
            incarnation=report.incarnation,
            sequence=report.sequence,
            inventory=_inventory(node, report),
            usage=report_limits.usage(report.usage, self._now) if report.usage else node.usage,
            # a report that waited while the clock was set back was not received after now
            last_report_at=heard_at,
            undecided=report.undecided,
            unwanted=self._unwanted(node, report),
        )
        for reported in report.attempts:
            self._tasks.apply(node, reported)
        if report.complete:
            self._lose_unlisted(node, {reported.id for reported in report.attempts})

    def _unwanted(self, node: records.NodeRecord, report: records.NodeReport) -> tuple[str, ...]:
        """Return attempts that live on the node although they were given up."""
        found = set() if report.complete else set(node.unwanted)
        for reported in report.attempts:
            if reported.state is AttemptState.ENDED:
                found.discard(reported.id)
            elif reported.state not in _AHEAD:
                attempt = self._attempts.get(reported.id)
                if attempt is None or attempt.state is AttemptState.ENDED:
                    found.add(reported.id)
        return tuple(sorted(found))

    def _lose_earlier_boot(self, node: records.NodeRecord, report: records.NodeReport) -> None:
        """End the attempts of a machine's earlier boot."""
        ended = {
            reported.id for reported in report.attempts if reported.state is AttemptState.ENDED
        }
        for attempt in self._attempts.of_node(node.name):
            if attempt.boot_id != report.boot_id and attempt.id not in ended:
                message = f"{node.name} was started again"
                self._losses.lose(attempt, EndReason.NODE_LOST, message, unseen=True)
        self._events.add("NodeRebooted", "another boot of the node reports", node=node.name)

    def _lose_unlisted(self, node: records.NodeRecord, listed: set[str]) -> None:
        """End attempts that the node reported before and no longer knows.

        Others are on their way to it.
        """
        for attempt in self._attempts.of_node(node.name):
            if attempt.id in listed or attempt.boot_id != node.boot_id:
                continue
            seen = attempt.state in _SEEN_RUNNING or attempt.started_at is not None
            if seen:
                message = f"{node.name} no longer knows it"
                self._losses.lose(attempt, EndReason.LOST, message, unseen=True)
