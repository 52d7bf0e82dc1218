"""Decides if the last schedule is still valid, so that a cycle that brought only usage is cheap.

A schedule depends on structure, jobs, attempts, nodes, nominations and time. If nothing of it
changed, a new schedule would be the same. Time enters in two ways: moments that something waits for
are ``ScheduleInputs.wake_at``; what changes steadily (lost work, slack) is computed as of
``ScheduleInputs.at``, which moves only with a new schedule, or after a minute.
"""

from collections.abc import Mapping

from reconciler.core import cycle_context, overrides
from reconciler.core.nodes import unschedulable_nodes
from reconciler.model.state import records
from reconciler.scheduling import decisions
from reconciler.scheduling.inputs import snapshots

#: How long a schedule is reused while something is pending, although time changes it steadily.
SAMPLE_S = 60.0


def valid_inputs(
    context: cycle_context.CycleContext, generation: int
) -> records.ScheduleInputs | None:
    """Return the inputs of the last schedule if the phases before changed none of them.

    Args:
        context: of this cycle.
        generation: of the desired state.
    """
    inputs = context.observed.schedule_inputs
    if inputs is None or inputs.generation != generation:
        return None
    # compared as a whole, because reasons name who, until when, and why
    if overrides.suspensions(context.overrides) != overrides.suspensions(
        context.observed.overrides
    ):
        return None
    if context.nodes.left:
        return None
    if context.now < inputs.at:
        return None  # the clock was set back
    for moment in (inputs.wake_at, inputs.stale_at):
        if moment is not None and moment <= context.now:
            return None
    if (
        context.attempts.renewed
        or context.jobs.replaced
        or any(draft.changed for draft in context.jobs.drafts.values())
    ):
        return None
    known = context.nodes.known
    if any(_differs(known.get(name), node) for name, node in context.nodes.renewed.items()):
        return None
    return inputs


def inputs_of(
    at: float,
    situation: snapshots.Snapshot,
    decided: decisions.Decisions,
    *,
    generation: int,
    nominations: Mapping[str, int],
    schedule_at: float | None,
) -> records.ScheduleInputs | None:
    """Return the inputs of a new schedule; None if applying it changed them.

    Args:
        at: the moment of the snapshot.
        situation: the snapshot.
        decided: the schedule.
        generation: of the desired state.
        nominations: before the schedule.
        schedule_at: when the next schedule is due at the latest.
    """
    if decided.placements or decided.evictions:
        return None
    if list(decided.promised.items()) != list(nominations.items()):
        return None
    if decided.kept != situation.kept or decided.turns != situation.turns:
        return None
    stale_at = at + SAMPLE_S if situation.lines else None
    return records.ScheduleInputs(at, generation, schedule_at, stale_at)


def _differs(before: records.NodeRecord | None, now: records.NodeRecord) -> bool:
    """Return True if a node changed in more than times, usage and messages."""
    return (
        before is None
        or now.state is not before.state
        or now.pool != before.pool
        or unschedulable_nodes.words(now) != unschedulable_nodes.words(before)
        or (now.inventory is not before.inventory and now.inventory != before.inventory)
    )
