"""From records to the scheduler's columnar snapshot.

Nodes become rows, queues become rows, jobs that may start become claims, elements that hold
resources become holdings. Jobs of one shape share it, so that the scheduler tries it once.
"""

from dataclasses import dataclass, field

import numpy as np

from reconciler.core import waiting
from reconciler.core import work as desk
from reconciler.model import desired, records
from reconciler.model.reasons import FunnelStep, Reason, ReasonCode
from reconciler.model.states import AttemptState, EndReason, NodeState
from reconciler.scheduling import snapshot as columns


@dataclass
class Situation:
    """A snapshot with what is needed to read the decisions, and who is not in it and why.

    ``at``: the moment by which what time changes steadily was reckoned.
    """

    snapshot: columns.Snapshot
    node_names: tuple[str, ...]
    at: float
    reasons: dict[str, tuple[Reason, ...]] = field(default_factory=dict)
    reason_of: dict[str, str] = field(default_factory=dict)
    running_jobs: dict[str, int] = field(default_factory=dict)
    pending_jobs: dict[str, int] = field(default_factory=dict)


def build(work: desk.Work, at: float) -> Situation:
    """The situation as the earlier phases of this cycle left it.

    ``at``: the moment by which what time changes steadily is reckoned (see ``standing``).
    """
    nodes, index_of_node = _nodes(work)
    holdings, used_by_queue = _holdings(work, index_of_node, at)
    queues, index_of_queue = _queues(work, used_by_queue)
    holdings = tuple(h for h in holdings if h.queue >= 0)
    situation = Situation(
        snapshot=columns.Snapshot(
            nodes=nodes, queues=queues, shapes=(), claims=(), holdings=holdings
        ),
        node_names=nodes.names,
        at=at,
    )
    shapes = _Shapes(work, nodes.names)
    claims = []
    for name in work.active_names():
        claim = _claim(work, name, shapes, index_of_queue, situation)
        if claim is not None:
            claims.append(claim)
    situation.snapshot = columns.Snapshot(
        nodes=nodes,
        queues=queues,
        shapes=tuple(shapes.shapes),
        claims=tuple(claims),
        holdings=holdings,
    )
    return situation


def _claim(
    work: desk.Work,
    name: str,
    shapes: "_Shapes",
    index_of_queue: dict[str, int],
    situation: Situation,
) -> columns.Claim | None:
    draft = work.drafts.get(name)
    record = draft.record() if draft else work.observed.jobs[name]
    counter = situation.pending_jobs if record.elements.count(desk.PENDING) else None
    ready = waiting.readiness(work, record, record.elements)
    if counter is not None:
        counter[record.spec.queue] = counter.get(record.spec.queue, 0) + 1
    if ready.reason is not None:
        situation.reasons[ready.reason_key] = (ready.reason,)
        situation.reason_of[name] = ready.reason_key
        return None
    if not ready.elements:
        return None
    spec = record.spec
    shape, refusal = shapes.of(spec)
    if refusal is not None:
        key = f"NoUnixUser/{spec.owner}"
        situation.reasons[key] = (refusal,)
        situation.reason_of[name] = key
        return None
    slack_s = float("inf")
    if spec.deadline is not None:
        slack_s = spec.deadline - situation.at - (spec.time_limit_s or 0)
    return columns.Claim(
        job=name,
        elements=ready.elements,
        startable=ready.startable,
        shape=shape,
        queue=index_of_queue[spec.queue],
        priority=spec.priority,
        order=record.order,
        owner=spec.owner,
        slack_s=slack_s,
        preemptible=spec.preemptible,
        promised=work.observed.promised.get(name, 0),
    )


