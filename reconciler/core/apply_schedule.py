"""Turns the scheduler's decisions into attempts, evictions, and the pending reasons of records."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from reconciler.core import cycle_attempts, cycle_cache, cycle_context, job_draft
from reconciler.core.cycle import cycle_events, cycle_jobs, cycle_nodes, cycle_reasons, stop_orders
from reconciler.core.jobs import gang_ranks, lifecycle, verdicts
from reconciler.core.snapshot import pending_cache, snapshot_builder
from reconciler.model import desired
from reconciler.model.state import identifiers, records
from reconciler.model.state.pending_reasons import NONE_YET, ReasonCode, never_starts
from reconciler.model.state.states import AttemptState, EndReason, JobState
from reconciler.model.values import quantities, times
from reconciler.model.values.resources import Resources
from reconciler.scheduling import decisions


def apply(
    context: cycle_context.CycleContext,
    pools: Mapping[str, desired.Pool],
    built: snapshot_builder.SnapshotResult,
    decided: decisions.Decisions,
) -> None:
    """Write the decisions into the context: new attempts, stop orders, reasons.

    Args:
        context: of this cycle.
        pools: by name.
        built: the snapshot.
        decided: the schedule.
    """
    jobs, nodes = context.jobs, context.nodes
    attempts, events = context.attempts, context.events
    allocator = gang_ranks.AttemptAllocator(
        built.nodes.names, built.nodes.profiles, attempts, jobs.next_order
    )
    ranks = gang_ranks.GangRanks(allocator, nodes, pools)
    placer = _Placer(
        attempts,
        context.stops,
        nodes=nodes,
        allocator=allocator,
        ranks=ranks,
        events=events,
        now=context.now,
    )
    touched: dict[str, job_draft.JobDraft] = {}
    placed: dict[tuple[str, int], list[decisions.Placement]] = {}
    for placement in decided.placements:  # an elastic element may start and grow in one cycle
        placed.setdefault((placement.job, placement.element), []).append(placement)
    for (job, _), parts in placed.items():
        draft = jobs.draft(job)
        if draft is not None:
            touched[job] = draft
            placer.place(draft, parts, last_reason(context.reasons, draft))
    for eviction in decided.evictions:
        draft = jobs.draft(eviction.job)
        if draft is not None:
            touched[eviction.job] = draft
            _evict(jobs, context.stops, events, draft, eviction)
    for draft in touched.values():
        lifecycle.settle(jobs, draft)
    helped = context.observed.scheduler_state.growing.helped
    _reasons(context.cache, jobs, context.reasons, helped=helped, built=built, decided=decided)
    _deadlines(jobs, events, context.now, built, decided)


def _evict(
    jobs: cycle_jobs.CycleJobs,
    stops: stop_orders.StopOrders,
    events: cycle_events.CycleEvents,
    draft: job_draft.JobDraft,
    eviction: decisions.EvictionDecision,
) -> None:
    """End an element's try, or only those of its tasks that it can go on without."""
    element, moving = eviction.element, eviction.ground == "consolidate"
    what = draft.spec.element_text(element)
    if eviction.tasks:
        names = [group.name for group in draft.spec.groups]
        leaving = {(names[group], index) for group, index in eviction.tasks}
        verdicts.dismiss(stops, draft, element, leaving, by=eviction.for_job)
        what = f"{quantities.counted(len(leaving), 'task')}{draft.spec.of_element(element)}"
    else:
        verdicts.give_verdict(
            stops, draft, element, EndReason.PREEMPTED, by=eviction.for_job, moving=moving
        )
        if moving:
            _clear_moved(jobs.draft(eviction.for_job))
    several = len(eviction.tasks) > 1
    if not eviction.for_job:
        verb = ("move" if moving else "leave") + ("" if several else "s")
    elif moving:
        verb = f"move{'' if several else 's'} to make room for {eviction.for_job}"
    else:
        verb = f"{'are' if several else 'is'} preempted by {eviction.for_job}"
    events.add("JobEvicted", f"{what} {verb}: {eviction.why}", job=eviction.job)


