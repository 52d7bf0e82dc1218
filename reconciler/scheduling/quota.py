"""What queues may still take: limits, guarantees and shares along the way to the root.

The amounts come from the snapshot; every start and every promise of the cycle is charged to its
queue and all ancestors here, and every question about quota is answered from here. Amounts are
plain integers, because the walks are short and each concerns one queue.

Rationing follows the design: GPUs are rationed everywhere as soon as any queue is guaranteed
some; CPU and memory only in queues that name them, and in queues that name nothing at all,
which own nothing and borrow whatever they hold.
"""

from dataclasses import dataclass, field

from reconciler.scheduling import snapshot as snapshots

GPU = 2
RESOURCES = (0, 1, GPU)
Vector = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Excess:
    """A queue that a start would take over an amount, and by which numbers."""

    queue: int
    resource: int
    bound: int
    used: int
    asked: int


def plus(left: Vector, right: Vector) -> Vector:
    """The sum of two vectors of amounts."""
    return (left[0] + right[0], left[1] + right[1], left[2] + right[2])


@dataclass(slots=True)
class Quota:
    """The ledger of one cycle.

    Attributes:
        paths: for each queue the indexes from itself up to its root.
        guaranteed: amounts, where a parent that names none has the sum of its children.
        named: whether a queue is guaranteed something of a resource.
        judged: whether a queue is measured by its guarantee in a resource.
        charged: allocated amounts with the starts and promises of this cycle.
        firm: of the charged amounts those of work that can't be evicted and is not leaving.
        going: of the charged amounts those that leaving elements still hold.
        version: grows with every change.
    """

    paths: list[tuple[int, ...]]
    guaranteed: list[Vector]
    limit: list[Vector]
    named: list[tuple[bool, bool, bool]]
    judged: list[tuple[bool, bool, bool]]
    charged: list[list[int]]
    cluster: Vector
    firm: list[list[int]] = field(default_factory=list)
    going: list[list[int]] = field(default_factory=list)
    version: int = 0

    def charge(self, queue: int, asked: Vector, count: int = 1, *, firm: bool = False) -> None:
        """Count elements as taken by a queue and all above it; ``firm``: not preemptible."""
        self.version += 1
        for member in self.paths[queue]:
            for row in (self.charged[member], self.firm[member])[: 2 if firm else 1]:
                for resource in RESOURCES:
                    row[resource] += asked[resource] * count

    def release(self, queue: int, amounts: Vector, sign: int = 1) -> None:
        """Count amounts of a queue as about to come free (-1: not after all)."""
        self.version += 1
        for member in self.paths[queue]:
            row = self.going[member]
            for resource in RESOURCES:
                row[resource] += sign * amounts[resource]

    def used(self, queue: int, resource: int, *, settled: bool) -> int:
        """What a queue has, without what is about to come free where ``settled``."""
        taken = self.charged[queue][resource]
        return taken - self.going[queue][resource] if settled else taken

    def over_limit(self, queue: int, asked: Vector, *, settled: bool = False) -> Excess | None:
        """The lowest queue that one more element would take over its limit, if any."""
        for member in self.paths[queue]:
            for resource in RESOURCES:
                bound, used = self.limit[member][resource], self.charged[member][resource]
                if settled:
                    used -= self.going[member][resource]
                if asked[resource] and used + asked[resource] > bound:
                    return Excess(member, resource, bound, used, asked[resource])
        return None

    def over_guarantee(self, queue: int, asked: Vector) -> Excess | None:
        """The lowest queue whose guarantee one more element of firm work would exceed, if any.

        Work that is not preemptible may not borrow, so it is measured against all such work:
        what is preemptible beside it gives way to whoever is owed.
        """
        for member in self.paths[queue]:
            for resource in RESOURCES:
                bound, used = self.guaranteed[member][resource], self.firm[member][resource]
                judged = asked[resource] and self.judged[member][resource]
                if judged and used + asked[resource] > bound:
                    return Excess(member, resource, bound, used, asked[resource])
        return None

    def depth_covered(self, queue: int, asked: Vector) -> int:
        """How far up guarantees cover a start once all that is leaving has left.

        Counted in queues from its own: 0 where its own does not, the length of its path where
        all do. Taking from a queue needs a claim to be covered below where their paths meet:
        what leaves there and comes here changes nothing above.
        """
        named = self.named[queue]
        if not any(named[resource] and asked[resource] for resource in RESOURCES):
            return 0
        for depth, member in enumerate(self.paths[queue]):
            for resource in RESOURCES:
                if not asked[resource] or not self.judged[member][resource]:
                    continue
                used = self.used(member, resource, settled=True)
                if used + asked[resource] > self.guaranteed[member][resource]:
                    return depth
        return len(self.paths[queue])

    def depth_apart(self, queue: int, other: int) -> int:
        """How many queues of a path lie below where it meets another, 1 at least."""
        shared = self.paths[other]
        return max(1, sum(member not in shared for member in self.paths[queue]))

    def is_over(self, queue: int) -> bool:
        """Whether a queue, without what is leaving, has more than it is guaranteed."""
        return any(
            self.judged[queue][resource]
            and self.used(queue, resource, settled=True) > self.guaranteed[queue][resource]
            for resource in RESOURCES
        )

    def surplus(self, resource: int) -> int:
        """What all queues together have over their guarantees in a resource, at the most."""
        return sum(
            max(0, self.used(queue, resource, settled=True) - bounds[resource])
            for queue, bounds in enumerate(self.guaranteed)
        )

    def stays_at_guarantee(self, queue: int, amounts: Vector) -> bool:
        """Whether a queue that gives these amounts up keeps what it is guaranteed."""
        return all(
            not amounts[resource]
            or not self.judged[queue][resource]
            or self.used(queue, resource, settled=True) - amounts[resource]
            >= self.guaranteed[queue][resource]
            for resource in RESOURCES
        )

    def startable(self, queue: int, asked: Vector, *, firm: bool) -> int:
        """How many elements may start before a limit, or a guarantee for firm work, is reached."""
        count = snapshots.UNLIMITED
        for member in self.paths[queue]:
            for resource in RESOURCES:
                if not asked[resource]:
                    continue
                room = self.limit[member][resource] - self.charged[member][resource]
                if firm and self.judged[member][resource]:
                    own = self.guaranteed[member][resource] - self.firm[member][resource]
                    room = min(room, own)
                count = min(count, max(0, room // asked[resource]))
        return count

    def covers(self, queue: int, asked: Vector, taken: Vector) -> bool:
        """Whether guarantees would cover a start after ``taken`` had been charged too."""
        named = self.named[queue]
        if not any(named[resource] and asked[resource] for resource in RESOURCES):
            return False
        return all(
            not asked[r]
            or not self.judged[member][r]
            or self.charged[member][r] + taken[r] + asked[r] <= self.guaranteed[member][r]
            for member in self.paths[queue]
            for r in RESOURCES
        )

    def saturation(self, queue: int, taken: Vector) -> float:
        """Dominant ratio of allocated to guaranteed amounts, with ``taken`` charged too."""
        row, bounds = self.charged[queue], self.guaranteed[queue]
        return max((row[r] + taken[r]) / bounds[r] if bounds[r] else 0.0 for r in RESOURCES)

    def share(self, queue: int, taken: Vector) -> float:
        """Dominant share of the cluster (Ghodsi et al., NSDI 2011: the largest over resources)."""
        row, whole = self.charged[queue], self.cluster
        return max((row[r] + taken[r]) / whole[r] if whole[r] else 0.0 for r in RESOURCES)


def _vectors(rows: snapshots.Amounts) -> list[Vector]:
    return [(int(row[0]), int(row[1]), int(row[2])) for row in rows]


def _paths(parents: list[int]) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for queue, parent in enumerate(parents):
        paths.append((queue,) if parent < 0 else (queue, *paths[parent]))
    return paths


def _flags(row: list[bool]) -> tuple[bool, bool, bool]:
    return (row[0], row[1], row[2])


def of(situation: snapshots.Snapshot) -> Quota:
    """The ledger at the start of a cycle."""
    queues = situation.queues
    parents = [int(parent) for parent in queues.parent]
    stated = _vectors(queues.guaranteed)
    sums = [[0, 0, 0] for _ in parents]
    guaranteed = list(stated)
    for queue in reversed(range(len(parents))):
        own = stated[queue]
        filled = [own[r] or sums[queue][r] for r in RESOURCES]
        guaranteed[queue] = (filled[0], filled[1], filled[2])
        if parents[queue] >= 0:
            for resource in RESOURCES:
                sums[parents[queue]][resource] += filled[resource]
    named = [_flags([amount > 0 for amount in row]) for row in guaranteed]
    rationed = [any(row[resource] for row in named) for resource in RESOURCES]
    judged = [
        _flags([row[r] or (rationed[r] and (r == GPU or not any(row))) for r in RESOURCES])
        for row in named
    ]
    ledger = Quota(
        paths=_paths(parents),
        guaranteed=guaranteed,
        limit=_vectors(queues.limit),
        named=named,
        judged=judged,
        charged=[list(row) for row in _vectors(queues.allocated)],
        cluster=_vectors(situation.nodes.capacity.sum(axis=0, keepdims=True))[0],
        firm=[[0, 0, 0] for _ in parents],
        going=[[0, 0, 0] for _ in parents],
    )
    for holding in situation.holdings:
        if holding.leaving:
            ledger.release(holding.queue, total_of(holding))
        elif not holding.evictable:
            total = total_of(holding)
            for member in ledger.paths[holding.queue]:
                for resource in RESOURCES:
                    ledger.firm[member][resource] += total[resource]
    return ledger


def total_of(holding: snapshots.Holding) -> Vector:
    """What an element holds over all its tasks."""
    total: Vector = (0, 0, 0)
    for _, amounts, _ in holding.tasks:
        total = plus(total, amounts)
    return total
