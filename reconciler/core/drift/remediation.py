"""Remediates differences that the last cycle listed, if policy says so.

A node gets an order that it carries out once, and reports the result.
"""

import functools
from collections.abc import Callable, Iterable
from typing import cast

from reconciler.core import cycle_attempts, cycle_context, rate_limits, remedy_log
from reconciler.core.cycle import cycle_alarm, cycle_events, cycle_jobs, cycle_nodes, stop_orders
from reconciler.core.jobs import lifecycle, verdicts
from reconciler.core.pools import provisioning
from reconciler.core.quota import over_limit
from reconciler.model import desired
from reconciler.model.policy.drift_kinds import (
    HEALING_VERBS,
    IDLE_VERBS,
    Drift,
    DriftRemedy,
    RemedyState,
    RemedyVerb,
)
from reconciler.model.state import outcome, records
from reconciler.model.state.instance_records import InstanceState
from reconciler.model.state.states import AttemptState, EndReason, NodeState

#: An order without a result after so long was never received, or its node is away.
LOST_AFTER_S = 300.0
#: Additional time if the machine reboots. Large machines test their memory for long.
BOOT_S = 1800.0
#: How often a waiting node is checked again.
TURN_S = 60.0
#: States of a machine that is going away.
_LEAVING = (InstanceState.DRAINING, InstanceState.DESTROYING)
#: The most nodes named in a message.
NAMED_MAX = 3
#: The most elements evicted from a queue at once.
EVICT_MAX = 200


#: Notes the end of a remediation: state, and the message of the node.
_NoteEnd = Callable[[DriftRemedy, RemedyState, str], None]


def apply(
    context: cycle_context.CycleContext,
    structure: desired.Structure,
    states: provisioning.PoolStates,
) -> None:
    """Take the results that nodes report, and order what is due."""
    before, remedies = context.observed.remedies, context.remedies
    if not before and not any(row.action == "remediate" for row in context.observed.drift):
        return
    limits = rate_limits.RateLimits(structure, remedies, context.now)
    end = functools.partial(_end, limits=limits, events=context.events, alarm=context.alarm)
    _take_reports(context.observed.reports, remedies, end)
    for tried in list(remedies):
        lost_at = tried.at + LOST_AFTER_S + (BOOT_S if tried.verb == "reboot" else tried.timeout_s)
        if tried.open and lost_at <= context.now:
            end(tried, "lost", f"{tried.node} did not report a result")
        elif tried.open:
            context.alarm.wake(lost_at)
    remedies.forget(context.now - rate_limits.REMEMBER_S, rate_limits.REMEDIES_MAX)
    remedy_of = _remedy_of(context, states, limits)
    for row in context.observed.drift:
        remedy = remedy_of.get(row.kind)
        if remedy is not None and limits.may_begin(row.kind, row.key, row.pool):
            remedy(row)
    was_open = {tried.id: tried.node for tried in before if tried.open}
    is_open = {tried.id: tried.node for tried in remedies if tried.open}
    changed = was_open.items() ^ is_open.items()
    for node in sorted({node for _, node in changed}):
        context.actions.append(outcome.TellRemedies(node))


def _remedy_of(
    context: cycle_context.CycleContext,
    states: provisioning.PoolStates,
    limits: rate_limits.RateLimits,
) -> dict[str, Callable[[Drift], None]]:
    """Return the remediations of this module by kind of difference. ``verdicts`` has the others."""
    events, nodes = context.events, context.nodes
    healer = _Healer(
        limits,
        nodes,
        context.attempts,
        states=states,
        drains=context.override_drains,
        events=events,
        alarm=context.alarm,
    )
    return {
        "gpu-process-foreign": functools.partial(_end_process, limits, nodes, events),
        "task-missing": functools.partial(_tell, limits, context.attempts, events),
        "queue-over-limit": functools.partial(_evict, limits, context.jobs, context.stops, events),
        "node-check-failed": healer.heal,
    }