def _clear_moved(draft: job_draft.JobDraft | None) -> None:
    """Clear the mark that an element was moved, because others now move for it.

    Otherwise the one that moves now would go back to where it was, move again, and so on.
    """
    if draft is None:
        return
    for element, note in sorted(draft.notes.items()):
        if note.moved:
            draft.set_note(element, msgspec.structs.replace(note, moved=False))


def _places(counts: Mapping[str, int]) -> str:
    """Return how many tasks start on which node."""
    parts = [
        f"{quantities.counted(count, 'task')} on {name}" for name, count in sorted(counts.items())
    ]
    return ", ".join(parts)


def last_reason(reasons: cycle_reasons.CycleReasons, draft: job_draft.JobDraft) -> str:
    """Return the last pending reason for the event of a start; empty for arrays.

    Later only a replay would know it. In an array it would be repeated for each element.
    """
    last_reasons = reasons.known.get(draft.reason_key, ())
    if not last_reasons or draft.spec.array_count is not None:
        return ""
    last = last_reasons[0]
    if last.code is ReasonCode.NEVER_FITS and last.funnel:
        return "; until now no node that had joined could hold it"
    if last.message == NONE_YET:
        return "; until now no node had joined"
    # a reason that waiting does not end was ended by another commit, or by other nodes
    verb = "could not start at all" if never_starts(last_reasons) else "waited"
    return f"; until now it {verb}: {last_reasons[0].code}: {last_reasons[0].message}"