class _Shapes:
    """Shapes by what is asked for; each is worked out once a cycle."""

    def __init__(self, work: desk.Work, node_names: tuple[str, ...]) -> None:
        self._work = work
        self._names = node_names
        self._index: dict[tuple[object, ...], tuple[int, Reason | None]] = {}
        self.shapes: list[columns.Shape] = []

    def of(self, spec: desired.Job) -> tuple[int, Reason | None]:
        """The shape's index, or the reason why no node may run work of this owner at all."""
        has_user = spec.owner in self._work.desired.structure.unix_users
        groups = tuple((g.name, g.count, g.resources.as_vector()) for g in spec.groups)
        selector = tuple(sorted(spec.node_selector.items()))
        key = (groups, spec.pools, selector, has_user)
        if key not in self._index:
            self._index[key] = self._make(spec, has_user=has_user)
        return self._index[key]

    def _make(self, spec: desired.Job, *, has_user: bool) -> tuple[int, Reason | None]:
        eligible = np.zeros(len(self._names), dtype=np.bool_)
        filtered: dict[str, int] = {}
        without_user = 0
        for row, name in enumerate(self._names):
            why = self._why_not(spec, name, has_user=has_user)
            if why is None:
                eligible[row] = True
            else:
                filtered[why] = filtered.get(why, 0) + 1
                without_user += why == _NO_USER
        refusal = None
        if without_user and not eligible.any():
            refusal = Reason(
                code=ReasonCode.NO_UNIX_USER,
                message=f"no Unix user is known for its owner {spec.owner or '(none)'}, "
                "and the pools do not allow root",
                unblocks="an identity with unixUser in Access, or allowRoot in the NodePool",
            )
        steps = tuple(FunnelStep(count, why) for why, count in sorted(filtered.items()))
        self.shapes.append(
            columns.Shape(
                groups=tuple(
                    columns.GroupShape(g.name, g.count, g.resources.as_vector())
                    for g in spec.groups
                ),
                eligible=eligible,
                filtered=steps,
            )
        )
        return len(self.shapes) - 1, refusal

    def _why_not(self, spec: desired.Job, name: str, *, has_user: bool) -> str | None:
        node = self._work.node(name)
        pool = self._work.desired.structure.pools.get(node.pool) if node else None
        if node is None or pool is None:
            return "in no pool"
        if spec.pools and pool.name not in spec.pools:
            return f"not in pool {' or '.join(spec.pools)}"
        if pool.observe_only:
            return "only observed (mode: observe)"
        for label, value in spec.node_selector.items():
            if node_labels(node, pool).get(label) != value:
                return f"without label {label}={value}"
        if node.inventory.runs_as_root and not has_user and not pool.allow_root:
            return _NO_USER
        return None


_NO_USER = "owner has no Unix user there"


def node_labels(node: records.NodeRecord, pool: desired.Pool) -> dict[str, str]:
    """Labels that selectors see: the agent's, the pool's over them, and the model of GPU."""
    labels = {**node.inventory.labels, **pool.labels, "pool": pool.name, "node": node.name}
    if pool.gpu_model:
        labels["gpu-model"] = pool.gpu_model
    return labels


