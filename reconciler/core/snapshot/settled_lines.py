"""The pending groups that a quick schedule passes over (``scheduling.cycle.quick_turns``).

They wait for room, as their jobs were told by the last schedule, and none of their jobs has changed
since. What waits for something else is never passed over: limits, quotas and dependencies are
looked at anew in each cycle.
"""

from collections.abc import Set as AbstractSet
from enum import IntEnum

import numpy as np

from reconciler.core import cycle_context
from reconciler.core.snapshot import pending_cache
from reconciler.model.state import pending_reasons, records
from reconciler.model.state.pending_reasons import ReasonCode
from reconciler.model.state.states import AttemptState, JobState
from reconciler.scheduling.inputs import snapshots

_LIVE = frozenset({JobState.STARTING, JobState.RUNNING})
#: Codes of reasons of room that hold no longer once others have started.
_OF_OTHERS = frozenset({ReasonCode.BEHIND, ReasonCode.FRAGMENTED, ReasonCode.RESERVED})


class _State(IntEnum):
    """State of a line by what the last schedule told its jobs, the least settled first.

    ``OPEN``: nothing, or something else than room ends their wait. ``TOLD_ANEW``: they wait for
    room, but are told anew what of it there is.
    """

    OPEN, TOLD_ANEW, SETTLED = range(3)


def of(
    context: cycle_context.CycleContext,
    groups: pending_cache.PendingGroups,
    cached: pending_cache.PendingCache,
    since: records.ScheduleInputs,
) -> snapshots.Settled:
    """Return what is settled, and whether room may have come free.

    Args:
        context: of this cycle.
        groups: pending groups of this cycle.
        cached: has the group of each plain job.
        since: inputs of the last schedule.
    """
    jobs, reasons = context.jobs, context.reasons
    changed = jobs.changed(context.attempts)
    # autoscaling has told these that their pool grows, and its text goes with the scheduler's
    helped = context.observed.scheduler_state.growing.helped.keys()
    by_key: dict[str, _State] = {"": _State.OPEN}

    def state_of(key: str) -> _State:
        if key not in by_key:
            by_key[key] = _state_after({reason.code for reason in reasons.of(key)})
        return by_key[key]

    def key_of(name: str) -> str:
        record = None if name in changed or name in helped else jobs.record_of(name)
        return "" if record is None else record.reason_key

    states = np.empty(len(groups.lines), dtype=np.int8)
    keys = cached.slot_reasons[groups.slots].tolist()
    for index, (slot, key) in enumerate(zip(groups.slots.tolist(), keys, strict=True)):
        if slot < 0:
            claims = groups.lines[index].claims
            states[index] = min(state_of(key_of(claim.job)) for claim in claims)
        else:  # those of one group that are not told something of their own
            known = key_of(groups.lines[index].claims[0].job) if key is None else key
            states[index] = state_of(known)
    found = {cached.group_of[name].slot for name in changed | helped if name in cached.group_of}
    states[np.isin(groups.slots, list(found))] = _State.OPEN
    # what a schedule takes from some may be more than those need for whom it is
    freed = not since.stands or _may_have_freed(context, changed)
    return snapshots.Settled(
        states > _State.OPEN, told_anew=(states == _State.TOLD_ANEW) & freed, freed=freed
    )


def _state_after(codes: AbstractSet[ReasonCode]) -> _State:
    """Return the state of what was told reasons with these codes."""
    if not codes or not codes <= pending_reasons.OF_ROOM:
        return _State.OPEN
    return _State.TOLD_ANEW if codes & _OF_OTHERS else _State.SETTLED


def _may_have_freed(context: cycle_context.CycleContext, changed: set[str]) -> bool:
    """Return False if jobs only came or went on as they were."""
    jobs, renewed = context.jobs, context.attempts.renewed
    if any(attempt.state is AttemptState.ENDED for attempt in renewed.values()):
        return True
    came = {spec.name for spec in jobs.arrived}
    others = [jobs.record_of(name) for name in changed - came]
    return any(record is None or record.state not in _LIVE for record in others)