class _Placer:
    """A maker of new attempts.

    Args:
        attempts: of this cycle.
        stops: orders to stop. They know the grace of leases.
        nodes: of this cycle.
        allocator: has ports and MIG instances.
        ranks: of gangs.
        events: of this cycle.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        attempts: cycle_attempts.CycleAttempts,
        stops: stop_orders.StopOrders,
        *,
        nodes: cycle_nodes.CycleNodes,
        allocator: gang_ranks.AttemptAllocator,
        ranks: gang_ranks.GangRanks,
        events: cycle_events.CycleEvents,
        now: float,
    ) -> None:
        self._attempts = attempts
        self._stops = stops
        self._nodes = nodes
        self._allocator = allocator
        self._ranks = ranks
        self._events = events
        self._now = now

    def place(
        self, draft: job_draft.JobDraft, parts: list[decisions.Placement], waited: str
    ) -> None:
        """Start what was placed of an element; ``waited`` says why it did not start before."""
        spec = draft.spec
        element = parts[0].element
        tasks = sorted(
            (task for part in parts for task in part.tasks),
            key=lambda task: (task.group, task.index),
        )
        names = self._allocator.node_names
        grows = parts[0].action == "grow"
        present = self._attempts.of_element(spec.name, element) if grows else []
        note = draft.note(element)
        if not grows and note.verdict is not None:  # older versions could leave one behind
            draft.set_note(element, msgspec.structs.replace(note, verdict=None))
        number = 1 + max(note.tries, cycle_attempts.try_number_of(present, note) if present else 0)
        ranks = self._ranks.of(spec, tasks)
        for task, rank in zip(tasks, ranks, strict=True):
            name = names[task.node]
            node = self._nodes.get(name)
            group = spec.groups[task.group].name
            profile, instances = self._allocator.instances(task)
            self._attempts.add(
                records.AttemptRecord(
                    id=identifiers.attempt_id(spec, element, group, task.index, number),
                    job=spec.name,
                    run=spec.run,
                    job_key=spec.key,
                    element=element,
                    group=group,
                    index=task.index,
                    try_number=number,
                    node=name,
                    boot_id=node.boot_id if node else "",
                    resources=Resources(*task.amounts),
                    state=AttemptState.ASSIGNED,
                    assigned_at=self._now,
                    devices=task.devices,
                    rank=rank,
                    lease_s=spec.lease_s,
                    grace_s=self._stops.lease_grace_s(spec, name),
                    mig_profile=profile,
                    instances=instances,
                    saves_every_s=spec.checkpoint.every_s if spec.checkpoint else None,
                    pool=node.pool if node else "",
                )
            )
        if not grows:
            draft.set_element(element, JobState.STARTING)
        places = _places(Counter(names[task.node] for task in tasks))
        why = f" ({parts[0].why})" if parts[0].why else ""
        which = "" if spec.array_count is None else f"element {element}, "
        what = f"{which}growth by" if grows else f"{which}try {number}:"
        self._events.add("JobPlaced", f"{what} {places}{why}{waited}", job=spec.name)


def _reasons(
    cache: cycle_cache.CycleCache,
    jobs: cycle_jobs.CycleJobs,
    reasons: cycle_reasons.CycleReasons,
    *,
    helped: Iterable[str],
    built: snapshot_builder.SnapshotResult,
    decided: decisions.Decisions,
) -> None:
    """Set the reasons of every pending job, and write only what changed.

    Plain jobs whose pending group has the same reason as in the last cycle are skipped.
    """
    texts = {**built.pending.reasons, **decided.reasons}
    part = cache.part(pending_cache.PendingCache)
    started = Counter(p.job for p in decided.placements if p.action != "grow")
    found = dict(built.pending.reason_of)
    visit = part.begin_telling(reasons.renewed)
    # pending groups some of whose jobs start, or wait for a reason of their own
    apart = {part.group_of.get(name) for name in (*started, *decided.reason_of)} - {None}
    slots, keys = built.pending.groups.slots, np.array(decided.reason_of_line, dtype=object)
    own = [group.slot for group in apart if group is not None]
    part.slot_reasons[own] = None
    passed = keys == decisions.UNCHANGED
    keep = _Keepers.of(built, passed, part, jobs)
    together = ~passed & (slots >= 0) & ~np.isin(slots, own)
    used: set[str] = set(keys[together].tolist())
    told = ~passed & (~together | (part.slot_reasons[slots] != keys))
    for index in np.flatnonzero(told).tolist():
        key = keys[index]
        for claim in built.snapshot.lines[index].claims:
            visit.add(claim.job)
            if key and not claim.missing and started.get(claim.job, 0) < len(claim.elements):
                found[claim.job] = key
    part.slot_reasons[slots[together]] = keys[together]
    found |= decided.reason_of
    # until now their records have the reasons that autoscaling wrote
    visit.update(helped)
    visit = visit.union(found, part.changed, part.others, jobs.drafts)
    waiting = cache.waiting.known
    for name in cycle_cache.in_order(visit, jobs.known):
        key = found.get(name, "")
        group = None if key else part.group_of.get(name)
        if not key and keep.has(name, group) and _waits(jobs.drafts.get(name)):
            continue
        if group is not None and group not in apart:
            key = part.slot_reasons[group.slot] or ""
        _set_reason(jobs, waiting, name, key)
    used.update(found.values())
    used.discard("")
    for key in sorted(used):
        if reasons.known.get(key) != texts[key]:
            reasons.renewed[key] = texts[key]
    for key in reasons.known:
        if key not in used and key not in keep.keys:
            reasons.renewed[key] = ()


class _Keepers(NamedTuple):
    """Jobs that keep their reasons, because a quick schedule passed over them.

    Attributes:
        slots: of pending groups all of whose jobs do.
        names: of jobs of other groups.
        keys: of the reasons that they keep.
    """

    slots: frozenset[int]
    names: frozenset[str]
    keys: set[str]

    def has(self, name: str, group: pending_cache.CachedGroup | None) -> bool:
        """Return True if a job is one of them. ``group``: of a plain one without a new reason."""
        return name in self.names or (group is not None and group.slot in self.slots)

    @classmethod
    def of(
        cls,
        built: snapshot_builder.SnapshotResult,
        passed: NDArray[np.bool_],
        part: pending_cache.PendingCache,
        jobs: cycle_jobs.CycleJobs,
    ) -> "_Keepers":
        """Return those of the groups that were passed over."""
        slots, lines = built.pending.groups.slots, built.snapshot.lines
        together = passed & (slots >= 0)
        told = part.slot_reasons[slots]
        keys = set(told[together].tolist()) - {None}
        alike = together & np.array([key is not None for key in told.tolist()], dtype=np.bool_)
        for index in np.flatnonzero(passed & ~alike).tolist():
            keys.update(_key_of(jobs, claim.job) for claim in lines[index].claims)
        others = np.flatnonzero(passed & (slots < 0)).tolist()
        return cls(
            frozenset(slots[together].tolist()),
            frozenset(claim.job for index in others for claim in lines[index].claims),
            keys,
        )


def _key_of(jobs: cycle_jobs.CycleJobs, name: str) -> str:
    """Return the key of the reasons that a job has, if it still waits."""
    draft = jobs.drafts.get(name)
    if draft is None:
        return jobs.known[name].reason_key
    return draft.reason_key if _waits(draft) else ""


def _waits(draft: job_draft.JobDraft | None) -> bool:
    """Return True if a pending job still is after this cycle."""
    return draft is None or job_draft.PENDING in draft.elements


def _set_reason(jobs: cycle_jobs.CycleJobs, waiting: AbstractSet[str], name: str, key: str) -> None:
    """Write a reason's key into a job's record if the job waits or was touched in this cycle."""
    draft = jobs.drafts.get(name)
    if draft is not None:
        if not draft.finished:
            draft.reason_key = key
    elif name in waiting and jobs.known[name].reason_key != key:
        jobs.new_reason_keys[name] = key


def _deadlines(
    jobs: cycle_jobs.CycleJobs,
    events: cycle_events.CycleEvents,
    now: float,
    built: snapshot_builder.SnapshotResult,
    decided: decisions.Decisions,
) -> None:
    """Report deadlines that can't be met any more, and withdraw that if they can.

    Only pending jobs are checked. A running job may end long before its time limit.
    """
    late = dict(built.pending.unreachable)
    for claim in built.pending.pressed:
        if claim.job in late:
            continue
        estimate = decided.estimates.get(claim.job)
        latest = built.at + claim.slack_s
        if estimate is not None and estimate.entitled and latest < estimate.latest < math.inf:
            late[claim.job] = latest
    for name, latest in late.items():
        draft = jobs.draft(name)
        if draft is None or job_draft.PENDING not in draft.elements:
            continue
        message = _late_text(draft, latest, now)
        if draft.message != message:
            known = draft.message.startswith(job_draft.LATE)
            draft.message = message
            if not known:
                events.add("DeadlineOutOfReach", message, job=name)
    # a quick schedule makes no estimates, so nothing is known to have changed
    for name in built.pending.in_time if built.snapshot.settled is None else ():
        draft = jobs.draft(name) if name not in late else None
        if draft is not None and draft.message.startswith(job_draft.LATE):
            draft.message = ""
    for draft in jobs.drafts.values():  # they include everything that started in this cycle
        waits = job_draft.PENDING in draft.elements and draft.spec.deadline is not None
        if draft.message.startswith(job_draft.LATE) and not waits:
            draft.message = ""


def _late_text(draft: job_draft.JobDraft, latest: float, now: float) -> str:
    """Return the text that a deadline can't be met, with the run time used and the latest start."""
    spec = draft.spec
    takes_s = 0.0 if spec.deadline is None else spec.deadline - latest
    if spec.time_limit_s is not None and takes_s > spec.time_limit_s - 1e-3:
        known_by = "by its time limit"
    else:  # a shorter run time was learned, or none is known
        known_by = "by the time it is expected to take" if takes_s > 0 else "any more"
    subject = "what waits of it" if draft.live_count() else "it"
    would = "would have to" if latest >= now else "would have had to"
    by = times.format_time(latest)
    return f"{job_draft.LATE}{known_by}: {subject} {would} start by {by} at the latest"
