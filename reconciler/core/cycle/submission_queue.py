"""Submissions that wait for git, kept among the overrides in the order in which they came.

Requests and the overrides in force come in; overrides and events go out. Nothing waits here in
order to start: a submission leaves when the server says that it is in git, or may not come there.
"""

from collections.abc import Sequence

import msgspec

from reconciler.core.cycle import cycle_events
from reconciler.model import desired
from reconciler.model.state import records

_InForce = dict[tuple[str, str], records.Override]


def settled_by(submission: records.Submission) -> str:
    """Return what becomes of a submission."""
    if submission.refused:
        return f"refused when it was to be committed: {submission.refused}"
    return "it is committed when git can be reached again"


def put(
    items: Sequence[records.Override],
    in_force: _InForce,
    desired_state: desired.Desired,
    events: cycle_events.CycleEvents,
) -> str:
    """Keep submissions, all or none. Return why that is refused; empty if it is not."""
    added = [one for one in items if not _is_kept(one, in_force)]
    why = next((why for one in added if (why := _why_taken(one, in_force, desired_state))), "")
    why = why or _why_full(added, in_force)
    if why:
        return why
    for one in added:
        in_force.pop(one.key, None)  # a refused one: the new one goes behind the others
        in_force[one.key] = one
        events.add("SubmissionQueued", f"by {one.owner}: {one.reason}", job=one.subject)
    return ""


def settle(
    request: records.SettleSubmission,
    in_force: _InForce,
    events: cycle_events.CycleEvents,
    now: float,
) -> str:
    """End the wait of a submission. Return why that is refused; empty if it is not."""
    key = ("submit", request.subject)
    kept = in_force.get(key)
    found = None if kept is None else kept.waiting
    if kept is None or found is None or found.id != request.submission:
        return f"the submission of Job/{request.subject} does not wait any more"
    if not request.refused:
        del in_force[key]
        told = f"of {kept.owner}, in {request.commit[:12]}"
        events.add("SubmissionCommitted", told, job=request.subject)
        return ""
    in_force[key] = msgspec.structs.replace(
        kept,
        expires_at=min(kept.expires_at, now + records.REFUSED_SUBMISSION_S),
        submission=records.Submission(found.id, "", request.refused),
    )
    events.add("SubmissionRefused", f"of {kept.owner}: {request.refused}", job=request.subject)
    _forget_refused(kept.owner, in_force)
    return ""


def withdrawn(override: records.Override, by: str, events: cycle_events.CycleEvents) -> None:
    """Tell that somebody ended a submission that waited, or was refused."""
    events.add("SubmissionWithdrawn", f"{by} ended that of {override.owner}", job=override.subject)


def ended(override: records.Override, now: float) -> tuple[str, str] | None:
    """Return the event with which a submission ends now, if it does; its kind is empty if it was
    told before.
    """
    if override.expires_at > now:
        return None
    if override.waiting is None:
        return "", ""
    days = int(records.SUBMISSION_S_MAX // 86400)
    return "SubmissionRefused", f"of {override.owner}: git did not take it within {days} days"


def _is_kept(one: records.Override, in_force: _InForce) -> bool:
    """Return True if the very same submission waits already."""
    kept = in_force.get(one.key)
    found = None if kept is None or kept.owner != one.owner else kept.waiting
    return found is not None and one.waiting is not None and found.text == one.waiting.text


def _why_taken(one: records.Override, in_force: _InForce, desired_state: desired.Desired) -> str:
    """Return why a submission can't have its name; empty if it can."""
    kept = in_force.get(one.key)
    if kept is not None and kept.waiting is not None:
        return (
            f"another submission of Job/{one.subject}, by {kept.owner}, waits for git already. To "
            "fix: use another name"
        )
    if one.subject in desired_state.jobs or one.subject in desired_state.refused:
        return (
            f"Job/{one.subject} is in git already, as far as it could be read. To fix: use another "
            "name, or wait until git can be reached"
        )
    return ""


def _why_full(added: Sequence[records.Override], in_force: _InForce) -> str:
    """Return the limit that more submissions would exceed; empty if there is room."""
    if not added:
        return ""
    owner = added[0].owner
    waiting = [one for one in (*in_force.values(), *added) if one.waiting is not None]
    mine = [one for one in waiting if one.owner == owner]
    limits = (
        (mine, records.OWNER_SUBMISSIONS_MAX, records.OWNER_SUBMISSION_BYTES_MAX, owner),
        (waiting, records.SUBMISSIONS_MAX, records.SUBMISSION_BYTES_MAX, "all"),
    )
    for those, count_max, bytes_max, whose in limits:
        sizes = [len(found.text.encode()) for one in those if (found := one.waiting) is not None]
        if len(sizes) > count_max or sum(sizes) > bytes_max:
            return (
                f"{len(sizes)} submissions of {sum(sizes)} bytes would wait for git, of "
                f"{whose}; the most are {count_max} of {bytes_max}. To fix: submit them when "
                "git can be reached"
            )
    return ""


def _forget_refused(owner: str, in_force: _InForce) -> None:
    """Drop the oldest refused submissions of somebody that are too many to show."""
    refused = [
        one
        for one in in_force.values()
        if one.owner == owner and one.verb == "submit" and one.waiting is None
    ]
    for one in refused[: -records.REFUSED_SUBMISSIONS_MAX]:
        del in_force[one.key]
