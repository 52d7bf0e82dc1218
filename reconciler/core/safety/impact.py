"""What a change of desired state does to a cluster, in the cluster's own units.

Two desired states and the records of the moment come in; out comes an :class:`Impact`: GPUs that
leave and enter service, queues that go, guarantees and limits that change, running work that ends.
Safety limits are compared with it, a plan shows it, and approval names its digest (``digests``).
Nothing is decided here and nothing is simulated: what the scheduler makes of the change is not
in it.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from reconciler.core.quota import over_limit, queue_tree
from reconciler.core.safety import capacity, digests, job_impact, structure_diff
from reconciler.model import desired
from reconciler.model.state import records

#: What there is of a queue that needs no document: it is there, and nothing is said of it.
_NO_DOCUMENT = ("Queue/default", msgspec.to_builtins(desired.Queue("default")))


class PoolImpact(msgspec.Struct, frozen=True):
    """GPUs and nodes of one pool that leave and enter service.

    A node is in service when its pool manages it and git does not drain it; it counts with the
    GPUs that its pool declares, whether or not it reports. Of a pool whose nodes come and go those
    count that are there or on their way, and as many as there are to be at the least.
    ``pool`` is empty for all pools together, where a node that only changes its pool neither leaves
    nor enters; such nodes leave their pool with ``gpus_moving``, which are among those leaving.
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

    @property
    def gpus_lost(self) -> int:
        """GPUs that leave, and do not stay in service in another pool."""
        return self.gpus_leaving - self.gpus_moving

    @property
    def share_lost(self) -> float:
        """Which part of the GPUs in service is lost: 0 to 1, and 0 where there are none."""
        return self.gpus_lost / self.gpus_before if self.gpus_before else 0.0


class AmountChange(msgspec.Struct, frozen=True):
    """A guarantee or limit that is another after the change.

    ``object`` is ``Queue/name`` or ``Quota/name``; ``field`` as documents have it; amounts are in
    milli-CPUs, bytes or milli-GPUs, None where nothing was said.
    """

    object: str
    field: str
    resource: Literal["cpu", "memory", "gpu"]
    before: int | None
    after: int | None


class Above(msgspec.Struct, frozen=True):
    """A queue that holds more, with those below it, than a limit that is lowered.

    Amounts as in :class:`AmountChange`; ``jobs`` is how many jobs hold them. ``pool``: of a limit
    there, else empty. ``remedied``: what may be evicted is told to leave, as policy has such
    drift made right.
    """

    queue: str
    resource: Literal["cpu", "memory", "gpu"]
    limit: int
    used: int
    jobs: int
    pool: str = ""
    remedied: bool = False


class Impact(msgspec.Struct, frozen=True):
    """What a change does, measured at one moment.

    Attributes:
        total: GPUs of all pools together. pools: those of each pool that is touched, by name.
        queues_removed, queues_added: names.
        amounts: guarantees and limits that change.
        jobs: work with tasks on nodes that is touched, in order of name.
        jobs_running: how many jobs have tasks on nodes, touched or not.
        jobs_removed: every job that the change itself takes out of the desired state, running
            or not.
        objects: labels (``Kind/name``) of structural objects that differ, in order.
        removed: those of them that are not there after the change, or are as without a document.
        approval: those of them that always need approval.
        digest: what approving this change names; see ``digests``.
    """

    total: PoolImpact
    pools: tuple[PoolImpact, ...] = ()
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
        """How many running jobs are stopped, by ``parts`` of the change or by all of it."""
        return sum(job.ends for job in self.jobs if not parts or job.part in parts)

    def gpu_hours_lost(self, *parts: job_impact.Part) -> float:
        """GPU-hours of work that are lost, by ``parts`` of the change or by all of it."""
        return sum(job.gpu_hours_lost for job in self.jobs if not parts or job.part in parts)


def find(
    before: desired.Desired, after: desired.Desired, observed: records.Observed, now: float
) -> Impact:
    """What changing ``before`` into ``after`` does to what is ``observed`` at ``now``.

    Args:
        before: what is in force.
        after: what is proposed.
        observed: records as of the last cycle.
        now: seconds since the epoch, for work that is lost and deadlines.
    """
    total, pools = _pools(before.structure, after.structure, observed)
    jobs = tuple(job_impact.find(before, after, observed, now))
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


def _pools(
    before: desired.Structure, after: desired.Structure, observed: records.Observed
) -> tuple[PoolImpact, tuple[PoolImpact, ...]]:
    """All pools together, and each that is touched."""
    old = {name: capacity.gpus(pool, observed) for name, pool in before.pools.items()}
    new = {name: capacity.gpus(pool, observed) for name, pool in after.pools.items()}
    every = [{n: g for nodes in side.values() for n, g in nodes.items()} for side in (old, new)]
    touched = []
    for name in sorted(old.keys() | new.keys()):
        found = _capacity(name, old.get(name, {}), new.get(name, {}))
        if found.nodes_leaving or found.nodes_entering or found.gpus_before != found.gpus_after:
            moving = sum(
                min(old[name][node], every[1].get(node, 0)) for node in found.nodes_leaving
            )
            touched.append(msgspec.structs.replace(found, gpus_moving=moving))
    return _capacity("", *every), tuple(touched)


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
    )


# --- queues and quotas ------------------------------------------------------------------------


def _amounts(before: desired.Structure, after: desired.Structure) -> Iterator[AmountChange]:
    """Changed amounts of queues and quotas; those of one that comes or goes against nothing."""
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
    """Changed amounts of a queue in pools."""
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
    """Queues in which more runs than a limit that the change lowers."""
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
        path = queue_tree.path_to_root(after.queues, record.spec.queue) if record else ()
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
    """Its limits by pool, that of the cluster without a name."""
    return {"": queue.limit, **{flavor.pool: flavor.limit for flavor in queue.flavors}}


def _limit(structure: desired.Structure, queue: str, pool: str, position: int) -> int | None:
    found = structure.queues.get(queue)
    limit = _limits(found).get(pool) if found is not None else None
    return limit.as_vector()[position] if limit is not None else None
