"""Turns the scheduler's decisions into attempts, evictions, and the pending reasons of records."""

import math
from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np

from reconciler.core import cycle_attempts, cycle_cache, cycle_context, job_draft
from reconciler.core.cycle import cycle_reasons
from reconciler.core.jobs import lifecycle
from reconciler.core.snapshot import node_columns, pending_cache, snapshot_builder
from reconciler.model import desired
from reconciler.model.state import identifiers, records
from reconciler.model.state.pending_reasons import NO_NODE, ReasonCode, never_starts
from reconciler.model.state.states import AttemptState, EndReason, JobState
from reconciler.model.values import hostlists, quantities, times
from reconciler.model.values.resources import Resources
from reconciler.scheduling import decisions

#: Rendezvous ports of gangs, below the kernel's ephemeral range.
RENDEZVOUS_PORTS = range(29_400, 32_700)


def apply(
    context: cycle_context.CycleContext,
    built: snapshot_builder.SnapshotResult,
    decided: decisions.Decisions,
) -> None:
    """Write the decisions into the context: new attempts, stop orders, reasons."""
    allocator = _Allocator(built.nodes, context.attempts, context.jobs.next_order)
    touched: dict[str, job_draft.JobDraft] = {}
    placed: dict[tuple[str, int], list[decisions.Placement]] = {}
    for placement in decided.placements:  # an elastic element may start and grow in one cycle
        placed.setdefault((placement.job, placement.element), []).append(placement)
    for (job, _), parts in placed.items():
        draft = context.jobs.draft(job)
        if draft is not None:
            touched[job] = draft
            _place(context, draft, parts, allocator)
    for eviction in decided.evictions:
        draft = context.jobs.draft(eviction.job)
        if draft is not None:
            touched[eviction.job] = draft
            _evict(context, draft, eviction)
    for draft in touched.values():
        lifecycle.settle(context, draft)
    _reasons(context, built, decided)
    _deadlines(context, built, decided)


def _evict(
    context: cycle_context.CycleContext,
    draft: job_draft.JobDraft,
    eviction: decisions.EvictionDecision,
) -> None:
    """End an element's try, or only those of its tasks that it can go on without."""
    element, moving = eviction.element, eviction.ground == "consolidate"
    what = draft.spec.element_text(element)
    if eviction.tasks:
        names = [group.name for group in draft.spec.groups]
        leaving = {(names[group], index) for group, index in eviction.tasks}
        lifecycle.dismiss(context, draft, element, leaving, by=eviction.for_job)
        what = f"{quantities.counted(len(leaving), 'task')}{draft.spec.of_element(element)}"
    else:
        lifecycle.give_verdict(
            context, draft, element, EndReason.PREEMPTED, by=eviction.for_job, moving=moving
        )
        if moving:
            _clear_moved(context, eviction.for_job)
    several = len(eviction.tasks) > 1
    if not eviction.for_job:
        verb = ("move" if moving else "leave") + ("" if several else "s")
    elif moving:
        verb = f"move{'' if several else 's'} to make room for {eviction.for_job}"
    else:
        verb = f"{'are' if several else 'is'} preempted by {eviction.for_job}"
    context.events.add("JobEvicted", f"{what} {verb}: {eviction.why}", job=eviction.job)


def _clear_moved(context: cycle_context.CycleContext, job: str) -> None:
    """Clear the mark that an element was moved, because others now move for it.

    Otherwise the one that moves now would go back to where it was, move again, and so on.
    """
    draft = context.jobs.draft(job)
    if draft is None:
        return
    for element, note in sorted(draft.notes.items()):
        if note.moved:
            draft.set_note(element, msgspec.structs.replace(note, moved=False))


