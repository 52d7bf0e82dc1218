"""Decides if a change of desired state may apply, or waits for approval or for a sync window.

The limits of the state in force, not of the proposed one, are compared with the change's impact.
Two parts can be held: the structure as a whole, and the removals of jobs. An approval names a
digest and covers that change, with as much more ended work as a limit allows.
"""

import math
from collections.abc import Callable, Iterable, Iterator

import msgspec

from reconciler.core.safety import digests, impact, service_exits
from reconciler.model import desired
from reconciler.model.rules import recurrence, review_findings
from reconciler.model.state import records
from reconciler.model.values import hostlists, quantities, times

_WHERE = "spec.sync of Cluster"
_NAMES_MAX = 3
#: When to look again after the records could not be read.
LOOK_AGAIN_S = 10.0
#: When to look at windows again at the latest.
LOOK_AT_WINDOWS_S = 86_400.0
#: When to look again at nodes that do not fit what a held change asks of them.
LOOK_AT_NODES_S = 300.0
#: Text for windows that do not open.
NO_TIME = "no sync window opens"


class SafetyGate:
    """A gate over the records of a cluster.

    Args:
        observe: returns the current records, or None if they can't be read. It is called only if
            running work counts, or the existing nodes of a pool.
        clock: seconds since the epoch.
    """

    def __init__(
        self, observe: Callable[[], records.Observed | None], clock: Callable[[], float]
    ) -> None:
        self._observe = observe
        self._clock = clock

    def judge(
        self, before: desired.Desired, after: desired.Desired, approvals: frozenset[str]
    ) -> review_findings.Judgement:
        """Return if ``before`` may become ``after``, and what is held."""
        safety = before.structure.settings.safety
        counts_work = safety.jobs is not None or safety.gpu_hours is not None
        counts_work = counts_work or _may_exceed_share(before, after)
        now = self._clock()
        observed: records.Observed | None = records.Observed()
        if counts_work or safety.windows or _counts_nodes(before, after):
            observed = self._observe()
            if observed is None:
                return _blind(now)
        change = impact.measure_impact(before, after, observed or records.Observed(), now)
        found = judge(before, change, now, approvals)
        if found.findings and not counts_work:
            # figures of running work are for people, so they are read only if somebody will look
            seen = self._observe() or records.Observed()
            found = judge(before, impact.measure_impact(before, after, seen, now), now, approvals)
        return found


def _may_exceed_share(before: desired.Desired, after: desired.Desired) -> bool:
    """Return True if so many removed jobs may be too large a share of what runs."""
    safety = before.structure.settings.safety
    if safety.job_share is None:
        return False
    return len(before.jobs.keys() - after.jobs.keys()) > safety.job_share * safety.job_floor


def _counts_nodes(before: desired.Desired, after: desired.Desired) -> bool:
    """Return True if the change concerns nodes of which the records know whether they are there, or
    fit.
    """
    old, new = before.structure.pools, after.structure.pools
    if service_exits.concerns_nodes(before.structure, after.structure):
        return True
    return old != new and any(
        pool.provisioning is not None for pool in (*old.values(), *new.values())
    )


def _blind(now: float) -> review_findings.Judgement:
    """Return a verdict without records, in which nothing applies that may end running work."""
    parts: tuple[review_findings.Part, ...] = ("structure", "removal")
    message = "the records of running work, on which limits depend, can't be read"
    findings = tuple(
        review_findings.Finding(part, review_findings.WORK_UNKNOWN, message) for part in parts
    )
    return review_findings.Judgement(findings, until=now + LOOK_AGAIN_S)


