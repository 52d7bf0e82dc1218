"""What a change of desired state does to a cluster, in the cluster's own units.

Two desired states and the records of the moment come in; out comes an :class:`Impact`: GPUs that
leave and enter service, queues that go, guarantees and limits that change, running work that ends.
Safety limits are compared with it, a plan shows it, and approval names its digest (``digests``).
Nothing is decided here and nothing is simulated: what the scheduler makes of the change is not
in it.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from reconciler.core import digests, losses, structural
from reconciler.model import desired, provisioning, records
from reconciler.model.states import AttemptState, NodeState

#: How work meets its end, or what else becomes of it. ``drained``: its node leaves service, and
#: it goes on there until it ends by itself.
How = Literal["cancelled", "replaced", "held", "timed-out", "evicted", "drained"]
#: Which part of the change does it: the structure, the removal of documents of jobs, or another
#: change of a job by whoever may change it.
Part = Literal["structure", "removal", "job"]

#: What there is of a queue that needs no document: it is there, and nothing is said of it.
_NO_DOCUMENT = ("Queue/default", msgspec.to_builtins(desired.Queue("default")))
_SILENT = (NodeState.UNKNOWN, NodeState.GONE)


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
    there, else empty.
    """

    queue: str
    resource: Literal["cpu", "memory", "gpu"]
    limit: int
    used: int
    jobs: int
    pool: str = ""


class JobImpact(msgspec.Struct, frozen=True):
    """What happens to a job that has tasks on nodes now.

    Attributes:
        job: its name. queue, owner: as it runs.
        how: what becomes of it. part: by which part of the change.
        gpus: GPUs (shares of them) of the tasks concerned.
        gpu_hours_lost: what they have put in since the newest checkpoint that is known, or since
            they started; 0 for work that goes on, and where none is known of work that is asked
            to save.
        nodes: where those tasks are.
        leaves_in_s: of what is drained, after how long it is told to leave; None: never.
    """

    job: str
    queue: str
    owner: str
    how: How
    part: Part
    gpus: float
    gpu_hours_lost: float
    nodes: tuple[str, ...] = ()
    leaves_in_s: float | None = None

    @property
    def ends(self) -> bool:
        """Whether tasks of it are stopped because of the change."""
        return self.how != "drained"


