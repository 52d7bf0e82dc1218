"""Guaranteed capacity that queues ask for and do not have.

Demand alone is not enough: it includes work that a limit or its own shape keeps from starting, and
work that would have to borrow. Only work counts that waits for capacity and of which a job would
fit in the unused guarantee of its queue or of an ancestor.
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
    """Requests of the pending elements of one queue, reason and pool.

    Attributes:
        elements: number of elements.
        least: amounts with which all of them could start, in the order of
            ``resources.RESOURCE_NAMES``.
    """

    elements: int
    least: list[int]


def amounts(
    queues: Sequence[outcome.QueueUsage],
    asked: Mapping[Whose, QueueDemand],
    why: Mapping[str, tuple[pending_reasons.Reason, ...]],
) -> dict[str, tuple[int, int, int]]:
    """Return what each queue, descendants included, lacks of its guarantee and asks for.

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
    """Return the same by queue and pool, in milli-GPUs, for work that must run in that pool."""
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
    """Yield a queue and its ancestors."""
    queue = known.get(name)
    while queue is not None:
        yield queue
        queue = known.get(queue.parent) if queue.parent is not None else None


def _room(queue: outcome.QueueUsage, resource: int) -> int:
    """Return the part of its guarantee that a queue does not use."""
    return max(0, (queue.guaranteed[resource] or 0) - queue.allocated[resource])
