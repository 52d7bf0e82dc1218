"""What is finished and no longer asked for leaves the memory, a bounded number at a time.

Git says what is wanted, so a finished job leaves some time after its document has: until then it
is shown. A node leaves some time after it was last heard of, when no pool declares it and nothing
of it is left. The keys of runs stay for ever (``model.runs``). What leaves the memory stays in the
store as history; the store's own retention ends that.

Looking for what may leave goes through all jobs, so it is done at times of its own: when the
first thing is due, never twice within ``EVERY_S`` but to go on where a batch was full.
"""

import math

from reconciler.core import cycle_context
from reconciler.core.nodes import health
from reconciler.model.state import records
from reconciler.model.state.states import NodeState

#: The most jobs, and the most nodes, that leave in one cycle.
BATCH = 1000
#: The least time between two looks, and between two that each let a whole batch go.
EVERY_S = 600.0
AGAIN_S = 5.0


def apply(work: cycle_context.CycleContext) -> None:
    """Let go of what is due, and say when the next look is."""
    due_at = work.observed.look_at
    if due_at is not None and due_at <= work.now:
        work.look_at = min(_jobs(work), _nodes(work))
    elif _something_new(work):
        soon = work.now + EVERY_S
        work.look_at = soon if due_at is None else min(due_at, soon)
    else:
        work.look_at = math.inf if due_at is None else due_at
    if work.look_at < math.inf:
        work.wake(work.look_at)


def _something_new(work: cycle_context.CycleContext) -> bool:
    """Whether there may be something to leave that the last look did not see."""
    wanted, observed = work.desired, work.observed
    if any(name not in wanted.jobs for name in work.finished_now):
        return True
    is_other = wanted.generation != observed.desired_generation
    if is_other and len(observed.jobs) > len(observed.active):
        return True
    known = work.observed.nodes
    return any(
        node.state is NodeState.GONE and (name not in known or known[name].state is not node.state)
        for name, node in work.nodes.items()
    )


def _jobs(work: cycle_context.CycleContext) -> float:
    """Let finished jobs without a document go; when to look again."""
    if work.desired.status.sync == "Unknown":
        return work.now + EVERY_S  # what can't be read says nothing of what is no longer there
    settings = work.desired.structure.settings
    unasked = _unasked(work)
    excess = len(unasked) - settings.retain_finished_jobs_max
    due: list[str] = []
    next_at = math.inf
    for position, record in enumerate(unasked):
        leaves_at = (record.ended_at or 0.0) + settings.retain_finished_jobs_s
        if position < excess or leaves_at <= work.now:
            due.append(record.name)
        else:
            next_at = leaves_at
            break
    if due:
        needed = _needed(work)
        due = [name for name in due if name not in needed]
    work.left_jobs += due[:BATCH]
    if len(due) > BATCH:
        return work.now + AGAIN_S
    return max(next_at, work.now + EVERY_S)


def _unasked(work: cycle_context.CycleContext) -> list[records.JobRecord]:
    """Finished jobs that no document asks for, those that ended first in front."""
    wanted, observed = work.desired, work.observed
    found = [
        record
        for name, record in observed.jobs.items()
        if name not in observed.active
        and name not in wanted.jobs
        and name not in wanted.refused
        and name not in work.drafts
    ]
    return sorted(found, key=lambda record: (record.ended_at or 0.0, record.order))


def _needed(work: cycle_context.CycleContext) -> set[str]:
    """Jobs on whose end others wait, now or in the run that git asks for next."""
    needed: set[str] = set()
    for name in work.active_names():
        draft = work.drafts.get(name)
        spec = draft.spec if draft else work.observed.jobs[name].spec
        needed.update(dependency.job for dependency in spec.depends_on)
        following = work.desired.jobs.get(name)
        if following is not None:
            needed.update(dependency.job for dependency in following.depends_on)
    for record in work.observed.aside.values():
        needed.update(dependency.job for dependency in record.spec.depends_on)
    return needed


def _nodes(work: cycle_context.CycleContext) -> float:
    """Let nodes go that are gone for long; when to look again."""
    retain_s = work.desired.structure.settings.retain_gone_nodes_s
    next_at = math.inf
    due: list[str] = []
    for name in work.node_names():
        node = work.node(name)
        if node is None or node.state is not NodeState.GONE or node.pool:
            continue
        leaves_at = health.last_contact(node) + retain_s
        if leaves_at <= work.now:
            due.append(name)
        else:
            next_at = min(next_at, leaves_at)
    for name in due[:BATCH]:
        work.let_node_go(name)
    if len(due) > BATCH:
        return work.now + AGAIN_S
    return max(next_at, work.now + EVERY_S)
