"""Remediates differences that the last cycle listed, if policy says so.

A node gets an order that it carries out once, and reports the result.
"""

from collections.abc import Callable
from typing import cast

from reconciler.core import cycle_context, rate_limits
from reconciler.core.jobs import lifecycle
from reconciler.core.pools import provisioning
from reconciler.core.quota import over_limit
from reconciler.model.policy.drift_kinds import (
    HEALING_VERBS,
    IDLE_VERBS,
    Drift,
    DriftRemedy,
    RemedyState,
    RemedyVerb,
)
from reconciler.model.state import outcome
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


def apply(context: cycle_context.CycleContext, states: provisioning.PoolStates) -> None:
    """Take the results that nodes report, and order what is due."""
    before = context.observed.remedies
    if not before and not any(row.action == "remediate" for row in context.observed.drift):
        return
    _take_reports(context)
    for one in list(context.remedies):
        lost_at = one.at + LOST_AFTER_S + (BOOT_S if one.verb == "reboot" else one.timeout_s)
        if one.open and lost_at <= context.now:
            _end(context, one, "lost", f"{one.node} did not report a result")
        elif one.open:
            context.alarm.wake(lost_at)
    context.remedies.forget(context.now - rate_limits.REMEMBER_S, rate_limits.REMEDIES_MAX)
    for row in context.observed.drift:
        remedy = _REMEDIES.get(row.kind)
        if remedy is not None and rate_limits.may_begin(context, row.kind, row.key, row.pool):
            remedy(context, states, row)
    was_open = {one.id: one.node for one in before if one.open}
    is_open = {one.id: one.node for one in context.remedies if one.open}
    changed = was_open.items() ^ is_open.items()
    for node in sorted({node for _, node in changed}):
        context.actions.append(outcome.TellRemedies(node))


def _take_reports(context: cycle_context.CycleContext) -> None:
    known = {one.id: one for one in context.remedies if one.open}
    for report in context.observed.reports:
        for reported in report.remedies:
            one = known.pop(reported.id, None)
            if one is None or one.node != report.node:
                continue
            state: RemedyState = "done" if reported.done else "failed"
            _end(context, one, state, rate_limits.shorten(reported.message))


def _end(
    context: cycle_context.CycleContext, one: DriftRemedy, state: RemedyState, message: str
) -> None:
    """End a remediation. A node that only it kept out of service is judged again."""
    _note_end(context, one, state, message)
    if one.verb in IDLE_VERBS:
        context.alarm.wake(context.now)


def _note_end(
    context: cycle_context.CycleContext, one: DriftRemedy, state: RemedyState, message: str
) -> None:
    """Note the end of a remediation, which is an event."""
    context.remedies.end(one, state, message, at=context.now)
    detail = f": {message}" if message else ""
    context.events.add("RemedyEnded", f"{one.cause}: {one.verb} {state}{detail}", node=one.node)