class _Allocator:
    """The names, ports and MIG instances that new attempts get.

    Args:
        table: columns of nodes, by which tasks are placed.
        attempts: of this cycle. What they have is taken.
        turn: where to look for free ports first, different each time.
    """

    def __init__(
        self, table: node_columns.NodeTable, attempts: cycle_attempts.CycleAttempts, turn: int
    ) -> None:
        self.nodes = table
        self._attempts = attempts
        self._turn = turn
        self._ports: _Ports | None = None
        self._instances: dict[tuple[str, str], set[int]] | None = None

    def port(self, count: int) -> int:
        """Return the first of a gang's ports."""
        if self._ports is None:
            self._ports = _Ports(self._attempts, self._turn)
        return self._ports.take(count)

    def _taken(self) -> dict[tuple[str, str], set[int]]:
        """Return the MIG instances in use, by node and profile."""
        if self._instances is None:
            self._instances = {}
            for attempt in self._attempts.live():
                if attempt.instances:
                    key = (attempt.node, attempt.mig_profile)
                    self._instances.setdefault(key, set()).update(attempt.instances)
        return self._instances

    def instances(self, task: decisions.TaskPlacement) -> tuple[str, tuple[int, ...]]:
        """Return the profile of a task's MIG instances, and which of the node's it gets."""
        if task.profile < 0:
            return "", ()
        profile = self.nodes.profiles[task.profile]
        taken = self._taken().setdefault((self.nodes.names[task.node], profile), set())
        found: list[int] = []
        number = 0
        while len(found) < task.instances:
            if number not in taken:
                found.append(number)
            number += 1
        taken.update(found)
        return profile, tuple(found)


def _place(
    context: cycle_context.CycleContext,
    draft: job_draft.JobDraft,
    parts: list[decisions.Placement],
    allocator: _Allocator,
) -> None:
    spec = draft.spec
    element = parts[0].element
    tasks = sorted(
        (task for part in parts for task in part.tasks), key=lambda task: (task.group, task.index)
    )
    names = allocator.nodes.names
    grows = parts[0].action == "grow"
    present = context.attempts.of_element(spec.name, element) if grows else []
    note = draft.note(element)
    if not grows and note.verdict is not None:  # older versions could leave one behind
        draft.set_note(element, msgspec.structs.replace(note, verdict=None))
    number = 1 + max(note.tries, cycle_attempts.try_number_of(present, note) if present else 0)
    ranks = _ranks(context, spec, tasks, names, allocator)
    for task, rank in zip(tasks, ranks, strict=True):
        name = names[task.node]
        node = context.nodes.get(name)
        group = spec.groups[task.group].name
        profile, instances = allocator.instances(task)
        context.attempts.add(
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
                assigned_at=context.now,
                devices=task.devices,
                rank=rank,
                lease_s=spec.lease_s,
                grace_s=context.stops.lease_grace_s(spec, name),
                mig_profile=profile,
                instances=instances,
                saves_every_s=spec.checkpoint.every_s if spec.checkpoint else None,
                pool=node.pool if node else "",
            )
        )
    if not grows:
        draft.set_element(element, JobState.STARTING)
    where = Counter(names[task.node] for task in tasks)
    places = ", ".join(
        f"{quantities.counted(count, 'task')} on {name}" for name, count in sorted(where.items())
    )
    why = f" ({parts[0].why})" if parts[0].why else ""
    which = "" if spec.array_count is None else f"element {element}, "
    what = f"{which}growth by" if grows else f"{which}try {number}:"
    waited = last_reason(context.reasons, draft)
    context.events.add("JobPlaced", f"{what} {places}{why}{waited}", job=spec.name)


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
    if last.code is ReasonCode.NEVER_FITS and last.message.startswith(NO_NODE):
        return "; until now no node had joined"  # else the funnel would count them
    # a reason that waiting does not end was ended by another commit, or by other nodes
    verb = "could not start at all" if never_starts(last_reasons) else "waited"
    return f"; until now it {verb}: {last_reasons[0].code}: {last_reasons[0].message}"


