"""From the scheduler's decisions to attempts, evictions and the reasons that records carry."""

from collections import Counter

from reconciler.core import lifecycle, snapshots
from reconciler.core import work as desk
from reconciler.model import desired, identifiers, records
from reconciler.model.states import AttemptState, EndReason, JobState
from reconciler.scheduling import decisions

#: Ports at which the first rank of a gang meets the others; below the kernel's own range.
RENDEZVOUS_PORTS = range(29_400, 32_700)


def apply(work: desk.Work, situation: snapshots.Situation, decided: decisions.Decisions) -> None:
    """Write what was decided into the work: new attempts, stop orders, reasons."""
    ports = _Ports(work)
    touched: dict[str, desk.JobDraft] = {}
    for placement in decided.placements:
        draft = work.draft(placement.job)
        if draft is None:
            continue
        touched[placement.job] = draft
        _place(work, situation.node_names, draft, placement, ports)
    for eviction in decided.evictions:
        draft = work.draft(eviction.job)
        if draft is None:
            continue
        lifecycle.give_verdict(
            work, draft, eviction.element, EndReason.PREEMPTED, by=eviction.for_job
        )
        work.event(
            "JobEvicted",
            f"element {eviction.element} leaves for {eviction.for_job}: {eviction.why}",
            job=eviction.job,
        )
    for draft in touched.values():
        lifecycle.settle(work, draft)
    _reasons(work, situation, decided)


def _place(
    work: desk.Work,
    node_names: tuple[str, ...],
    draft: desk.JobDraft,
    placement: decisions.Placement,
    ports: "_Ports",
) -> None:
    spec = draft.spec
    element = placement.element
    try_number = draft.note(element).tries + 1
    resources = {group.name: group.resources for group in spec.groups}
    ranks = _ranks(work, spec, placement, node_names, ports)
    for task, rank in zip(placement.tasks, ranks, strict=True):
        name = node_names[task.node]
        node = work.node(name)
        work.add_attempt(
            records.AttemptRecord(
                id=identifiers.attempt_id(spec, element, task.group, task.index, try_number),
                job=spec.name,
                run=spec.run,
                job_key=spec.key,
                element=element,
                group=task.group,
                index=task.index,
                try_number=try_number,
                node=name,
                boot_id=node.boot_id if node else "",
                resources=resources[task.group],
                state=AttemptState.ASSIGNED,
                assigned_at=work.now,
                devices=task.devices,
                rank=rank,
                lease_s=spec.lease_s,
                grace_s=desk.lease_grace_s(work, spec, name),
            )
        )
    draft.set_element(element, JobState.STARTING)
    where = Counter(node_names[task.node] for task in placement.tasks)
    places = ", ".join(f"{count} on {name}" for name, count in sorted(where.items()))
    work.event("JobPlaced", f"element {element}, try {try_number}: {places}", job=spec.name)


def _ranks(
    work: desk.Work,
    spec: desired.Job,
    placement: decisions.Placement,
    node_names: tuple[str, ...],
    ports: "_Ports",
) -> list[records.RankPlacement]:
    """Number the tasks: groups in order, indexes in order, nodes by their first rank."""
    if spec.framework == "none":
        return [records.RankPlacement()] * len(placement.tasks)
    local: Counter[int] = Counter()
    node_rank: dict[int, int] = {}
    sizes = Counter(task.node for task in placement.tasks)
    first = work.node(node_names[placement.tasks[0].node])
    address = first.inventory.address if first else "127.0.0.1"
    port = ports.take()
    ranks = []
    for number, task in enumerate(placement.tasks):
        ranks.append(
            records.RankPlacement(
                rank=number,
                world_size=len(placement.tasks),
                local_rank=local[task.node],
                local_world_size=sizes[task.node],
                node_rank=node_rank.setdefault(task.node, len(node_rank)),
                master_address=address,
                master_port=port,
            )
        )
        local[task.node] += 1
    return ranks


class _Ports:
    """Rendezvous ports that no gang of this moment has."""

    def __init__(self, work: desk.Work) -> None:
        self._used = {a.rank.master_port for a in work.live_attempts() if a.rank.master_port}
        self._next = RENDEZVOUS_PORTS.start + work.next_order % len(RENDEZVOUS_PORTS)

    def take(self) -> int:
        """The next free one; after a whole round the next one, free or not."""
        for _ in range(len(RENDEZVOUS_PORTS)):
            port = self._next
            self._next += 1
            if self._next >= RENDEZVOUS_PORTS.stop:
                self._next = RENDEZVOUS_PORTS.start
            if port not in self._used:
                self._used.add(port)
                return port
        return RENDEZVOUS_PORTS.start


def _reasons(work: desk.Work, situation: snapshots.Situation, decided: decisions.Decisions) -> None:
    """Point every waiting job at its reasons; write only what changed."""
    reasons = {**situation.reasons, **decided.reasons}
    reason_of = {**situation.reason_of, **decided.reason_of}
    for name in work.active_names():
        record = work.drafts.get(name) or work.observed.jobs[name]
        key = reason_of.get(name, "")
        if record.reason_key != key:
            draft = work.draft(name)
            if draft is not None:
                draft.reason_key = key
    used = dict.fromkeys(reason_of.values())  # a set has another order in each process
    for key in used:
        if work.observed.reasons.get(key) != reasons[key]:
            work.reasons[key] = reasons[key]
    for key in work.observed.reasons:
        if key not in used:
            work.reasons[key] = ()
