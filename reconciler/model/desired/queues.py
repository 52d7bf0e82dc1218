"""Queues, and what caps and keeps aside: amounts of resources for somebody, or at some time."""

from collections.abc import Collection

import msgspec

#: The longest window of a budget: what is spent in it is kept hour by hour.
BUDGET_WINDOW_S_MAX = 400 * 86_400


class QuotaAmounts(msgspec.Struct, frozen=True):
    """Rationed amounts; None: not rationed.

    As a guarantee, ``snapshot.UNLIMITED`` of the scheduler stands for "as much as there is"; only
    situations that are made by hand have it, documents can't say it.
    """

    cpu_milli: int | None = None
    memory_bytes: int | None = None
    gpu_milli: int | None = None

    def as_vector(self) -> tuple[int | None, int | None, int | None]:
        """The amounts in the order of ``resources.RESOURCE_NAMES``."""
        return (self.cpu_milli, self.memory_bytes, self.gpu_milli)


class QueueFlavor(msgspec.Struct, frozen=True):
    """What a queue has in one pool, beside what it has in the cluster.

    ``weight`` None: the queue's own.
    """

    pool: str
    guaranteed: QuotaAmounts = QuotaAmounts()
    limit: QuotaAmounts = QuotaAmounts()
    lending_limit: QuotaAmounts = QuotaAmounts()
    weight: float | None = None


class Queue(msgspec.Struct, frozen=True):
    """One queue. Parents stand before their children in ``Structure.queues``.

    ``min_runtime_s`` None: the cluster's. For its jobs: the time limit of those that have none, and
    what one of them may ask for. ``strict``: nobody passes the first of it that finds no room.
    ``flavors``: amounts by pool, in the order in which its jobs try these pools.
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

    def guaranteed_by_pool(self) -> tuple[int, int, int]:
        """What it is guaranteed in all its pools together."""
        rows = [flavor.guaranteed.as_vector() for flavor in self.flavors]
        cpu, memory, gpu = (sum(row[r] or 0 for row in rows) for r in range(3))
        return (cpu, memory, gpu)


class Quota(msgspec.Struct, frozen=True):
    """Caps for one user, group, queue or pool.

    Attributes:
        user, group, queue, pool: whom it holds for, one of them; a pool has ``resources`` alone.
        resources: what may be in use at once.
        running, pending: jobs that hold something, and jobs that are considered; None: any number.
        budget_gpu_s: GPU-seconds within ``window_s``; None: no budget.
        ends: whether what runs leaves when the budget is used up.
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
        """Whether a job counts: its owner, the groups of that, its queue with those above it."""
        if self.user:
            return self.user == owner
        return self.group in groups if self.group else self.queue in queues


class Reservation(msgspec.Struct, frozen=True):
    """Nodes kept for a window of time, once or again and again.

    ``starts_at`` and ``ends_at`` for one time; ``schedule`` (five cron fields as sorted numbers:
    minutes, hours, days of the month, months, days of the week from 0 = Sunday; None: any) and
    ``duration_s`` for many. Who may use it: ``users``, ``queues``, or anyone who names it.
    ``amounts`` of the nodes are kept, whatever of them has it; without any all of them are.
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
        """Whether work may use what is kept, by its owner, the reservation that it names, and its
        queue with those above it."""
        if self.maintenance:
            return False
        if self.users or self.queues:
            return owner in self.users or any(name in self.queues for name in above)
        return named == self.name