def _ranks(
    context: cycle_context.CycleContext,
    spec: desired.Job,
    tasks: list[decisions.TaskPlacement],
    node_names: tuple[str, ...],
    allocator: _Allocator,
) -> list[records.RankPlacement]:
    """Number the tasks so that neighbours by number are neighbours by network.

    The first task has rank 0. The domains of a topology follow each other, in a domain the nodes,
    on a node groups and indexes. Nodes are numbered by their first rank.
    """
    if spec.framework == "none":
        return [records.RankPlacement()] * len(tasks)
    order = _by_topology(context, tasks, node_names)
    sizes = Counter(tasks[number].node for number in order)
    first = context.nodes.get(node_names[tasks[order[0]].node])
    hosts = hostlists.fold_in_order(node_names[node] for node in sizes)
    ports = _ports_needed(context, {node_names[node]: count for node, count in sizes.items()})
    base = records.RankPlacement(
        world_size=len(tasks),
        master_address=first.inventory.address if first else "127.0.0.1",
        master_port=allocator.port(ports),
        hosts=hosts,
        tasks_per_host=hostlists.fold_counts(sizes.values()),
        ports=ports,
    )
    node_rank = {node: number for number, node in enumerate(sizes)}
    devices = _by_node(tasks)
    local: Counter[int] = Counter()
    ranks = [base] * len(tasks)
    for rank, number in enumerate(order):
        node = tasks[number].node
        ranks[number] = msgspec.structs.replace(
            base,
            rank=rank,
            local_rank=local[node],
            local_world_size=sizes[node],
            node_rank=node_rank[node],
            local_devices=devices.get(node, ()),
        )
        local[node] += 1
    return ranks


def _ports_needed(context: cycle_context.CycleContext, tasks: Mapping[str, int]) -> int:
    """Return the most tasks of a gang that share an address; ``tasks`` are by node."""
    found: Counter[str] = Counter()
    for name, count in tasks.items():
        node = context.nodes.get(name)
        found[node.inventory.address if node else name] += count
    return max(found.values())


def _by_node(tasks: list[decisions.TaskPlacement]) -> dict[int, tuple[int, ...]]:
    """Return a gang's devices on each node on which several of its tasks have some."""
    found: dict[int, list[decisions.TaskPlacement]] = {}
    for task in tasks:
        if task.devices:
            found.setdefault(task.node, []).append(task)
    return {
        node: tuple(sorted({device for task in there for device in task.devices}))
        for node, there in found.items()
        if len(there) > 1
    }


def _by_topology(
    context: cycle_context.CycleContext,
    tasks: list[decisions.TaskPlacement],
    node_names: tuple[str, ...],
) -> list[int]:
    """Return positions of tasks in the order of ranks. Domains are ordered by their first task."""
    met: dict[tuple[str, ...], int] = {}
    keys: dict[int, tuple[int, ...]] = {}
    for task in tasks:
        if task.node not in keys:
            name = node_names[task.node]
            node = context.nodes.get(name)
            pool = context.desired.structure.pools.get(node.pool) if node else None
            path = (*(pool.domains.get(name, ()) if pool else ()), name)
            parts = [path[: depth + 1] for depth in range(len(path))]
            keys[task.node] = tuple([met.setdefault(part, len(met)) for part in parts])
    return sorted(
        range(len(tasks)), key=lambda n: (keys[tasks[n].node], tasks[n].group, tasks[n].index)
    )


