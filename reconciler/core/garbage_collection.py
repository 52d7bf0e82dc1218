"""Forgets finished jobs and gone nodes, a bounded number per cycle.

The store keeps them as history.

A finished job is shown for some time after its document has left git. A node is forgotten some time
after its last report, if no pool declares it and nothing of it is left. Keys of runs stay for ever.
"""

import math

from reconciler.core import cycle_context
from reconciler.core.cycle import cycle_jobs, cycle_nodes
from reconciler.core.nodes import health
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import NodeState

#: The most jobs, and the most nodes, that are forgotten in one cycle.
BATCH = 1000
#: The shortest time between two looks, and between two that each forget a whole batch.
EVERY_S = 600.0
AGAIN_S = 5.0


def apply(context: cycle_context.CycleContext, desired_state: desired.Desired) -> None:
    """Forget what is due, and request the next look."""
    due_at = context.observed.forget_at
    if due_at is not None and due_at <= context.now:
        retain_s = desired_state.structure.settings.retain_gone_nodes_s
        context.left_jobs, jobs_at = _jobs(
            desired_state, context.observed, context.jobs, context.now
        )
        context.forget_at = min(jobs_at, _nodes(context.nodes, retain_s, context.now))
    elif _is_something_new(desired_state, context.observed, context.jobs, context.nodes):
        soon = context.now + EVERY_S
        context.forget_at = soon if due_at is None else min(due_at, soon)
    else:
        context.forget_at = math.inf if due_at is None else due_at
    if context.forget_at < math.inf:
        context.alarm.wake(context.forget_at)


def _is_something_new(
    desired_state: desired.Desired,
    observed: records.Observed,
    jobs: cycle_jobs.CycleJobs,
    nodes: cycle_nodes.CycleNodes,
) -> bool:
    """Return True if there may be something to forget that the last look did not see."""
    if any(name not in desired_state.jobs for name in jobs.finished_now):
        return True
    is_other = desired_state.generation != observed.desired_generation
    if is_other and len(observed.jobs) > len(observed.active):
        return True
    known = nodes.known
    return any(
        node.state is NodeState.GONE and (name not in known or known[name].state is not node.state)
        for name, node in nodes.renewed.items()
    )


def _jobs(
    desired_state: desired.Desired,
    observed: records.Observed,
    jobs: cycle_jobs.CycleJobs,
    now: float,
) -> tuple[list[str], float]:
    """Return finished jobs without a document to forget, and when to look again."""
    if desired_state.status.sync == "Unknown":
        return [], now + EVERY_S  # an unreadable repository removes nothing
    settings = desired_state.structure.settings
    unasked = _unasked(desired_state, observed, jobs)
    excess = len(unasked) - settings.retain_finished_jobs_max
    due: list[str] = []
    next_at = math.inf
    for position, record in enumerate(unasked):
        leaves_at = (record.ended_at or 0.0) + settings.retain_finished_jobs_s
        if position < excess or leaves_at <= now:
            due.append(record.name)
        else:
            next_at = leaves_at
            break
    if due:
        needed = _needed(desired_state, observed, jobs)
        due = [name for name in due if name not in needed]
    again_at = now + AGAIN_S if len(due) > BATCH else max(next_at, now + EVERY_S)
    return due[:BATCH], again_at


def _unasked(
    desired_state: desired.Desired, observed: records.Observed, jobs: cycle_jobs.CycleJobs
) -> list[records.JobRecord]:
    """Return finished jobs without a document, those that ended first in front."""
    found = [
        record
        for name, record in observed.jobs.items()
        if name not in observed.active
        and name not in desired_state.jobs
        and name not in desired_state.refused
        and name not in jobs.drafts
    ]
    return sorted(found, key=lambda record: (record.ended_at or 0.0, record.order))


def _needed(
    desired_state: desired.Desired, observed: records.Observed, jobs: cycle_jobs.CycleJobs
) -> set[str]:
    """Return jobs for whose end others wait, now or in the run that git asks for next."""
    needed: set[str] = set()
    for name in jobs.active_names():
        for spec in (jobs.spec_of(name), desired_state.jobs.get(name)):
            if spec is not None:
                needed.update(dependency.job for dependency in spec.depends_on)
    for record in observed.quarantined.values():
        needed.update(dependency.job for dependency in record.spec.depends_on)
    return needed


def _nodes(nodes: cycle_nodes.CycleNodes, retain_s: float, now: float) -> float:
    """Forget nodes that are gone for long. Return when to look again."""
    next_at = math.inf
    due: list[str] = []
    for name in nodes.names():
        node = nodes.get(name)
        if node is None or node.state is not NodeState.GONE or node.pool:
            continue
        leaves_at = health.last_contact(node) + retain_s
        if leaves_at <= now:
            due.append(name)
        else:
            next_at = min(next_at, leaves_at)
    for name in due[:BATCH]:
        nodes.forget(name)
    if len(due) > BATCH:
        return now + AGAIN_S
    return max(next_at, now + EVERY_S)