class Impact(msgspec.Struct, frozen=True):
    """What a change does, measured at one moment.

    Attributes:
        total: GPUs of all pools together. pools: those of each pool that is touched, by name.
        queues_removed, queues_added: names.
        amounts: guarantees and limits that change.
        jobs: work with tasks on nodes that is touched, in order of name.
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
    jobs: tuple[JobImpact, ...] = ()
    jobs_removed: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    approval: tuple[str, ...] = ()
    digest: str = ""

    def jobs_ended(self, *parts: Part) -> int:
        """How many running jobs are stopped, by ``parts`` of the change or by all of it."""
        return sum(job.ends for job in self.jobs if not parts or job.part in parts)

    def gpu_hours_lost(self, *parts: Part) -> float:
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
    jobs = tuple(_jobs(before, after, observed, now))
    removed = tuple(sorted(name for name in before.jobs if _is_removed(name, after)))
    differing = dict(structural.differences(before.structure, after.structure))
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
        jobs_removed=removed,
        objects=labels,
        removed=tuple(
            label
            for label, (_, right) in differing.items()
            if right is None or (label, right) == _NO_DOCUMENT
        ),
        approval=tuple(
            structural.needing_approval(labels, before.structure.settings.safety.approval)
        ),
        digest=named.text() if named.structure or named.removals else "",
    )


def _is_removed(name: str, after: desired.Desired) -> bool:
    return name not in after.jobs and name not in after.refused


# --- capacity ---------------------------------------------------------------------------------


def in_service(pool: desired.Pool, observed: records.Observed) -> dict[str, int]:
    """Nodes of a pool that may be given work, with the GPUs that each declares."""
    if pool.observe_only:
        return {}
    gpus = pool.node_resources.gpu_milli // 1000
    return {node: gpus for node in _machines(pool, observed) if node not in pool.drains}


def _machines(pool: desired.Pool, observed: records.Observed) -> Iterable[str]:
    """Names of nodes behind which there is a machine, or has to be."""
    if pool.provisioning is None:
        return pool.nodes
    provision = observed.provisions.get(pool.name)
    if provision is None:  # it is about to come and go: what reports is taken over
        taken = {
            name
            for name in pool.nodes
            if (node := observed.nodes.get(name)) is not None and node.state not in _SILENT
        }
        there = taken
    else:
        taken = set(provision.instances)
        there = {n for n, one in provision.instances.items() if one.state in provisioning.STAYING}
    found = [name for name in pool.nodes if name in there]
    free = (name for name in pool.nodes if name not in taken)
    lacking = max(0, pool.provisioning.minimum - len(found))
    return [*found, *itertools.islice(free, lacking)]


def _pools(
    before: desired.Structure, after: desired.Structure, observed: records.Observed
) -> tuple[PoolImpact, tuple[PoolImpact, ...]]:
    """All pools together, and each that is touched."""
    old = {name: in_service(pool, observed) for name, pool in before.pools.items()}
    new = {name: in_service(pool, observed) for name, pool in after.pools.items()}
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
    nothing = desired.Amounts()
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
        before, after = (side.get(pool, desired.Flavor(pool)) for side in (left, right))
        for field, was, now in (
            ("guaranteed", before.guaranteed, after.guaranteed),
            ("limit", before.limit, after.limit),
            ("lendingLimit", before.lending_limit, after.lending_limit),
        ):
            yield from _changes(f"Queue/{name}", f"{field} in pool {pool}", was, now)


def _either(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    return sorted(old.keys() | new.keys())


def _changes(
    label: str, field: str, old: desired.Amounts, new: desired.Amounts
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
    """Queues in which more runs than a limit that the change lowers; nothing of it is ended."""
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
    for job, attempts in _live(observed).items():
        record = observed.jobs.get(job)
        at = record.spec.queue if record is not None else None
        while at is not None and at in after.queues:
            for attempt in attempts:
                for pool in {"", pool_of.get(attempt.node, "")}:
                    row = used.setdefault((at, pool), [0, 0, 0])
                    for position, amount in enumerate(attempt.resources.as_vector()):
                        row[position] += amount
                    holders.setdefault((at, pool), set()).add(job)
            at = after.queues[at].parent
    for name, pool, position, bound in lowered:
        has = used.get((name, pool), [0, 0, 0])[position]
        if has > bound:
            jobs = len(holders[name, pool])
            yield Above(name, resources[position], bound, has, jobs, pool)


def _limits(queue: desired.Queue) -> dict[str, desired.Amounts]:
    """Its limits by pool, that of the cluster without a name."""
    return {"": queue.limit, **{flavor.pool: flavor.limit for flavor in queue.flavors}}


def _limit(structure: desired.Structure, queue: str, pool: str, position: int) -> int | None:
    found = structure.queues.get(queue)
    limit = _limits(found).get(pool) if found is not None else None
    return limit.as_vector()[position] if limit is not None else None


# --- running work -----------------------------------------------------------------------------


def _jobs(
    before: desired.Desired, after: desired.Desired, observed: records.Observed, now: float
) -> Iterator[JobImpact]:
    """What becomes of each job that has tasks on nodes; those that go on untouched left out."""
    leaving = _leaving(before.structure, after.structure, observed)
    for name, live in sorted(_live(observed).items()):
        record = observed.jobs.get(name)
        if record is None or record.removed:
            continue
        attempts = live
        leaves_in_s: float | None = None
        how, part = _fate(record, live, before, after, now)
        if how is None:
            attempts = [attempt for attempt in live if attempt.node in leaving]
            if not attempts:
                continue
            leaves_in_s = _leaves_in_s(record.spec, [leaving[one.node] for one in attempts])
            how, part = ("evicted" if leaves_in_s == 0 else "drained"), "structure"
        yield JobImpact(
            job=name,
            queue=record.spec.queue,
            owner=record.spec.owner,
            how=how,
            part=part,
            gpus=sum(attempt.resources.gpu_milli for attempt in attempts) / 1000,
            gpu_hours_lost=_lost(record.spec, how, attempts, now),
            nodes=tuple(sorted({attempt.node for attempt in attempts})),
            leaves_in_s=leaves_in_s,
        )


def _leaves_in_s(spec: desired.Job, policies: Iterable[desired.Leaving | None]) -> float | None:
    """After how long a job leaves nodes that are drained by policies; None: when it ends."""
    moments = [one.leaves_at(spec, 0.0) for one in policies if one is not None]
    return min((one for one in moments if one is not None), default=None)


def _leaving(
    before: desired.Structure, after: desired.Structure, observed: records.Observed
) -> dict[str, desired.Leaving | None]:
    """Nodes in service before the change and in no pool's after it, and how each leaves."""
    old = {n: pool for pool in before.pools.values() for n in in_service(pool, observed)}
    new = {node for pool in after.pools.values() for node in in_service(pool, observed)}
    still = after.pool_of_node()
    return {
        node: (after.pools[still[node]] if node in still else pool).leaving
        for node, pool in old.items()
        if node not in new
    }


def _live(observed: records.Observed) -> dict[str, list[records.AttemptRecord]]:
    """Attempts that have not ended nor been told to, by job."""
    found: dict[str, list[records.AttemptRecord]] = {}
    for attempt in observed.attempts.values():
        if attempt.state is not AttemptState.ENDED and attempt.stop is None:
            found.setdefault(attempt.job, []).append(attempt)
    return found


def _fate(
    record: records.JobRecord,
    attempts: list[records.AttemptRecord],
    before: desired.Desired,
    after: desired.Desired,
    now: float,
) -> tuple[How | None, Part]:
    """How the change ends a running job, None where it does not."""
    name, old = record.name, record.spec
    new = after.jobs.get(name)
    if new is None:
        gone = name in before.jobs and _is_removed(name, after)
        return ("cancelled" if gone else None), "removal"
    if new == before.jobs.get(name):
        return None, "job"
    if new.key != old.key:
        # Another execution under the same run number is ignored while the run is alive.
        return ("replaced" if new.run != old.run else None), "job"
    if new.suspend and not old.suspend:
        return "held", "job"
    if new.deadline is not None and new.deadline <= now:
        return "timed-out", "job"
    started = [attempt.started_at for attempt in attempts if attempt.started_at is not None]
    limit_s = new.time_limit_s
    if limit_s is not None and started and min(started) + limit_s <= now:
        return "timed-out", "job"
    return None, "job"


def _lost(spec: desired.Job, how: How, attempts: list[records.AttemptRecord], now: float) -> float:
    """GPU-hours put in since the newest checkpoint, that would have to be done again."""
    if how == "drained":
        return 0.0
    is_told = how in {"evicted", "held"}
    return losses.gpu_seconds(spec, attempts, now, is_told=is_told) / 3600
