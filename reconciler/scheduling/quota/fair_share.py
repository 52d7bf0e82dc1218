"""How much of the cluster each queue may count on: guarantees first, then the surplus by weight.

Columns of queues come in, amounts go out; nothing is kept. The tree is divided from the root: what
a parent got is divided among its children by the same rule, one resource at a time. First each
child gets its guarantee, as far as it asks for it. What is left goes by priority level and, within
a level, by weight, filling up like water: who is satisfied leaves the rest to the others. Amounts
of devices go out whole, so that somebody can use them, except to satisfy who asks for
less; what rounding leaves over goes to the largest remainders.

Source: the two steps and the rounding follow KAI-Scheduler's ``docs/fairness``; the part of usage
is that of its design of time-based fair share, ``P = max(W + k (W - U), 0)`` with normalised
weights W and normalised usage U.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from reconciler.scheduling.inputs import flavors, snapshots

GPU = 2

#: Divisions that are remembered: what is asked for by what runs and waits together changes seldom.
KNOWN_MAX = 32
_known: dict[tuple[object, ...], tuple[snapshots.Charge, ...]] = {}


@dataclass(frozen=True, slots=True)
class Sibling:
    """One queue as its siblings see it, in one resource.

    Attributes:
        guaranteed: what it is owed. withheld: of it, what is not lent to others while idle.
        demand: what it has and asks for, no more than its limit.
        weight: its part of the surplus. priority: higher gets surplus first.
        usage: decayed use, normalised by what the cluster could have given.
        unit: amounts are multiples of this, as far as the demand is.
        step: surplus that does not satisfy a queue is handed out in multiples of this.
    """

    guaranteed: int
    demand: int
    weight: float = 1.0
    priority: int = 0
    usage: float = 0.0
    withheld: int = 0
    unit: int = 1
    step: int = 1


def divide(
    total: int, siblings: Sequence[Sibling], strength: float = 0.0, *, shrink: bool = True
) -> list[int]:
    """What each sibling gets of ``total``, never more than its demand.

    Where the guarantees asked for come to more than there is, they shrink in proportion to what is
    guaranteed, unless one of them has no bound.

    Args:
        total: what there is.
        siblings: earlier ones come first where all else is equal.
        strength: k of the usage term; 0 leaves usage out.
        shrink: whether guarantees shrink; below the root they stand as written.
    """
    owed = [min(s.guaranteed, s.demand) for s in siblings]
    wanted = sum(owed)
    if wanted > total and shrink and all(s.guaranteed < snapshots.UNLIMITED for s in siblings):
        claims = [
            replace(s, demand=owed_one, weight=float(s.guaranteed))
            for owed_one, s in zip(owed, siblings, strict=True)
        ]
        shares = [0] * len(claims)
        _fill(total, list(range(len(claims))), shares, claims, 0.0)
        return shares
    withheld = sum(max(0, s.withheld - o) for s, o in zip(siblings, owed, strict=True))
    left = total - wanted - withheld
    shares = owed
    for priority in sorted({s.priority for s in siblings}, reverse=True):
        if left <= 0:
            break
        level = [i for i, s in enumerate(siblings) if s.priority == priority]
        left -= _fill(left, level, shares, siblings, strength)
    return shares


def _fill(
    left: int,
    level: list[int],
    shares: list[int],
    siblings: Sequence[Sibling],
    strength: float,
) -> int:
    """Give surplus to the siblings of one priority; the amount given.

    Weights divide it between them. One that alone still wants something there has nobody to divide
    with: whatever its weight, its priority alone says that it goes before those of lower ones.
    Siblings that want nothing more change nothing.
    """
    given = 0
    weights = _effective_weights([siblings[i] for i in level], strength)
    weight_of = dict(zip(level, weights, strict=True))
    wanting = [i for i in level if shares[i] < siblings[i].demand]
    if len(wanting) == 1:
        weight_of[wanting[0]] = 1.0
    unsatisfied = [i for i in wanting if weight_of[i] > 0]
    remainders: dict[int, float] = {}
    while unsatisfied and left > given:
        around = left - given
        whole = sum(weight_of[i] for i in unsatisfied)
        satisfied = []
        remainders = {}
        for i in unsatisfied:
            sibling, part = siblings[i], around * weight_of[i] / whole
            lacks = sibling.demand - shares[i]
            if lacks <= part:
                shares[i] += lacks
                given += lacks
                satisfied.append(i)
        if satisfied:
            unsatisfied = [i for i in unsatisfied if i not in satisfied]
            continue
        for i in unsatisfied:
            part = around * weight_of[i] / whole
            step = max(siblings[i].unit, siblings[i].step)
            rounded = int(part) // step * step
            shares[i] += rounded
            given += rounded
            remainders[i] = part - rounded
        break
    rest = left - given
    ranked = sorted(remainders, key=lambda i: (-round(remainders[i], 6), i))
    for i in ranked:
        sibling = siblings[i]
        lacks = sibling.demand - shares[i]
        step = max(sibling.unit, sibling.step)
        piece = min(rest, step, lacks) if step > 1 else min(rest, lacks)
        if piece < min(sibling.unit, lacks):
            continue
        shares[i] += piece
        given += piece
        rest -= piece
    return given


def _effective_weights(siblings: Sequence[Sibling], strength: float) -> list[float]:
    weights = [s.weight for s in siblings]
    total = sum(weights)
    if not strength or not total:
        return weights
    used = sum(s.usage for s in siblings)
    normal = [w / total for w in weights]
    usage = [s.usage / used if used > 1 else s.usage for s in siblings]
    return [
        max(w + strength * (w - u), 0.0) if w > 0 else 0.0
        for w, u in zip(normal, usage, strict=True)
    ]


def shares(
    queues: snapshots.QueueColumns,
    capacity: snapshots.Charge,
    demand: Sequence[snapshots.Charge],
    units: Sequence[int],
    strength: float = 0.0,
) -> list[snapshots.Charge]:
    """The fair share of every queue.

    Args:
        queues: the tree.
        capacity: what the nodes in service have.
        demand: for each queue what it and all below it have and ask for.
        units: for each queue the milli-GPUs of which its GPU amounts are multiples.
        strength: k of the usage term.

    Returns:
        (cpu, memory, gpu) for each queue, and the same in each pool; ``UNLIMITED`` for a resource
        that is not rationed.
    """
    written = (queues.parent, queues.guaranteed, queues.limit, queues.lending, queues.priority)
    measured = (queues.rationed, queues.weight, queues.usage, queues.pool_weight)
    said = [array.tobytes() for array in written]
    said += [b"" if array is None else array.tobytes() for array in measured]
    key = (capacity, tuple(demand), tuple(units), strength, *said)
    known = _known.get(key)
    if known is None:
        if len(_known) >= KNOWN_MAX:
            _known.clear()
        known = _known[key] = tuple(_shares(queues, capacity, demand, units, strength))
    return list(known)


def _shares(
    queues: snapshots.QueueColumns,
    capacity: snapshots.Charge,
    demand: Sequence[snapshots.Charge],
    units: Sequence[int],
    strength: float,
) -> list[snapshots.Charge]:
    """The same, worked out."""
    rationed, limit = queues.rationed.tolist(), queues.limit.tolist()
    found = [[snapshots.UNLIMITED] * len(capacity) for _ in queues.names]
    for resource in range(len(capacity)):
        if not any(row[resource] for row in rationed):
            continue
        asked = [
            min(bounds[resource], asks[resource])
            for bounds, asks in zip(limit, demand, strict=True)
        ]
        multiples = units if resource % flavors.BASE == GPU else [1] * len(asked)
        wanted = list(zip(asked, multiples, strict=True))
        divided = _down(queues, resource, capacity[resource], wanted, strength)
        for row, measured, share in zip(found, rationed, divided, strict=True):
            if measured[resource]:
                row[resource] = share
    return [tuple(row) for row in found]


def _down(
    queues: snapshots.QueueColumns,
    resource: int,
    whole: int,
    wanted: Sequence[tuple[int, int]],
    strength: float,
) -> list[int]:
    """What each queue gets of one resource, from the roots down.

    What is measured by nothing gets all there is above, as far as its limit goes: what is below it
    can't pass that.

    Args:
        queues: the tree.
        resource: which one.
        whole: what there is.
        wanted: of each queue what it has and asks for, and of what that is a multiple.
        strength: k of the usage term.
    """
    asked = [amount for amount, _ in wanted]
    owed = queues.guaranteed[:, resource].tolist()
    rationed, limit = queues.rationed[:, resource].tolist(), queues.limit[:, resource].tolist()
    weights, priority = _weights(queues, resource), queues.priority.tolist()
    usage, children = queues.usage.tolist(), children_of(queues.parent.tolist())
    idle = _kept_back(queues, asked, resource, children)
    found = [0] * len(asked)
    pending = [(-1, whole)]
    while pending:
        parent, total = pending.pop()
        members = children[parent]
        siblings = [
            Sibling(
                guaranteed=owed[queue],
                demand=asked[queue],
                weight=weights[queue],
                priority=priority[queue],
                usage=usage[queue],
                withheld=min(owed[queue], asked[queue]) + min(idle[queue], total),
                unit=wanted[queue][1],
                step=snapshots.WHOLE if resource % flavors.BASE == GPU else 1,
            )
            for queue in members
        ]
        divided = divide(total, siblings, strength, shrink=parent < 0)
        for queue, share in zip(members, divided, strict=True):
            found[queue] = share if rationed[queue] else min(total, limit[queue])
            pending.append((queue, found[queue]))
    return found


def _weights(queues: snapshots.QueueColumns, resource: int) -> list[float]:
    """What part of the surplus of one resource each queue has beside its siblings."""
    pool = resource // flavors.BASE - 1
    if pool < 0 or queues.pool_weight is None:
        whole: list[float] = queues.weight.tolist()
        return whole
    there: list[float] = queues.pool_weight[:, pool].tolist()
    return there


def children_of(parents: Sequence[int]) -> dict[int, list[int]]:
    """Queues directly below each queue; those without a parent are below -1."""
    found: dict[int, list[int]] = {queue: [] for queue in range(-1, len(parents))}
    for queue, parent in enumerate(parents):
        found[parent].append(queue)
    return found


def _kept_back(
    queues: snapshots.QueueColumns,
    asked: Sequence[int],
    resource: int,
    children: dict[int, list[int]],
) -> list[int]:
    """What each queue, or those below it, keep from others though nobody there asks for it."""
    lending = queues.lending[:, resource].tolist()
    if min(lending, default=snapshots.UNLIMITED) >= snapshots.UNLIMITED:
        return [0] * len(lending)
    owed = queues.guaranteed[:, resource].tolist()
    found = [max(0, o - lent - a) for o, lent, a in zip(owed, lending, asked, strict=True)]
    for queue in range(len(found) - 1, -1, -1):  # parents stand before their children
        found[queue] = max(found[queue], sum(found[child] for child in children[queue]))
    return found