def judge(
    before: desired.Desired, change: impact.Impact, now: float, approvals: frozenset[str]
) -> review_findings.Judgement:
    """Return if a change may apply, and what is held.

    Args:
        before: what is in force. Its limits count.
        what: the impact of the change at ``now``.
        now: seconds since the epoch.
        approvals: digests that people approved.
    """
    safety = before.structure.settings.safety
    protected = list(_never(before, change))
    over = [*_limits(safety, change), *_named(before, change)]
    until = None
    if _is_disruptive(change):
        opens = opens_at(safety.windows, now)
        if opens is not None:
            over.append(_outside(opens))
            until = min(opens, now + LOOK_AT_WINDOWS_S)
    given = {one.part: _approval(one.part, change, safety, approvals) for one in over}
    left = [one for one in over if given[one.part] is None]
    if left and any(one.cause == "unfit" for one in change.exits):
        # once nodes have what is asked of them, nothing is left to approve
        until = min(until or math.inf, now + LOOK_AT_NODES_S)
    if not left:
        until = None
    digest = change.digest if left and not protected else ""
    held = {one.part for one in (*protected, *left)}
    used = [_used(part, one) for part, one in given.items() if one and part not in held]
    return review_findings.Judgement(
        (*protected, *left), change.digest, until, review_findings.approval(digest), tuple(used)
    )


# --- limits -----------------------------------------------------------------------------------


def _limits(
    safety: desired.SafetyLimits, change: impact.Impact
) -> Iterator[review_findings.Finding]:
    """Yield every limit that the change exceeds."""

    def over(part: review_findings.Part, message: str, field: str) -> review_findings.Finding:
        text = f"{message} without approval (limits.{field} in {_WHERE})"
        return review_findings.Finding(part, "over-limit", text)

    for one in (change.total, *_pools_beside_total(change)):
        if safety.gpu_share is None or one.gpus_managed < max(1, safety.gpu_floor):
            continue
        if one.is_one_of_several:
            continue  # of a small pool one node is a large share, and may need repair like any
        if one.share_lost > safety.gpu_share:
            where = f" of pool {one.pool}" if one.pool else ""
            leave = "leaves" if one.gpus_lost == 1 else "leave"
            yield over(
                "structure",
                f"{one.gpus_lost} of {quantities.counted(one.gpus_before, 'GPU')}{where} "
                f"({one.share_lost:.0%}) {leave} "
                f"service{_causes(change, one.pool)}, and at most {safety.gpu_share:.0%} may",
                "gpuShare",
            )
    if safety.gpus is not None and change.total.gpus_lost > safety.gpus:
        yield over(
            "structure",
            f"{_gpus(change.total.gpus_lost)} service{_causes(change)}, and at most "
            f"{safety.gpus} may",
            "gpus",
        )
    removed = change.queues_removed
    if safety.queues is not None and len(removed) > safety.queues:
        yield over(
            "structure",
            f"{_counted(len(removed), 'queue')} removed ({_some(removed)}), and at most "
            f"{safety.queues} may be",
            "queues",
        )
    for part in _parts_over(safety.jobs, change.jobs_ended):
        ended = change.jobs_ended("structure", "removal")
        names = [job.job for job in change.jobs if job.ends and job.part != "job"]
        yield over(
            part,
            f"{_counted(ended, 'running job')} ended ({_some(names)}), and at most "
            f"{safety.jobs} may be",
            "jobs",
        )
    yield from _share_of_jobs(safety, change)
    for part in _parts_over(safety.gpu_hours, change.gpu_hours_lost):
        lost = change.gpu_hours_lost("structure", "removal")
        yield over(
            part,
            f"{lost:.1f} GPU-hours of running work are lost, and at most "
            f"{safety.gpu_hours:g} may be",
            "gpuHours",
        )


def _pools_beside_total(change: impact.Impact) -> Iterator[impact.PoolImpact]:
    """Yield pools of which the figures of all pools together do not say as much already."""
    total = change.total
    for pool in change.pools:
        if pool.gpus_before < total.gpus_before or pool.gpus_lost > total.gpus_lost:
            yield pool


