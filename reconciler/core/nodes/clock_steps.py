"""Corrects moments that lie in the future because the clock was set back.

Otherwise an attempt that begins in an hour has no time limit until then, and a retry waits for
hours. When the clock was set back, or at a start when that is unknown, each such moment is bounded
by now and by the wait it was made for.
"""

from collections.abc import Iterable

import msgspec

from reconciler.core import cycle_context
from reconciler.core.cycle import cycle_jobs
from reconciler.core.jobs import verdicts
from reconciler.model.policy import drift_kinds
from reconciler.model.state import records


def forget_the_future(context: cycle_context.CycleContext) -> None:
    """Bound known moments by now, in the first cycle of a leader.

    Moments of provisioners, contacts of nodes and their exclusion are bounded where they are read.
    """
    if context.observed.leader_since != context.now:
        return
    for attempt in context.observed.attempts.values():
        past = _past_of(attempt, context.now)
        if past:
            context.attempts.renew(attempt, **past)
    for name in context.jobs.active_names():
        record = context.jobs.known.get(name)
        if record is not None:
            _bound_job(context.jobs, context.now, record)
    for node in context.nodes.known.values():
        failed = [min(one.at, context.now) for one in node.failures]
        brake = node.brake
        if brake is not None and brake.since > context.now:
            brake = msgspec.structs.replace(brake, since=context.now)
        turned = tuple(min(at, context.now) for at in node.flapping.at)
        if (
            node.drain_since > context.now
            or failed != [one.at for one in node.failures]
            or turned != node.flapping.at
            or brake != node.brake
        ):
            context.nodes.renew(
                node,
                flapping=msgspec.structs.replace(node.flapping, at=turned),
                brake=brake,
                drain_since=min(node.drain_since, context.now),
                failures=tuple(
                    msgspec.structs.replace(one, at=at)
                    for one, at in zip(node.failures, failed, strict=True)
                ),
            )
    context.remedies.correct(_tried(context.remedies, context.now))


def _past_of(attempt: records.AttemptRecord, now: float) -> dict[str, object]:
    """Return the moments of an attempt that lie in the future, set to now."""
    moments = {
        "assigned_at": attempt.assigned_at,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
    }
    past: dict[str, object] = {
        name: now for name, at in moments.items() if at is not None and at > now
    }
    if attempt.stop is not None and attempt.stop.at > now:
        past["stop"] = msgspec.structs.replace(attempt.stop, at=now)
    if attempt.saved is not None and attempt.saved.at > now:
        past["saved"] = msgspec.structs.replace(attempt.saved, at=now)
    return past


def _bound_job(jobs: cycle_jobs.CycleJobs, now: float, record: records.JobRecord) -> None:
    """Let a job wait since now at the latest, and back off no longer than its rule says."""
    draft = None
    if max(record.submitted_at, record.started_at or 0.0) > now:
        draft = jobs.draft(record.name)
    if draft is not None:
        draft.submitted_at = min(record.submitted_at, now)
        if record.started_at is not None:
            draft.started_at = min(record.started_at, now)
    if not record.notes:
        return
    latest = {
        element: now + verdicts.backoff_s(note, record.spec.retries)
        for element, note in record.notes.items()
        if note.not_before > now
    }
    for element, at in latest.items():
        note, draft = record.notes[element], jobs.draft(record.name)
        if note.not_before > at and draft is not None:
            draft.set_note(element, msgspec.structs.replace(note, not_before=at))


def _tried(
    remedies: Iterable[drift_kinds.DriftRemedy], now: float
) -> Iterable[drift_kinds.DriftRemedy]:
    for one in remedies:
        ended_at = None if one.ended_at is None else min(one.ended_at, now)
        if one.at > now or ended_at != one.ended_at:
            yield msgspec.structs.replace(one, at=min(one.at, now), ended_at=ended_at)
        else:
            yield one
