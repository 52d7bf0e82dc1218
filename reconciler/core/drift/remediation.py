"""Makes differences right where policy says so: what the last cycle listed is acted on in this one.

A difference is therefore always listed before anything is done about it. What a node has to do
goes to it as an order that it carries out once; what became of it comes back with its reports.
"""

from collections.abc import Callable
from typing import cast

from reconciler.core import cycle_context, rate_limits
from reconciler.core.jobs import lifecycle, running_gangs
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

#: A node that has not told of an order after so long never got it, or is away.
LOST_AFTER_S = 300.0
#: How much longer it may take where its machine boots: large ones test their memory for long.
BOOT_S = 1800.0
#: How long a node waits for another look whether it is its turn.
TURN_S = 60.0
#: States of a machine on its way out.
_LEAVING = (InstanceState.DRAINING, InstanceState.DESTROYING)
#: The most nodes that are named whose turn comes first.
NAMED_MAX = 3
#: The most elements that leave an overfull queue at once.
EVICT_MAX = 200


def apply(context: cycle_context.CycleContext, states: provisioning.PoolStates) -> None:
    """Take up what nodes tell of their orders, and order what is due."""
    before = context.observed.remedies
    if not before and not any(row.action == "remediate" for row in context.observed.drift):
        return
    _take_reports(context)
    for one in list(context.remedies):
        lost_at = one.at + LOST_AFTER_S + (BOOT_S if one.verb == "reboot" else one.timeout_s)
        if one.open and lost_at <= context.now:
            _end(context, one, "lost", f"{one.node} has not told what became of it")
        elif one.open:
            context.wake(lost_at)
    context.forget_remedies(context.now - rate_limits.REMEMBER_S, rate_limits.REMEDIES_MAX)
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
        for told in report.remedies:
            one = known.pop(told.id, None)
            if one is None or one.node != report.node:
                continue
            state: RemedyState = "done" if told.done else "failed"
            _end(context, one, state, rate_limits.shorten(told.message))


def _end(
    context: cycle_context.CycleContext, one: DriftRemedy, state: RemedyState, message: str
) -> None:
    """A try is over; a node that was kept out by it alone is looked at again."""
    context.end_remedy(one, state, message)
    if one.verb in IDLE_VERBS:
        context.wake(context.now)


def _end_process(
    context: cycle_context.CycleContext, _: provisioning.PoolStates, row: Drift
) -> None:
    """Have the node end a process that holds a device of its and is no task's."""
    node = context.node(row.node)
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
    """Tell a node its whole set again, where it has not taken up an attempt."""
    attempt = context.attempt(row.attempt)
    if attempt is not None and attempt.state is AttemptState.ASSIGNED:
        _order(context, row, rate_limits.begin(context, "tell", row.key, row.pool))
        context.actions.append(outcome.StartAttempt(attempt=attempt.id, node=attempt.node))


def _evict(context: cycle_context.CycleContext, _: provisioning.PoolStates, row: Drift) -> None:
    """Tell preemptible work of an overfull queue to leave, the newest first."""
    queue = context.desired.structure.queues.get(row.subject)
    if queue is None:
        return
    running = (
        (attempt, spec)
        for attempt in context.live_attempts()
        if (spec := running_gangs.spec_of(context, attempt.job)) is not None
    )
    over, elements = over_limit.excess(context.desired.structure, queue, running)
    if all(amount <= 0 for amount in over):
        return  # what has to leave is leaving already
    chosen = over_limit.choose(over, elements, EVICT_MAX)
    message = "" if chosen else "nothing of what runs there may be made to leave"
    _order(context, row, rate_limits.begin(context, "evict", row.key, row.pool, message=message))
    for element in chosen:
        draft = context.draft(element.job)
        if draft is not None and draft.note(element.element).verdict is None:
            lifecycle.give_verdict(context, draft, element.element, EndReason.PREEMPTED)
            who = draft.spec.element_text(element.element)
            message = f"{who} leaves: queue {queue.name} is above its limit"
            context.event("JobEvicted", message, job=element.job)
            lifecycle.settle(context, draft)


def _heal(context: cycle_context.CycleContext, states: provisioning.PoolStates, row: Drift) -> None:
    """Have a node do what its pool says about a failed check, one after another.

    A node that a person has drained is left to that person; one on which something runs is
    waited for, as it takes nothing new.
    """
    node, healing = context.node(row.node), rate_limits.healing_of(context, row.pool, row.subject)
    if node is None or healing is None or node.state is not NodeState.UNHEALTHY:
        return
    if waits_for(context, states, row.node, row.pool, row.subject):
        if (
            len(_busy(context, states, row.pool))
            >= context.desired.structure.pools[row.pool].remedies_at_once
        ):
            context.wake(context.now + TURN_S)
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
    """What a remedy of a failed check waits for that limits would let begin; empty: for nothing."""
    node, healing = context.node(name), rate_limits.healing_of(context, pool, subject)
    declared = context.desired.structure.pools.get(pool)
    if node is None or healing is None or declared is None:
        return ""
    if node.drain is not None:
        return f"nothing is done while {name} is drained"
    if healing.verb in IDLE_VERBS and context.attempts_of_node(name):
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
    """Nodes of a pool on which something is done, or whose machines are leaving to be replaced."""
    leaving = {
        one.node
        for book in states.values()
        for one in book.instances.values()
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
    """Have the provisioner make the machine behind a node anew; from here on that is its work."""
    remedy = rate_limits.begin(context, "replace", row.key, row.pool, node=row.node)
    _order(context, row, remedy)
    check = row.subject.rpartition("/")[2]
    refused = provisioning.replace(states, row.node, f"{check} has failed: {why}")
    context.end_remedy(remedy, "failed" if refused else "done", refused)


def _order(context: cycle_context.CycleContext, row: Drift, remedy: DriftRemedy) -> None:
    message = f"{row.key}: {remedy.verb}"
    context.event("RemedyBegun", message, job=row.job, node=row.node, attempt=row.attempt)


#: What is done by this module, by kind of difference; the life cycle does others.
_REMEDIES: dict[
    str, Callable[[cycle_context.CycleContext, provisioning.PoolStates, Drift], None]
] = {
    "gpu-process-foreign": _end_process,
    "task-missing": _tell,
    "queue-over-limit": _evict,
    "node-check-failed": _heal,
}