def _end_process(
    context: cycle_context.CycleContext, _: provisioning.PoolStates, row: Drift
) -> None:
    """Order a node to end a process that uses a GPU and belongs to no task."""
    node = context.nodes.get(row.node)
    if node is None:
        return
    for one in node.inventory.foreign_gpu_processes:
        if row.subject == f"{row.node}/gpu{one.gpu}/{one.pid}":
            _order(
                context,
                row,
                rate_limits.begin(
                    context,
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


def _tell(context: cycle_context.CycleContext, _: provisioning.PoolStates, row: Drift) -> None:
    """Send a node its whole set again, because it has not started an attempt."""
    attempt = context.attempts.get(row.attempt)
    if attempt is not None and attempt.state is AttemptState.ASSIGNED:
        _order(context, row, rate_limits.begin(context, "tell", row.key, row.pool))
        context.actions.append(outcome.StartAttempt(attempt=attempt.id, node=attempt.node))


def _evict(context: cycle_context.CycleContext, _: provisioning.PoolStates, row: Drift) -> None:
    """Evict preemptible elements from a queue above its limit, the newest first."""
    queue = context.desired.structure.queues.get(row.subject)
    if queue is None:
        return
    running = (
        (attempt, spec)
        for attempt in context.attempts.live()
        if (spec := context.jobs.spec_or_aside(attempt.job)) is not None
    )
    over, elements = over_limit.excess(context.desired.structure, queue, running)
    if all(amount <= 0 for amount in over):
        return  # enough is leaving already
    chosen = over_limit.choose(over, elements, EVICT_MAX)
    message = "" if chosen else "nothing that runs there may be preempted"
    _order(context, row, rate_limits.begin(context, "evict", row.key, row.pool, message=message))
    for element in chosen:
        draft = context.jobs.draft(element.job)
        if draft is not None and draft.note(element.element).verdict is None:
            lifecycle.give_verdict(context, draft, element.element, EndReason.PREEMPTED)
            element_name = draft.spec.element_text(element.element)
            message = f"{element_name} is evicted: queue {queue.name} is above its limit"
            context.events.add("JobEvicted", message, job=element.job)
            lifecycle.settle(context, draft)


def _heal(context: cycle_context.CycleContext, states: provisioning.PoolStates, row: Drift) -> None:
    """Order a node to do what its pool says about a failed check, one after another.

    A node that a person drained is left to that person. A busy node is waited for, because it gets
    no new work.
    """
    node, healing = (
        context.nodes.get(row.node),
        rate_limits.healing_of(context, row.pool, row.subject),
    )
    if node is None or healing is None or node.state is not NodeState.UNHEALTHY:
        return
    if waits_for(context, states, row.node, row.pool, row.subject):
        if (
            len(_busy(context, states, row.pool))
            >= context.desired.structure.pools[row.pool].remedies_at_once
        ):
            context.alarm.wake(context.now + TURN_S)
        return
    name = row.subject.rpartition("/")[2]
    found = next((one for one in node.inventory.checks if one.name == name), None)
    if found is None or found.verdict != "failed":
        return
    if healing.verb == "replace":
        _replace(context, states, row, found.message)
        return
    remedy = rate_limits.begin(
        context,
        cast("RemedyVerb", healing.verb),
        row.key,
        row.pool,
        node=row.node,
        devices=found.devices,
        command=healing.command,
        timeout_s=healing.timeout_s,
    )
    _order(context, row, remedy)


def waits_for(
    context: cycle_context.CycleContext,
    states: provisioning.PoolStates,
    name: str,
    pool: str,
    subject: str,
) -> str:
    """Return what the remediation of a failed check waits for besides rate limits.

    Empty: for nothing.
    """
    node, healing = context.nodes.get(name), rate_limits.healing_of(context, pool, subject)
    declared = context.desired.structure.pools.get(pool)
    if node is None or healing is None or declared is None:
        return ""
    if node.drain is not None:
        return f"nothing is done while {name} is drained"
    if healing.verb in IDLE_VERBS and context.attempts.of_node(name):
        return f"waits until nothing runs on {name}"
    busy = _busy(context, states, pool)
    if name in busy:
        return f"waits for another remedy of {name}"
    if len(busy) >= declared.remedies_at_once:
        return (
            f"waits for {', '.join(sorted(busy)[:NAMED_MAX])}: {declared.remedies_at_once} at once"
        )
    return ""


def _busy(
    context: cycle_context.CycleContext, states: provisioning.PoolStates, pool: str
) -> set[str]:
    """Return the nodes of a pool with an open remediation, or whose machine is being replaced."""
    leaving = {
        one.node
        for pool_record in states.values()
        for one in pool_record.instances.values()
        if one.state in _LEAVING
    }
    busy = set()
    for one in context.remedies:
        if one.pool != pool or not one.node:
            continue
        replaced = one.verb == "replace" and one.node in leaving
        if replaced or (one.open and one.verb in HEALING_VERBS):
            busy.add(one.node)
    return busy


def _replace(
    context: cycle_context.CycleContext, states: provisioning.PoolStates, row: Drift, why: str
) -> None:
    """Order the provisioner to replace the machine behind a node. The provisioner does the rest."""
    remedy = rate_limits.begin(context, "replace", row.key, row.pool, node=row.node)
    _order(context, row, remedy)
    check = row.subject.rpartition("/")[2]
    refused = provisioning.replace(
        states, row.node, f"{check} has failed: {why}", context.override_drains
    )
    _note_end(context, remedy, "failed" if refused else "done", refused)


def _order(context: cycle_context.CycleContext, row: Drift, remedy: DriftRemedy) -> None:
    message = f"{row.key}: {remedy.verb}"
    context.events.add("RemedyBegun", message, job=row.job, node=row.node, attempt=row.attempt)


#: Remediations of this module by kind of difference. ``lifecycle`` has the others.
_REMEDIES: dict[
    str, Callable[[cycle_context.CycleContext, provisioning.PoolStates, Drift], None]
] = {
    "gpu-process-foreign": _end_process,
    "task-missing": _tell,
    "queue-over-limit": _evict,
    "node-check-failed": _heal,
}
