"""What queues are guaranteed, ask for and do not have, as far as a guarantee is for what they ask.

Demand alone does not tell: it holds work that a limit or its own shape keeps from starting, and
work that would have to borrow. Of what waits only that counts which waits for room, and of which a
job would fit in what is still due to its queue or to one above it.
"""

from collections.abc import Mapping, Sequence

import msgspec

from reconciler.model import outcome, reasons

#: Reasons of work that could start if there was room for it.
FOR_ROOM = frozenset(
    {
        reasons.ReasonCode.FRAGMENTED,
        reasons.ReasonCode.INSUFFICIENT_RESOURCES,
        reasons.ReasonCode.WAITING_FOR_EVICTIONS,
        reasons.ReasonCode.RESERVED,
        reasons.ReasonCode.BEHIND,
    }
)


class Asked(msgspec.Struct):
    """What pending elements of one queue and reason ask for together.

    Attributes:
        elements: how many there are.
        least: with what all of them could start, in the order of ``resources.RESOURCE_NAMES``.
    """

    elements: int
    least: list[int]


def amounts(
    queues: Sequence[outcome.QueueUsage],
    asked: Mapping[tuple[str, str], Asked],
    why: Mapping[str, tuple[reasons.Reason, ...]],
) -> dict[str, tuple[int, int, int]]:
    """Of each queue, children included, what it lacks of its guarantee and asks for.

    ``asked`` is by queue and key of the reason, ``why`` has the reasons by that key.
    """
    known = {queue.name: queue for queue in queues}
    lacks = {queue.name: [0, 0, 0] for queue in queues}
    for (name, key), one in asked.items():
        told = why.get(key)
        if not told or told[0].code not in FOR_ROOM:
            continue
        queue = known.get(name)
        while queue is not None:
            for resource, amount in enumerate(one.least):
                if 0 < amount <= _room(queue, resource) * one.elements:
                    lacks[queue.name][resource] += amount
            queue = known.get(queue.parent) if queue.parent is not None else None
    return {
        name: (
            min(lack[0], _room(known[name], 0)),
            min(lack[1], _room(known[name], 1)),
            min(lack[2], _room(known[name], 2)),
        )
        for name, lack in lacks.items()
    }


def _room(queue: outcome.QueueUsage, resource: int) -> int:
    """What of its guarantee a queue does not have."""
    return max(0, (queue.guaranteed[resource] or 0) - queue.allocated[resource])