def _causes(change: impact.Impact, pool: str = "") -> str:
    """Return why nodes that their pool keeps leave service, in parentheses; empty if none does."""
    groups = service_exits.group(one for one in change.exits if pool in {"", one.former})
    told = [f"{hostlists.fold(one.nodes)}: {one.why}" for one in groups]
    told += [
        f"{_most(one.gpus)} of pool {one.pool}, by {_plural(one.checks)} without a result "
        f"({_some(one.checks)})"
        for one in change.risks
        if pool in {"", one.former}
    ]
    if not told:
        return ""
    return f" ({'; '.join(told[:_NAMES_MAX])}{' …' if len(told) > _NAMES_MAX else ''})"


def _most(gpus: int) -> str:
    return f"at most {quantities.counted(gpus, 'GPU')}"


def _plural(checks: tuple[str, ...]) -> str:
    return "checks" if len(checks) > 1 else "a check"


def _share_of_jobs(
    safety: desired.SafetyLimits, change: impact.Impact
) -> Iterator[review_findings.Finding]:
    """Return the hold of a removal that ends more running jobs than is likely intended."""
    running, ended = change.jobs_running, change.jobs_ended("removal")
    if _is_over_share(safety, change, ended):
        names = [job.job for job in change.jobs if job.ends and job.part == "removal"]
        yield review_findings.Finding(
            "removal",
            "over-limit",
            f"{ended} of {running} running jobs ({ended / running:.0%}) are ended by removing "
            f"their documents ({_some(names)}), and at most "
            f"{safety.job_share or 0:.0%} may be without "
            f"approval (limits.jobShare in {_WHERE})",
        )


def _parts_over(
    limit: float | None, figure: Callable[..., float]
) -> Iterator[review_findings.Part]:
    """Return the parts that exceed a limit; both if only their sum does."""
    if limit is None or figure("structure", "removal") <= limit:
        return
    parts: tuple[review_findings.Part, ...] = ("structure", "removal")
    alone = [part for part in parts if figure(part) > limit]
    yield from alone or [part for part in parts if figure(part) > 0]


def _counted(count: int, noun: str) -> str:
    return quantities.counted(count, noun, one="is", many="are")


def _gpus(count: int) -> str:
    return quantities.counted(count, "GPU", one="leaves", many="leave")


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_NAMES_MAX]) + (" …" if len(listed) > _NAMES_MAX else "")


# --- objects that need approval ---------------------------------------------------------------


def _named(before: desired.Desired, change: impact.Impact) -> Iterator[review_findings.Finding]:
    """Yield objects of which every change, or every removal, needs approval."""
    if change.approval:
        yield review_findings.Finding(
            "structure",
            "needs-approval",
            f"{_some(change.approval)}: every change of it needs approval (approval in {_WHERE})",
        )
    for part, labels in _pruned(before, change, "confirm"):
        yield review_findings.Finding(
            part, "prune-confirm", f"{_some(labels)}: its removal has to be confirmed (prune)"
        )


def _never(before: desired.Desired, change: impact.Impact) -> Iterator[review_findings.Finding]:
    for part, labels in _pruned(before, change, "never"):
        yield review_findings.Finding(
            part,
            "prune-never",
            f"{_some(labels)}: it is never removed (prune: never). To remove it, first commit "
            "another prune policy, then the removal",
        )


def _pruned(
    before: desired.Desired, change: impact.Impact, policy: desired.Prune
) -> Iterator[tuple[review_findings.Part, list[str]]]:
    """Return what the change removes of objects with a prune policy, by part."""
    by_kind = before.structure.settings.safety.prune
    own = before.structure.prune
    gone = [
        label
        for label in change.removed
        if own.get(label, by_kind.get(label.split("/", 1)[0], "auto")) == policy
    ]
    if gone:
        yield "structure", gone
    of_jobs = by_kind.get("Job", "auto")
    jobs = [name for name in change.jobs_removed if (before.jobs[name].prune or of_jobs) == policy]
    if jobs:
        yield "removal", [f"Job/{name}" for name in jobs]


