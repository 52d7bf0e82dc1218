"""Decides if a schedule is made, and whether a quick one is enough.

If the last schedule is still valid, a cycle that brought only usage is cheap.
A schedule depends on structure, jobs, attempts, nodes, nominations and time. If nothing of it
changed, a new schedule would be the same. Time enters in two ways: moments that something waits for
are ``ScheduleInputs.wake_at``; what changes steadily (lost work, slack) is computed as of
``ScheduleInputs.at``, which moves only with a new schedule, or after a minute.

Where very much work of many kinds waits, and only jobs and their tasks changed, the next schedule
is a quick one (``scheduling.cycle.quick_turns``), until a full one is due again.
"""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from reconciler.core import cycle_cache, cycle_context, overrides
from reconciler.core.nodes import unschedulable_nodes
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.scheduling import decisions
from reconciler.scheduling.inputs import snapshots

#: How long a schedule is reused while something is pending, although time changes it steadily.
SAMPLE_S = 60.0


class Pace(NamedTuple):
    """Pace of schedules: how often they are made, and how often in full.

    Attributes:
        quick_lines_min: with so many lines of waiting work quick schedules come between full ones.
        full_each_s: how far apart full schedules are for each line. A line costs up to a
            millisecond (``docs/benchmarks/scale.md``).
        full_s_max: how far apart they are at the most, in seconds.
        reuses: whether the last schedule is reused while it is valid; the outcome is the same.
    """

    quick_lines_min: int = 500
    full_each_s: float = 0.004
    full_s_max: float = 30.0
    reuses: bool = True


PACE = Pace()
_encoder = msgspec.msgpack.Encoder(order="deterministic")


def valid_inputs(
    context: cycle_context.CycleContext, generation: int
) -> records.ScheduleInputs | None:
    """Return the inputs of the last schedule if the phases before changed none of them.

    Args:
        context: of this cycle.
        generation: of the desired state.
    """
    inputs = _undisturbed(context)
    if inputs is None or not inputs.stands or inputs.generation != generation:
        return None
    if inputs.stale_at is not None and inputs.stale_at <= context.now:
        return None
    if (
        context.attempts.renewed
        or context.jobs.replaced
        or any(draft.changed for draft in context.jobs.drafts.values())
    ):
        return None
    return inputs


class Due(NamedTuple):
    """The schedule that is to be made.

    Attributes:
        at: the moment for which it is made.
        quick_since: inputs of the last schedule if a quick one is enough; None: a full one.
    """

    at: float
    quick_since: records.ScheduleInputs | None = None


def due(
    context: cycle_context.CycleContext,
    desired_state: desired.Desired,
    valid: records.ScheduleInputs | None,
) -> Due:
    """Return which schedule is to be made.

    A quick one is enough where only jobs and their tasks have changed, and the last full one is not
    long ago.

    Args:
        context: of this cycle.
        desired_state: in force.
        valid: inputs of the last schedule if it is still valid, but is to be made again.
    """
    if valid is not None:
        return Due(valid.at, valid if valid.quick else None)
    inputs = _undisturbed(context)
    if inputs is None or inputs.full_until <= context.now:
        return Due(context.now)
    if inputs.generation != desired_state.generation and inputs.structure != _digest(
        context, desired_state.structure
    ):
        return Due(context.now)
    return Due(context.now, inputs)


def _undisturbed(context: cycle_context.CycleContext) -> records.ScheduleInputs | None:
    """Return the inputs of the last schedule if nothing but jobs and tasks has changed since."""
    inputs = context.observed.schedule_inputs
    if inputs is None:
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
    if inputs.wake_at is not None and inputs.wake_at <= context.now:
        return None
    known = context.nodes.known
    if any(_differs(known.get(name), node) for name, node in context.nodes.renewed.items()):
        return None
    return inputs


def inputs_of(
    context: cycle_context.CycleContext,
    desired_state: desired.Desired,
    situation: snapshots.Snapshot,
    decided: decisions.Decisions,
    made: Due,
    *,
    pace: Pace,
) -> records.ScheduleInputs | None:
    """Return the inputs of a new schedule; None if the next one has to be made in full.

    Args:
        context: of this cycle.
        desired_state: in force.
        situation: the snapshot.
        decided: the schedule.
        made: which schedule it is.
        pace: how far apart full schedules are.
    """
    at, lines = situation.now, len(situation.lines)
    moments = [context.alarm.schedule_at]
    if made.quick_since is None:
        apart_s = min(pace.full_each_s * lines, pace.full_s_max)
        full_until = at + apart_s if lines >= pace.quick_lines_min else 0.0
        stale_at = at + SAMPLE_S if lines else None
    else:
        full_until, stale_at = made.quick_since.full_until, made.quick_since.stale_at
        moments += [made.quick_since.wake_at, full_until]
    stands = _changes_nothing(context.observed.nominations, situation, decided)
    if not stands and not full_until:
        return None
    return records.ScheduleInputs(
        at,
        desired_state.generation,
        min((moment for moment in moments if moment is not None), default=None),
        stale_at,
        stands=stands,
        quick=made.quick_since is not None,
        full_until=full_until,
        structure=_digest(context, desired_state.structure) if full_until else b"",
    )


def _changes_nothing(
    nominations: Mapping[str, int], situation: snapshots.Snapshot, decided: decisions.Decisions
) -> bool:
    """Return True if applying a schedule does not change what it was made from."""
    return (
        not decided.placements
        and not decided.evictions
        and list(decided.promised.items()) == list(nominations.items())
        and decided.kept == situation.kept
        and decided.turns == situation.turns
    )


class _StructureDigest(cycle_cache.CachePart):
    """The digest of the structure that was seen last."""

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self._structure: desired.Structure | None = None
        self._digest = b""

    def of(self, structure: desired.Structure) -> bytes:
        if structure is not self._structure:
            self._structure = structure
            self._digest = hashlib.blake2b(_encoder.encode(structure), digest_size=16).digest()
        return self._digest


def _digest(context: cycle_context.CycleContext, structure: desired.Structure) -> bytes:
    return context.cache.part(_StructureDigest).of(structure)


def _differs(before: records.NodeRecord | None, now: records.NodeRecord) -> bool:
    """Return True if a node changed in more than times, usage and messages."""
    return (
        before is None
        or now.state is not before.state
        or now.pool != before.pool
        or unschedulable_nodes.words(now) != unschedulable_nodes.words(before)
        or (now.inventory is not before.inventory and now.inventory != before.inventory)
    )