def _take_reports(
    reports: Iterable[records.NodeReport], remedies: remedy_log.RemedyLog, end: _NoteEnd
) -> None:
    known = {remedy.id: remedy for remedy in remedies if remedy.open}
    for report in reports:
        for reported in report.remedies:
            remedy = known.get(reported.id)
            if remedy is None or remedy.node != report.node:
                continue  # of two reports of one cycle, another node's must not hide its own
            del known[reported.id]
            state: RemedyState = "done" if reported.done else "failed"
            end(remedy, state, rate_limits.shorten(reported.message))


def _end(
    remedy: DriftRemedy,
    state: RemedyState,
    message: str,
    *,
    limits: rate_limits.RateLimits,
    events: cycle_events.CycleEvents,
    alarm: cycle_alarm.CycleAlarm,
) -> None:
    """End a remediation. A node that only it kept out of service is judged again."""
    _note_end(limits, events, remedy, state, message)
    if remedy.verb in IDLE_VERBS:
        alarm.wake(limits.now)


def _note_end(
    limits: rate_limits.RateLimits,
    events: cycle_events.CycleEvents,
    remedy: DriftRemedy,
    state: RemedyState,
    message: str,
) -> None:
    """Note the end of a remediation, which is an event."""
    limits.remedies.end(remedy, state, message, at=limits.now)
    detail = f": {message}" if message else ""
    events.add("RemedyEnded", f"{remedy.cause}: {remedy.verb} {state}{detail}", node=remedy.node)


def _end_process(
    limits: rate_limits.RateLimits,
    nodes: cycle_nodes.CycleNodes,
    events: cycle_events.CycleEvents,
    row: Drift,
) -> None:
    """Order a node to end a process that uses a GPU and belongs to no task."""
    node = nodes.get(row.node)
    if node is None:
        return
    for one in node.inventory.foreign_gpu_processes:
        if row.subject == f"{row.node}/gpu{one.gpu}/{one.pid}":
            _order(
                events,
                row,
                limits.begin(
                    "end-process",
                    row.key,
                    row.pool,
                    node=row.node,
                    pid=one.pid,
                    started_at=one.started_at or 0.0,
                    uuid=one.uuid,
                ),
            )
            return


def _tell(
    limits: rate_limits.RateLimits,
    attempts: cycle_attempts.CycleAttempts,
    events: cycle_events.CycleEvents,
    row: Drift,
) -> None:
    """Send a node its whole set again, because it has not started an attempt."""
    attempt = attempts.get(row.attempt)
    if attempt is not None and attempt.state is AttemptState.ASSIGNED:
        _order(events, row, limits.begin("tell", row.key, row.pool))
        attempts.tell_again(attempt)


def _evict(
    limits: rate_limits.RateLimits,
    jobs: cycle_jobs.CycleJobs,
    stops: stop_orders.StopOrders,
    events: cycle_events.CycleEvents,
    row: Drift,
) -> None:
    """Evict preemptible elements from a queue above its limit, the newest first."""
    queue = limits.structure.queues.get(row.subject)
    if queue is None:
        return
    running = (
        (attempt, spec)
        for attempt in stops.attempts.live()
        if (spec := jobs.spec_or_aside(attempt.job)) is not None
    )
    over, elements = over_limit.excess(limits.structure, queue, running)
    if all(amount <= 0 for amount in over):
        return  # enough is leaving already
    chosen = over_limit.choose(over, elements, EVICT_MAX)
    message = "" if chosen else "nothing that runs there may be preempted"
    _order(events, row, limits.begin("evict", row.key, row.pool, message=message))
    for element in chosen:
        draft = jobs.draft(element.job)
        if draft is not None and draft.note(element.element).verdict is None:
            verdicts.give_verdict(stops, draft, element.element, EndReason.PREEMPTED)
            element_name = draft.spec.element_text(element.element)
            message = f"{element_name} is evicted: queue {queue.name} is above its limit"
            events.add("JobEvicted", message, job=element.job)
            lifecycle.settle(jobs, draft)