# --- windows ----------------------------------------------------------------------------------


def _is_disruptive(change: impact.Impact) -> bool:
    """Return True if the change's structure takes something away that is in use."""
    loses = change.total.gpus_lost or change.risks
    return bool(loses or change.queues_removed or change.jobs_ended("structure"))


def _outside(until: float) -> review_findings.Finding:
    if until == recurrence.NEVER:
        days = round(recurrence.LOOK_S / 86_400)
        message = (
            f"it takes something out of service, and {NO_TIME} in the next {days} days. To fix: "
            f"correct the windows (windows in {_WHERE}), or approve this change"
        )
    else:
        message = (
            "it takes something out of service, and no sync window is open; the next one opens at "
            f"{times.format_time(until)} (windows in {_WHERE})"
        )
    return review_findings.Finding("structure", "outside-window", message)


def opens_at(found: tuple[desired.SyncWindow, ...], now: float) -> float | None:
    """Return when disruptive changes may apply next; None: now.

    A window that denies beats one that allows. If none allows, all other time is allowed.
    """
    if not found:
        return None
    known_until = now + recurrence.LOOK_S
    spans: list[tuple[bool, float, float]] = []
    for one in found:
        times_of_one = recurrence.spans(one.schedule, one.duration_s, now)
        if len(times_of_one) >= recurrence.SPANS_MAX:
            known_until = min(known_until, times_of_one[-1][0])
        spans += [(one.allow, begin, end) for begin, end in times_of_one]
    only_allowed = any(one.allow for one in found)
    moments = sorted({now, *(m for _, begin, end in spans for m in (begin, end) if m > now)})
    for moment in moments:
        if moment > known_until:
            break
        inside = [allow for allow, begin, end in spans if begin <= moment < end]
        if False not in inside and (True in inside or not only_allowed):
            return None if moment == now else moment
    return recurrence.NEVER


# --- approval ---------------------------------------------------------------------------------


def _approval(
    part: review_findings.Part,
    change: impact.Impact,
    safety: desired.SafetyLimits,
    approvals: frozenset[str],
) -> str | None:
    """Return the approval that covers this part of the change; None if none does."""
    mine = digests.parse_digest(change.digest)
    if mine is None:
        return None
    for text in sorted(approvals):
        given = digests.parse_digest(text)
        if given is None:
            continue
        same = (
            given.structure == mine.structure
            if part == "structure"
            else given.removals == mine.removals
        )
        if same and _within(given, change, safety):
            return text
    return None


def _used(part: review_findings.Part, approval: str) -> review_findings.Used:
    given = digests.parse_digest(approval) or digests.Digest()
    structure, removals = given.structure, given.removals
    if part == "structure":
        rest = msgspec.structs.replace(given, structure="") if removals else None
    else:
        rest = msgspec.structs.replace(given, removals="") if structure else None
    return review_findings.Used(part, approval, rest.text() if rest else "")


def _within(given: digests.Digest, change: impact.Impact, safety: desired.SafetyLimits) -> bool:
    """Return True if the ended work is within the approved amount plus a limit."""
    more_jobs = change.jobs_ended("structure", "removal") - given.jobs_ended
    more_hours = change.gpu_hours_lost("structure", "removal") - given.gpu_hours_lost
    return (
        (safety.jobs is None or more_jobs <= safety.jobs)
        and (safety.gpu_hours is None or more_hours <= safety.gpu_hours)
        and not (change.jobs_ended("removal") and _is_over_share(safety, change, more_jobs))
    )


def _is_over_share(safety: desired.SafetyLimits, change: impact.Impact, ended: int) -> bool:
    """Return True if so many jobs are more of what runs than somebody is likely to intend."""
    running = change.jobs_running
    if safety.job_share is None or running < max(1, safety.job_floor):
        return False
    return ended > safety.job_share * running