class _Ports:
    """An allocator of consecutive rendezvous ports that no current gang uses."""

    def __init__(self, attempts: cycle_attempts.CycleAttempts, turn: int) -> None:
        self._used: set[int] = set()
        for attempt in attempts.live():
            port = attempt.rank.master_port
            if port and port not in self._used:
                counts = hostlists.expand_counts(attempt.rank.tasks_per_host)
                count = attempt.rank.ports or max(counts, default=1)
                self._used.update(range(port, port + count))
        self._next = RENDEZVOUS_PORTS.start + turn % len(RENDEZVOUS_PORTS)

    def take(self, count: int) -> int:
        """Return the first of so many consecutive free ports.

        After a full round the next, free or not.
        """
        for _ in range(len(RENDEZVOUS_PORTS)):
            if self._next + count > RENDEZVOUS_PORTS.stop:
                self._next = RENDEZVOUS_PORTS.start
            block = range(self._next, self._next + count)
            self._next += 1
            if self._used.isdisjoint(block):
                self._used.update(block)
                self._next = block.stop
                return block.start
        return RENDEZVOUS_PORTS.start


def _reasons(
    context: cycle_context.CycleContext,
    built: snapshot_builder.SnapshotResult,
    decided: decisions.Decisions,
) -> None:
    """Set the reasons of every pending job, and write only what changed.

    Plain jobs whose pending group has the same reason as in the last cycle are skipped.
    """
    reasons = {**built.pending.reasons, **decided.reasons}
    part = context.cache.part(pending_cache.PendingCache)
    started = Counter(p.job for p in decided.placements if p.action != "grow")
    found = dict(built.pending.reason_of)
    visit = part.begin_telling(context.reasons.renewed)
    # pending groups some of whose jobs start, or wait for a reason of their own
    apart = {part.group_of.get(name) for name in (*started, *decided.reason_of)} - {None}
    slots, keys = built.pending.groups.slots, np.array(decided.reason_of_line, dtype=object)
    own = [group.slot for group in apart if group is not None]
    together = (slots >= 0) & ~np.isin(slots, own)
    part.slot_reasons[own] = None
    used: set[str] = set(keys[together].tolist())
    for index in np.flatnonzero(~together | (part.slot_reasons[slots] != keys)).tolist():
        key = keys[index]
        for claim in built.snapshot.lines[index].claims:
            visit.add(claim.job)
            if key and not claim.missing and started.get(claim.job, 0) < len(claim.elements):
                found[claim.job] = key
    part.slot_reasons[slots[together]] = keys[together]
    found |= decided.reason_of
    # until now their records have the reasons that autoscaling wrote
    visit.update(context.observed.scheduler_state.growing.helped)
    visit = visit.union(found, part.changed, part.others, context.jobs.drafts)
    for name in cycle_cache.in_order(visit, context.jobs.known):
        key = found.get(name, "")
        group = None if key else part.group_of.get(name)
        if group is not None and group not in apart:
            key = part.slot_reasons[group.slot] or ""
        _set_reason(context, name, key)
    used.update(found.values())
    used.discard("")
    for key in sorted(used):
        if context.reasons.known.get(key) != reasons[key]:
            context.reasons.renewed[key] = reasons[key]
    for key in context.reasons.known:
        if key not in used:
            context.reasons.renewed[key] = ()


def _set_reason(context: cycle_context.CycleContext, name: str, key: str) -> None:
    """Write a reason's key into a job's record if the job waits or was touched in this cycle."""
    draft = context.jobs.drafts.get(name)
    if draft is not None:
        if not draft.finished:
            draft.reason_key = key
    elif name in context.cache.waiting.known and context.jobs.known[name].reason_key != key:
        context.jobs.new_reason_keys[name] = key


def _deadlines(
    context: cycle_context.CycleContext,
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
        draft = context.jobs.draft(name)
        if draft is None or job_draft.PENDING not in draft.elements:
            continue
        message = _late_text(draft, latest, context.now)
        if draft.message != message:
            known = draft.message.startswith(job_draft.LATE)
            draft.message = message
            if not known:
                context.events.add("DeadlineOutOfReach", message, job=name)
    for name in built.pending.in_time:
        draft = context.jobs.draft(name) if name not in late else None
        if draft is not None and draft.message.startswith(job_draft.LATE):
            draft.message = ""
    for draft in context.jobs.drafts.values():  # they include everything that started in this cycle
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
