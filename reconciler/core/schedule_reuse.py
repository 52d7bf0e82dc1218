"""Whether the last schedule still stands, so that a cycle that brought only usage costs little.

A schedule is made from the structure, the jobs, the attempts, what nodes are, what was promised,
and time. Where none of it changed, making it again would come to the same: nothing starts,
nothing leaves, every reason is as it was. Time enters in two ways. Moments that something waits
for are ``Standing.wake_at``. What it changes steadily (how much work an eviction would lose, the
slack of a deadline) is reckoned by ``Standing.at``, which moves only when a schedule is due
anyhow, or after a minute: so leaving a schedule out is no approximation.
"""

from reconciler.core import cycle_context, overrides
from reconciler.core.nodes import unschedulable_nodes
from reconciler.model.state import records
from reconciler.scheduling import decisions
from reconciler.scheduling.inputs import snapshots

#: How long what time changes steadily is taken to be as it was, while something waits to start.
SAMPLE_S = 60.0


def find(context: cycle_context.CycleContext) -> records.ScheduleInputs | None:
    """The last schedule's standing if the phases before it changed nothing it was made from."""
    standing = context.observed.standing
    if standing is None or standing.generation != context.desired.generation:
        return None
    # not their subjects alone: reasons name who, until when, and why
    if overrides.suspensions(context.overrides) != overrides.suspensions(
        context.observed.overrides
    ):
        return None
    if context.left_nodes:
        return None
    if context.now < standing.at:
        return None  # the clock was set back
    for moment in (standing.wake_at, standing.stale_at):
        if moment is not None and moment <= context.now:
            return None
    if (
        context.attempts
        or context.replaced
        or any(draft.changed for draft in context.drafts.values())
    ):
        return None
    known = context.observed.nodes
    if any(_other(known.get(name), node) for name, node in context.nodes.items()):
        return None
    return standing


def made(
    context: cycle_context.CycleContext,
    at: float,
    situation: snapshots.Snapshot,
    decided: decisions.Decisions,
) -> records.ScheduleInputs | None:
    """What a schedule stands for; None where it changed what the next one is made from."""
    if decided.placements or decided.evictions:
        return None
    if list(decided.promised.items()) != list(context.observed.promised.items()):
        return None
    if decided.kept != situation.kept or decided.turns != situation.turns:
        return None
    stale_at = at + SAMPLE_S if situation.lines else None
    return records.ScheduleInputs(at, context.desired.generation, context.schedule_at, stale_at)


def _other(before: records.NodeRecord | None, now: records.NodeRecord) -> bool:
    """Whether a node changed in more than times, usage and words."""
    return (
        before is None
        or now.state is not before.state
        or now.pool != before.pool
        or unschedulable_nodes.words(now) != unschedulable_nodes.words(before)
        or (now.inventory is not before.inventory and now.inventory != before.inventory)
    )
