"""Forgets finished jobs and gone nodes, a bounded number per cycle.

The store keeps them as history.

A finished job is shown for some time after its document has left git. A node is forgotten some time
after its last report, if no pool declares it and nothing of it is left. Keys of runs stay for ever.
"""

import math

from reconciler.core import cycle_context
from reconciler.core.nodes import health
from reconciler.model.state import records
from reconciler.model.state.states import NodeState

#: The most jobs, and the most nodes, that are forgotten in one cycle.
BATCH = 1000
#: The shortest time between two looks, and between two that each forget a whole batch.
EVERY_S = 600.0
AGAIN_S = 5.0


def apply(context: cycle_context.CycleContext) -> None:
    """Forget what is due, and request the next look."""
    due_at = context.observed.forget_at
    if due_at is not None and due_at <= context.now:
        context.forget_at = min(_jobs(context), _nodes(context))
    elif _something_new(context):
        soon = context.now + EVERY_S
        context.forget_at = soon if due_at is None else min(due_at, soon)
    else:
        context.forget_at = math.inf if due_at is None else due_at
    if context.forget_at < math.inf:
        context.alarm.wake(context.forget_at)


def _something_new(context: cycle_context.CycleContext) -> bool:
    """Return True if there may be something to forget that the last look did not see."""
    desired_state, observed = context.desired, context.observed
    if any(name not in desired_state.jobs for name in context.jobs.finished_now):
        return True
    is_other = desired_state.generation != observed.desired_generation
    if is_other and len(observed.jobs) > len(observed.active):
        return True
    known = context.nodes.known
    return any(
        node.state is NodeState.GONE and (name not in known or known[name].state is not node.state)
        for name, node in context.nodes.renewed.items()
    )


def _jobs(context: cycle_context.CycleContext) -> float:
    """Forget finished jobs without a document. Return when to look again."""
    if context.desired.status.sync == "Unknown":
        return context.now + EVERY_S  # an unreadable repository removes nothing
    settings = context.desired.structure.settings
    unasked = _unasked(context)
    excess = len(unasked) - settings.retain_finished_jobs_max
    due: list[str] = []
    next_at = math.inf
    for position, record in enumerate(unasked):
        leaves_at = (record.ended_at or 0.0) + settings.retain_finished_jobs_s
        if position < excess or leaves_at <= context.now:
            due.append(record.name)
        else:
            next_at = leaves_at
            break
    if due:
        needed = _needed(context)
        due = [name for name in due if name not in needed]
    context.left_jobs += due[:BATCH]
    if len(due) > BATCH:
        return context.now + AGAIN_S
    return max(next_at, context.now + EVERY_S)


def _unasked(context: cycle_context.CycleContext) -> list[records.JobRecord]:
    """Return finished jobs without a document, those that ended first in front."""
    desired_state, observed = context.desired, context.observed
    found = [
        record
        for name, record in observed.jobs.items()
        if name not in observed.active
        and name not in desired_state.jobs
        and name not in desired_state.refused
        and name not in context.jobs.drafts
    ]
    return sorted(found, key=lambda record: (record.ended_at or 0.0, record.order))


def _needed(context: cycle_context.CycleContext) -> set[str]:
    """Return jobs for whose end others wait, now or in the run that git asks for next."""
    needed: set[str] = set()
    for name in context.jobs.active_names():
        draft = context.jobs.drafts.get(name)
        spec = draft.spec if draft else context.jobs.known[name].spec
        needed.update(dependency.job for dependency in spec.depends_on)
        following = context.desired.jobs.get(name)
        if following is not None:
            needed.update(dependency.job for dependency in following.depends_on)
    for record in context.observed.quarantined.values():
        needed.update(dependency.job for dependency in record.spec.depends_on)
    return needed


def _nodes(context: cycle_context.CycleContext) -> float:
    """Forget nodes that are gone for long. Return when to look again."""
    retain_s = context.desired.structure.settings.retain_gone_nodes_s
    next_at = math.inf
    due: list[str] = []
    for name in context.nodes.names():
        node = context.nodes.get(name)
        if node is None or node.state is not NodeState.GONE or node.pool:
            continue
        leaves_at = health.last_contact(node) + retain_s
        if leaves_at <= context.now:
            due.append(name)
        else:
            next_at = min(next_at, leaves_at)
    for name in due[:BATCH]:
        context.nodes.forget(name)
    if len(due) > BATCH:
        return context.now + AGAIN_S
    return max(next_at, context.now + EVERY_S)
