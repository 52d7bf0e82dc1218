"""Queues, quotas and reservations: amounts of resources for somebody, or for a time."""

from collections.abc import Collection, Mapping

import msgspec

from reconciler.model.policy import queue_paths

#: The longest window of a budget: what is spent in it is kept hour by hour.
BUDGET_WINDOW_S_MAX = 400 * 86_400


class QuotaAmounts(msgspec.Struct, frozen=True):
    """Rationed amounts. None means that it is not rationed.

    As a guarantee, the scheduler's ``snapshots.UNLIMITED`` means "as much as there is". Only test
    scenarios use it; documents cannot.
    """

    cpu_milli: int | None = None
    memory_bytes: int | None = None
    gpu_milli: int | None = None

    def as_vector(self) -> tuple[int | None, int | None, int | None]:
        """Return the amounts in the order of ``resources.RESOURCE_NAMES``."""
        return (self.cpu_milli, self.memory_bytes, self.gpu_milli)


class QueueFlavor(msgspec.Struct, frozen=True):
    """Amounts of a queue in one pool, in addition to its amounts in the cluster.

    ``weight`` None: the queue's own.
    """

    pool: str
    guaranteed: QuotaAmounts = QuotaAmounts()
    limit: QuotaAmounts = QuotaAmounts()
    lending_limit: QuotaAmounts = QuotaAmounts()
    weight: float | None = None


class Queue(msgspec.Struct, frozen=True):
    """One queue. Parents come before their children in ``Structure.queues``.

    ``min_runtime_s`` None: the cluster's. The default and the maximum time limit apply to its jobs.
    ``strict``: no job overtakes the first one that does not fit. ``flavors`` are amounts by pool,
    in the order in which its jobs try these pools. ``cancels_never_met``: its jobs end when a
    dependency can't be met any more.
    """

    name: str
    parent: str | None = None
    guaranteed: QuotaAmounts = QuotaAmounts()
    limit: QuotaAmounts = QuotaAmounts()
    suspend: bool = False
    lending_limit: QuotaAmounts = QuotaAmounts()
    weight: float = 1.0
    priority: int = 0
    min_runtime_s: int | None = None
    default_time_limit_s: int | None = None
    time_limit_max_s: int | None = None
    gpu_milli_max: int | None = None
    strict: bool = False
    flavors: tuple[QueueFlavor, ...] = ()
    cancels_never_met: bool = False

    def guaranteed_by_pool(self) -> tuple[int, int, int]:
        """The guarantee of the queue in all its pools together."""
        rows = [flavor.guaranteed.as_vector() for flavor in self.flavors]
        cpu, memory, gpu = (sum(row[r] or 0 for row in rows) for r in range(3))
        return (cpu, memory, gpu)


class Quota(msgspec.Struct, frozen=True):
    """Caps for one user, group, queue or pool.

    Attributes:
        user, group, queue, pool: subject of the caps, one of the four; a pool has ``resources``
        only.
        resources: amounts that may be in use at once.
        running, pending: jobs that hold resources, and jobs that are considered; None: no cap.
        budget_gpu_s: GPU-seconds within ``window_s``; None: no budget.
        ends: running jobs are stopped when the budget is used up.
    """

    name: str
    user: str = ""
    queue: str = ""
    resources: QuotaAmounts = QuotaAmounts()
    running: int | None = None
    pending: int | None = None
    budget_gpu_s: float | None = None
    window_s: int = 30 * 86_400
    ends: bool = False
    group: str = ""
    pool: str = ""

    def holds_for(self, owner: str, groups: Collection[str], queues: Collection[str]) -> bool:
        """Return True if a job counts, by its owner, the owner's groups, or its queue and its
        ancestors.
        """
        if self.user:
            return self.user == owner
        return self.group in groups if self.group else self.queue in queues


class Reservation(msgspec.Struct, frozen=True):
    """Nodes kept for a window of time, once or repeatedly.

    ``starts_at`` and ``ends_at`` give one window; ``schedule`` and ``duration_s`` give many.
    ``schedule`` is five cron fields as sorted numbers: minutes, hours, days of the month, months,
    days of the week from 0 = Sunday; None: any. It is for ``users``, for ``queues``, or for any job
    that names it. ``amounts`` are kept on any of the nodes; without amounts all of the nodes are
    kept.
    """

    name: str
    nodes: tuple[str, ...]
    starts_at: float = 0.0
    ends_at: float = 0.0
    schedule: tuple[tuple[int, ...] | None, ...] = ()
    duration_s: int = 0
    users: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    maintenance: bool = False
    amounts: QuotaAmounts = QuotaAmounts()

    def lets_in(self, owner: str, named: str, above: Collection[str]) -> bool:
        """Return True if work may use the reservation.

        It depends on its owner, the reservation that it names, and its queue and the queue's
        ancestors.
        """
        if self.maintenance:
            return False
        if self.users or self.queues:
            return owner in self.users or any(name in self.queues for name in above)
        return named == self.name


def path_to_root(queues: Mapping[str, Queue], queue: str) -> tuple[str, ...]:
    """Return a queue and its ancestors, the queue first; empty if it is not declared."""

    def parent_of(name: str) -> str | None:
        known = queues.get(name)
        return None if known is None else known.parent

    path = dict.fromkeys((queue, *queue_paths.ancestors(queue, parent_of)))
    return tuple(name for name in path if name in queues)