def _nodes(work: desk.Work) -> tuple[columns.NodeColumns, dict[str, int]]:
    names = tuple(work.node_names())
    index = {name: row for row, name in enumerate(names)}
    capacity = np.zeros((len(names), 3), dtype=np.int64)
    accepts = np.zeros(len(names), dtype=np.bool_)
    devices: list[list[int]] = []
    for row, name in enumerate(names):
        node = work.node(name)
        pool = work.desired.structure.pools.get(node.pool) if node else None
        if node is None or pool is None:
            devices.append([])
            continue
        capacity[row] = pool.node_resources.as_vector()
        accepts[row] = node.state is NodeState.READY
        devices.append(list(range(pool.node_resources.gpu_milli // 1000)))
    free = capacity.copy()
    for attempt in work.live_attempts():
        row_of = index.get(attempt.node)
        if row_of is None:
            continue
        free[row_of] -= np.array(attempt.resources.as_vector(), dtype=np.int64)
        for device in attempt.devices:
            if device in devices[row_of]:
                devices[row_of].remove(device)
    np.maximum(free, 0, out=free)
    for array in (capacity, free, accepts):
        array.setflags(write=False)
    return (
        columns.NodeColumns(
            names=names,
            capacity=capacity,
            free=free,
            accepts=accepts,
            free_devices=tuple(tuple(found) for found in devices),
        ),
        index,
    )


def _holdings(
    work: desk.Work, index_of_node: dict[str, int], at: float
) -> tuple[tuple[columns.Holding, ...], dict[str, np.ndarray]]:
    index_of_queue = {name: row for row, name in enumerate(work.desired.structure.queues)}
    used: dict[str, np.ndarray] = {}
    elements: dict[tuple[str, int], list[records.AttemptRecord]] = {}
    for attempt in work.live_attempts():
        elements.setdefault((attempt.job, attempt.element), []).append(attempt)
    holdings = []
    for (job, element), attempts in elements.items():
        draft = work.drafts.get(job)
        record = draft.record() if draft else work.observed.jobs.get(job)
        if record is None:
            continue
        spec = record.spec
        total = used.setdefault(spec.queue, np.zeros(3, dtype=np.int64))
        for attempt in attempts:
            total += np.array(attempt.resources.as_vector(), dtype=np.int64)
        stops = [attempt.stop for attempt in attempts if attempt.stop is not None]
        evicted_for = next((s.by for s in stops if s.reason is EndReason.PREEMPTED), "")
        doubtful = any(attempt.state is AttemptState.UNKNOWN for attempt in attempts)
        holdings.append(
            columns.Holding(
                job=job,
                element=element,
                queue=index_of_queue.get(spec.queue, -1),
                priority=spec.priority,
                order=record.order,
                tasks=tuple(
                    (index_of_node[a.node], a.resources.as_vector(), a.devices)
                    for a in attempts
                    if a.node in index_of_node
                ),
                evictable=spec.preemptible and not stops and not doubtful,
                cost_s=_cost_s(attempts, at),
                leaving=bool(stops),
                leaving_for=evicted_for,
            )
        )
    return tuple(holdings), used


def _cost_s(attempts: list[records.AttemptRecord], at: float) -> float:
    """GPU-seconds (CPU-seconds where there is no GPU) that an eviction would throw away."""
    started = [a.started_at for a in attempts if a.started_at is not None]
    if not started:
        return 0.0
    weight = sum(a.resources.gpu_milli or a.resources.cpu_milli / 1000 for a in attempts)
    return max(0.0, at - min(started)) * weight / 1000


def _queues(
    work: desk.Work, used: dict[str, np.ndarray]
) -> tuple[columns.QueueColumns, dict[str, int]]:
    queues = work.desired.structure.queues
    names = tuple(queues)
    index = {name: row for row, name in enumerate(names)}
    parent = np.full(len(names), -1, dtype=np.int64)
    guaranteed = np.zeros((len(names), 3), dtype=np.int64)
    limit = np.full((len(names), 3), columns.UNLIMITED, dtype=np.int64)
    allocated = np.zeros((len(names), 3), dtype=np.int64)
    suspended = np.zeros(len(names), dtype=np.bool_)
    for row, queue in enumerate(queues.values()):
        if queue.parent is not None and queue.parent in index:
            parent[row] = index[queue.parent]
        guaranteed[row] = [amount or 0 for amount in queue.guaranteed.as_vector()]
        limit[row] = [
            columns.UNLIMITED if amount is None else amount for amount in queue.limit.as_vector()
        ]
        suspended[row] = queue.suspend
        if queue.name in used:
            allocated[row] += used[queue.name]
    for row in range(len(names) - 1, -1, -1):  # parents stand before children: sum upwards
        if parent[row] >= 0:
            allocated[parent[row]] += allocated[row]
    for array in (parent, guaranteed, limit, allocated, suspended):
        array.setflags(write=False)
    return (
        columns.QueueColumns(
            names=names,
            parent=parent,
            guaranteed=guaranteed,
            limit=limit,
            allocated=allocated,
            suspended=suspended,
        ),
        index,
    )
