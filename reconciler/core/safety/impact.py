"""The impact of a change of desired state on the cluster.

Two desired states and the records come in; an :class:`Impact` goes out: GPUs that leave and enter
service, removed queues, changed guarantees and limits, running work that ends. Safety limits, plans
and approvals read it. Nothing is decided or simulated here.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

import msgspec

from reconciler.core.quota import over_limit
from reconciler.core.safety import digests, job_impact, service_exits, structure_diff
from reconciler.model import desired
from reconciler.model.state import records

#: The default queue, which needs no document.
_NO_DOCUMENT = ("Queue/default", msgspec.to_builtins(desired.Queue("default")))


class PoolImpact(msgspec.Struct, frozen=True):
    """GPUs and nodes of one pool that leave and enter service.

    A node is in service if its pool manages it, git does not drain it, and no maintenance keeps it
    now. It counts with the GPUs
    that its pool declares, whether or not it reports. If it reports, a change may take it out of
    service as :mod:`service_exits` says. In a provisioned pool, existing and coming
    nodes count, and at least its minimum. ``pool`` is empty for all pools together, in which a node
    that only changes its pool neither leaves nor enters. Its own pool counts it in ``gpus_moving``,
    a part of those leaving. ``nodes_losing``: how many nodes lose GPUs, all or some of them.
    ``gpus_at_risk`` and ``nodes_at_risk`` may leave besides, by checks of which no result is known.
    ``gpus_managed`` are those before the change, of nodes out of service too.
    All pools together leave out what is at risk by trials: of each pool one node may always leave,
    and a check for many small pools would else be too much for the cluster.
    """

    pool: str
    gpus_before: int
    gpus_after: int
    gpus_leaving: int
    gpus_entering: int
    nodes_before: int = 0
    nodes_leaving: tuple[str, ...] = ()
    nodes_entering: tuple[str, ...] = ()
    gpus_moving: int = 0
    nodes_losing: int = 0
    gpus_at_risk: int = 0
    nodes_at_risk: int = 0
    gpus_managed: int = 0

    @property
    def gpus_lost(self) -> int:
        """GPUs that leave, or may, and do not stay in service in another pool."""
        return self.gpus_leaving - self.gpus_moving + self.gpus_at_risk

    @property
    def is_one_of_several(self) -> bool:
        """True if one node alone loses GPUs, and others are in service beside it."""
        return self.nodes_losing + self.nodes_at_risk == 1 and self.nodes_before > 1

    @property
    def leaves_none(self) -> bool:
        """True if nodes leave, and none is in service afterwards."""
        left = self.nodes_before + len(self.nodes_entering) - len(self.nodes_leaving)
        return bool(self.nodes_leaving) and not left

    @property
    def share_lost(self) -> float:
        """The share of GPUs in service that is lost: 0 to 1, and 0 if there are none."""
        return self.gpus_lost / self.gpus_before if self.gpus_before else 0.0


class AmountChange(msgspec.Struct, frozen=True):
    """A changed guarantee or limit.

    ``object`` is ``Queue/name`` or ``Quota/name``, ``field`` is as in documents. Amounts are
    milli-CPUs, bytes or milli-GPUs; None if not given.
    """

    object: str
    field: str
    resource: Literal["cpu", "memory", "gpu"]
    before: int | None
    after: int | None


class Above(msgspec.Struct, frozen=True):
    """A queue that holds more, with those below it, than a lowered limit.

    Amounts as in :class:`AmountChange`; ``jobs`` is how many jobs hold them. ``pool`` is empty
    unless the limit is of one pool. ``remedied`` is True if policy evicts what it may.
    """

    queue: str
    resource: Literal["cpu", "memory", "gpu"]
    limit: int
    used: int
    jobs: int
    pool: str = ""
    remedied: bool = False


class Impact(msgspec.Struct, frozen=True):
    """The effect of a change, measured at one moment.

    Attributes:
        total: GPUs of all pools together.
        pools: GPUs of each affected pool, by name.
        exits: nodes that leave service although their pool keeps them, in order of name.
        risks: how many more may leave, by pool.
        queues_removed: names.
        queues_added: names.
        amounts: guarantees and limits that change.
        jobs: affected jobs with tasks on nodes, in order of name.
        jobs_running: how many jobs have tasks on nodes, affected or not.
        jobs_removed: every job that the change itself removes, running or not.
        objects: labels (``Kind/name``) of structural objects that differ, in order.
        removed: those of them that are gone after the change, or as without a document.
        approval: those of them that always need approval.
        digest: names the change for approval; see ``digests``.
    """

    total: PoolImpact
    pools: tuple[PoolImpact, ...] = ()
    exits: tuple[service_exits.ServiceExit, ...] = ()
    risks: tuple[service_exits.CheckRisk, ...] = ()
    queues_removed: tuple[str, ...] = ()
    queues_added: tuple[str, ...] = ()
    amounts: tuple[AmountChange, ...] = ()
    jobs: tuple[job_impact.JobImpact, ...] = ()
    jobs_running: int = 0
    jobs_removed: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    approval: tuple[str, ...] = ()
    digest: str = ""

    def jobs_ended(self, *parts: job_impact.Part) -> int:
        """Return how many running jobs stop because of some ``parts`` of the change, or of all of
        it.
        """
        return sum(job.ends for job in self.jobs if not parts or job.part in parts)

    def gpu_hours_lost(self, *parts: job_impact.Part) -> float:
        """Return the GPU-hours of work lost because of some ``parts`` of the change, or of all of
        it.
        """
        return sum(job.gpu_hours_lost for job in self.jobs if not parts or job.part in parts)


def measure_impact(
    before: desired.Desired, after: desired.Desired, observed: records.Observed, now: float
) -> Impact:
    """Return the impact of changing ``before`` into ``after``.

    Args:
        before: what is in force.
        after: what is proposed.
        observed: records as of the last cycle.
        now: seconds since the epoch, for lost work and deadlines.
    """
    service = service_exits.compare(before.structure, after.structure, observed, now)
    total, pools = _pools(service)
    jobs = tuple(job_impact.find_job_impacts(before, after, observed, service, now))
    removed = tuple(sorted(name for name in before.jobs if job_impact.is_removed(name, after)))
    differing = dict(structure_diff.differences(before.structure, after.structure))
    labels = tuple(differing)
    ended = [job for job in jobs if job.ends and job.part != "job"]
    named = digests.Digest(
        structure=digests.hash_of(differing) if differing else "",
        removals=digests.hash_of({name: before.jobs[name].key for name in removed})
        if removed
        else "",
        jobs_ended=len(ended),
        gpu_hours_lost=math.ceil(round(sum(job.gpu_hours_lost for job in ended), 6)),
    )
    queues = before.structure.queues.keys(), after.structure.queues.keys()
    return Impact(
        total=total,
        pools=pools,
        exits=tuple(service.exits[node] for node in sorted(service.exits)),
        risks=service.risks,
        queues_removed=tuple(sorted(queues[0] - queues[1])),
        queues_added=tuple(sorted(queues[1] - queues[0])),
        amounts=tuple(_amounts(before.structure, after.structure)),
        jobs=jobs,
        jobs_running=len(job_impact.live(observed)),
        jobs_removed=removed,
        objects=labels,
        removed=tuple(
            label
            for label, (_, right) in differing.items()
            if right is None or (label, right) == _NO_DOCUMENT
        ),
        approval=tuple(
            structure_diff.needing_approval(labels, before.structure.settings.safety.approval)
        ),
        digest=named.text() if named.structure or named.removals else "",
    )


# --- capacity ---------------------------------------------------------------------------------


def _pools(service: service_exits.InService) -> tuple[PoolImpact, tuple[PoolImpact, ...]]:
    """Return the impact on all pools together, and on each affected one."""
    old, new = service.before, service.after
    every = [{n: g for nodes in side.values() for n, g in nodes.items()} for side in (old, new)]
    risks: dict[str, list[service_exits.CheckRisk]] = {}
    for one in service.risks:
        risks.setdefault(one.former, []).append(one)
    touched = []
    for name in sorted(old.keys() | new.keys()):
        found = _capacity(name, old.get(name, {}), new.get(name, {}))
        found = _with_risk(found, risks.get(name, ()))
        changes = found.nodes_leaving or found.nodes_entering or found.gpus_at_risk
        if changes or found.gpus_before != found.gpus_after:
            moving = sum(
                min(old[name][node], every[1].get(node, 0)) for node in found.nodes_leaving
            )
            size = service.managed.get(name, 0)
            touched.append(msgspec.structs.replace(found, gpus_moving=moving, gpus_managed=size))
    beyond = [one for one in service.risks if not one.trial]
    total = _with_risk(_capacity("", *every), beyond)
    size = sum(service.managed.values())
    return msgspec.structs.replace(total, gpus_managed=size), tuple(touched)


def _with_risk(of: PoolImpact, risks: Collection[service_exits.CheckRisk]) -> PoolImpact:
    return msgspec.structs.replace(
        of,
        gpus_at_risk=sum(one.gpus for one in risks),
        nodes_at_risk=sum(one.nodes for one in risks),
    )


def _capacity(pool: str, old: dict[str, int], new: dict[str, int]) -> PoolImpact:
    names = old.keys() | new.keys()
    return PoolImpact(
        pool=pool,
        gpus_before=sum(old.values()),
        gpus_after=sum(new.values()),
        gpus_leaving=sum(max(0, old.get(name, 0) - new.get(name, 0)) for name in names),
        gpus_entering=sum(max(0, new.get(name, 0) - old.get(name, 0)) for name in names),
        nodes_before=len(old),
        nodes_leaving=tuple(sorted(old.keys() - new.keys())),
        nodes_entering=tuple(sorted(new.keys() - old.keys())),
        nodes_losing=sum(count > new.get(name, 0) for name, count in old.items()),
    )


# --- queues and quotas ------------------------------------------------------------------------


def _amounts(before: desired.Structure, after: desired.Structure) -> Iterator[AmountChange]:
    """Yield changed amounts of queues and quotas. A new or removed one is compared with nothing."""
    nothing = desired.QuotaAmounts()
    for name in _either(before.queues, after.queues):
        old, new = before.queues.get(name), after.queues.get(name)
        for field, left, right in (
            ("guaranteed", old and old.guaranteed, new and new.guaranteed),
            ("limit", old and old.limit, new and new.limit),
            ("lendingLimit", old and old.lending_limit, new and new.lending_limit),
        ):
            yield from _changes(f"Queue/{name}", field, left or nothing, right or nothing)
        yield from _by_pool(name, old, new)
    for name in _either(before.quotas, after.quotas):
        left_quota, right_quota = before.quotas.get(name), after.quotas.get(name)
        yield from _changes(
            f"Quota/{name}",
            "resources",
            left_quota.resources if left_quota else nothing,
            right_quota.resources if right_quota else nothing,
        )


def _by_pool(
    name: str, old: desired.Queue | None, new: desired.Queue | None
) -> Iterator[AmountChange]:
    """Yield changed amounts of a queue in pools."""
    left, right = ({f.pool: f for f in queue.flavors} if queue else {} for queue in (old, new))
    for pool in _either(left, right):
        before, after = (side.get(pool, desired.QueueFlavor(pool)) for side in (left, right))
        for field, was, now in (
            ("guaranteed", before.guaranteed, after.guaranteed),
            ("limit", before.limit, after.limit),
            ("lendingLimit", before.lending_limit, after.lending_limit),
        ):
            yield from _changes(f"Queue/{name}", f"{field} in pool {pool}", was, now)


def _either(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    return sorted(old.keys() | new.keys())


def _changes(
    label: str, field: str, old: desired.QuotaAmounts, new: desired.QuotaAmounts
) -> Iterator[AmountChange]:
    if old.cpu_milli != new.cpu_milli:
        yield AmountChange(label, field, "cpu", old.cpu_milli, new.cpu_milli)
    if old.memory_bytes != new.memory_bytes:
        yield AmountChange(label, field, "memory", old.memory_bytes, new.memory_bytes)
    if old.gpu_milli != new.gpu_milli:
        yield AmountChange(label, field, "gpu", old.gpu_milli, new.gpu_milli)


def above_limits(
    before: desired.Structure, after: desired.Structure, observed: records.Observed
) -> Iterator[Above]:
    """Yield queues that hold more than a limit that the change lowers."""
    resources: tuple[Literal["cpu", "memory", "gpu"], ...] = ("cpu", "memory", "gpu")
    lowered = [
        (name, pool, position, new)
        for name, queue in after.queues.items()
        for pool, limit in _limits(queue).items()
        for position, new in enumerate(limit.as_vector())
        if new is not None and new != _limit(before, name, pool, position)
    ]
    if not lowered:
        return
    pool_of = before.pool_of_node()
    used: dict[tuple[str, str], list[int]] = {}
    holders: dict[tuple[str, str], set[str]] = {}
    for job, attempts in job_impact.live(observed).items():
        record = observed.jobs.get(job)
        path = desired.path_to_root(after.queues, record.spec.queue) if record else ()
        for at in path:
            for attempt in attempts:
                for pool in {"", pool_of.get(attempt.node, "")}:
                    row = used.setdefault((at, pool), [0, 0, 0])
                    for position, amount in enumerate(attempt.resources.as_vector()):
                        row[position] += amount
                    holders.setdefault((at, pool), set()).add(job)
    for name, pool, position, bound in lowered:
        has = used.get((name, pool), [0, 0, 0])[position]
        if has > bound:
            jobs = len(holders[name, pool])
            remedied = not pool and over_limit.is_remedied(after)
            yield Above(name, resources[position], bound, has, jobs, pool, remedied)


def _limits(queue: desired.Queue) -> dict[str, desired.QuotaAmounts]:
    """Return a queue's limits by pool; that of the cluster has no name."""
    return {"": queue.limit, **{flavor.pool: flavor.limit for flavor in queue.flavors}}


def _limit(structure: desired.Structure, queue: str, pool: str, position: int) -> int | None:
    found = structure.queues.get(queue)
    limit = _limits(found).get(pool) if found is not None else None
    return limit.as_vector()[position] if limit is not None else None
