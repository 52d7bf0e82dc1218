"""What queues are guaranteed, ask for and do not have, as far as a guarantee is for what they ask.

Demand alone does not tell: it holds work that a limit or its own shape keeps from starting, and
work that would have to borrow. Of what waits only that counts which waits for room, and of which a
job would fit in what is still due to its queue or to one above it.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from reconciler.model.state import outcome, pending_reasons

#: Reasons of work that could start if there was room for it.
FOR_ROOM = frozenset(
    {
        pending_reasons.ReasonCode.FRAGMENTED,
        pending_reasons.ReasonCode.INSUFFICIENT_RESOURCES,
        pending_reasons.ReasonCode.WAITING_FOR_EVICTIONS,
        pending_reasons.ReasonCode.RESERVED,
        pending_reasons.ReasonCode.BEHIND,
    }
)


#: Queue, key of the reason, and the only pool that the work may use; no pool where it has a choice.
Whose = tuple[str, str, str]


class QueueDemand(msgspec.Struct):
    """What pending elements of one queue, reason and pool ask for together.

    Attributes:
        elements: how many there are.
        least: with what all of them could start, in the order of ``resources.RESOURCE_NAMES``.
    """

    elements: int
    least: list[int]


def amounts(
    queues: Sequence[outcome.QueueUsage],
    asked: Mapping[Whose, QueueDemand],
    why: Mapping[str, tuple[pending_reasons.Reason, ...]],
) -> dict[str, tuple[int, int, int]]:
    """Of each queue, children included, what it lacks of its guarantee and asks for.

    ``why`` has the reasons by their key.
    """
    known = {queue.name: queue for queue in queues}
    lacks = {queue.name: [0, 0, 0] for queue in queues}
    for (name, key, _), one in asked.items():
        if not _waits_for_room(why.get(key)):
            continue
        for queue in _upwards(name, known):
            for resource, amount in enumerate(one.least):
                if 0 < amount <= _room(queue, resource) * one.elements:
                    lacks[queue.name][resource] += amount
    return {
        name: (
            min(lack[0], _room(known[name], 0)),
            min(lack[1], _room(known[name], 1)),
            min(lack[2], _room(known[name], 2)),
        )
        for name, lack in lacks.items()
    }


def in_pools(
    queues: Sequence[outcome.QueueUsage],
    asked: Mapping[Whose, QueueDemand],
    why: Mapping[str, tuple[pending_reasons.Reason, ...]],
) -> dict[tuple[str, str], int]:
    """The same of queue and pool, in milli-GPUs: what is guaranteed there, for work that has to go
    there.
    """
    known = {queue.name: queue for queue in queues}
    due = {
        (queue.name, pool.pool): max(0, (pool.guaranteed[2] or 0) - pool.allocated[2])
        for queue in queues
        for pool in queue.pools
        if pool.named and pool.guaranteed[2] is not None
    }
    lacks = dict.fromkeys(due, 0)
    for (name, key, pool_name), one in asked.items():
        if not pool_name or not one.least[2] or not _waits_for_room(why.get(key)):
            continue
        for queue in _upwards(name, known):
            room = due.get((queue.name, pool_name), 0)
            if one.least[2] <= room * one.elements:
                lacks[queue.name, pool_name] = min(
                    room, lacks[queue.name, pool_name] + one.least[2]
                )
    return lacks


def _waits_for_room(told: tuple[pending_reasons.Reason, ...] | None) -> bool:
    return bool(told) and told is not None and told[0].code in FOR_ROOM


def _upwards(name: str, known: Mapping[str, outcome.QueueUsage]) -> Iterator[outcome.QueueUsage]:
    """A queue and all above it."""
    queue = known.get(name)
    while queue is not None:
        yield queue
        queue = known.get(queue.parent) if queue.parent is not None else None


def _room(queue: outcome.QueueUsage, resource: int) -> int:
    """What of its guarantee a queue does not have."""
    return max(0, (queue.guaranteed[resource] or 0) - queue.allocated[resource])