def waits_for(
    name: str,
    pool: str,
    subject: str,
    *,
    limits: rate_limits.RateLimits,
    nodes: cycle_nodes.CycleNodes,
    attempts: cycle_attempts.CycleAttempts,
    states: provisioning.PoolStates,
) -> str:
    """Return what the remediation of a failed check waits for besides rate limits.

    Empty: for nothing.
    """
    node, healing = nodes.get(name), limits.healing_of(pool, subject)
    declared = limits.structure.pools.get(pool)
    if node is None or healing is None or declared is None:
        return ""
    if node.drain is not None:
        return f"nothing is done while {name} is drained"
    if healing.verb in IDLE_VERBS and attempts.of_node(name):
        return f"waits until nothing runs on {name}"
    busy = _busy(limits.remedies, states, pool)
    if name in busy:
        return f"waits for another remedy of {name}"
    if len(busy) >= declared.remedies_at_once:
        return (
            f"waits for {', '.join(sorted(busy)[:NAMED_MAX])}: {declared.remedies_at_once} at once"
        )
    return ""


def _busy(remedies: Iterable[DriftRemedy], states: provisioning.PoolStates, pool: str) -> set[str]:
    """Return the nodes of a pool with an open remediation, or whose machine is being replaced."""
    leaving = {
        one.node
        for pool_record in states.values()
        for one in pool_record.instances.values()
        if one.state in _LEAVING
    }
    busy = set()
    for one in remedies:
        if one.pool != pool or not one.node:
            continue
        replaced = one.verb == "replace" and one.node in leaving
        if replaced or (one.open and one.verb in HEALING_VERBS):
            busy.add(one.node)
    return busy


def _order(events: cycle_events.CycleEvents, row: Drift, remedy: DriftRemedy) -> None:
    message = f"{row.key}: {remedy.verb}"
    events.add("RemedyBegun", message, job=row.job, node=row.node, attempt=row.attempt)


class _Healer:
    """The remedies of pools for failed checks of their nodes.

    Args:
        limits: of remediations.
        nodes: of this cycle.
        attempts: of this cycle.
        states: of provisioned pools.
        drains: by node, to which replaced machines are added.
        events: of this cycle.
        alarm: set to the next look at nodes that wait.
    """

    def __init__(
        self,
        limits: rate_limits.RateLimits,
        nodes: cycle_nodes.CycleNodes,
        attempts: cycle_attempts.CycleAttempts,
        *,
        states: provisioning.PoolStates,
        drains: dict[str, desired.NodeDrain],
        events: cycle_events.CycleEvents,
        alarm: cycle_alarm.CycleAlarm,
    ) -> None:
        self._limits = limits
        self._nodes = nodes
        self._attempts = attempts
        self._states = states
        self._drains = drains
        self._events = events
        self._alarm = alarm

    def heal(self, row: Drift) -> None:
        """Order a node to do what its pool says about a failed check, one after another.

        A node that a person drained is left to that person. A busy node is waited for, because it
        gets no new work.
        """
        node, healing = (
            self._nodes.get(row.node),
            self._limits.healing_of(row.pool, row.subject),
        )
        if node is None or healing is None or node.state is not NodeState.UNHEALTHY:
            return
        limits = self._limits
        if waits_for(
            row.node,
            row.pool,
            row.subject,
            limits=limits,
            nodes=self._nodes,
            attempts=self._attempts,
            states=self._states,
        ):
            busy = _busy(limits.remedies, self._states, row.pool)
            if len(busy) >= limits.structure.pools[row.pool].remedies_at_once:
                self._alarm.wake(self._limits.now + TURN_S)
            return
        name = row.subject.rpartition("/")[2]
        found = next((one for one in node.inventory.checks if one.name == name), None)
        if found is None or found.verdict != "failed":
            return
        if healing.verb == "replace":
            self._replace(row, found.message)
            return
        remedy = self._limits.begin(
            cast("RemedyVerb", healing.verb),
            row.key,
            row.pool,
            node=row.node,
            devices=found.devices,
            command=healing.command,
            timeout_s=healing.timeout_s,
        )
        _order(self._events, row, remedy)

    def _replace(self, row: Drift, why: str) -> None:
        """Order the provisioner to replace the machine behind a node. It does the rest."""
        remedy = self._limits.begin("replace", row.key, row.pool, node=row.node)
        _order(self._events, row, remedy)
        check = row.subject.rpartition("/")[2]
        refused = provisioning.replace(
            self._states, row.node, f"{check} has failed: {why}", self._drains
        )
        state: RemedyState = "failed" if refused else "done"
        _note_end(self._limits, self._events, remedy, state, refused)
