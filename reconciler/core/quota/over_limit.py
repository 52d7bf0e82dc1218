"""Chooses the work that leaves a queue above its limit: preemptible elements, the newest first.

Remediation and the impact of a change both use this choice, so that a plan names what happens.
"""

from collections.abc import Iterable

import msgspec

from reconciler.core import rate_limits
from reconciler.model import desired
from reconciler.model.state import records

DRIFT = "queue-over-limit"


class Element(msgspec.Struct):
    """A preemptible element in a queue or below it.

    Attributes:
        has: milli-CPUs, bytes and milli-GPUs.
        began_at: when it was placed.
    """

    job: str
    element: int
    began_at: float
    has: list[int]


def is_remedied(structure: desired.Structure) -> bool:
    """Return True if policy evicts work from a queue above its limit."""
    if rate_limits.idle_reason(structure, ""):
        return False
    return rate_limits.action_of(structure, DRIFT, "") == "remediate"


def excess(
    structure: desired.Structure,
    queue: desired.Queue,
    running: Iterable[tuple[records.AttemptRecord, desired.Job]],
) -> tuple[list[int], list[Element]]:
    """Return by how much a queue is above its limit, and the elements that may leave.

    Work that was ordered to stop does not count. Amounts are as in ``Element``, and 0 or less if
    within the limit. ``running`` are attempts that have not ended, each with its job.
    """
    below = _below(structure.queues, queue.name)
    total = [0, 0, 0]
    found: dict[tuple[str, int], Element] = {}
    for attempt, spec in running:
        if spec.queue not in below or attempt.stop is not None:
            continue
        vector = attempt.resources.as_vector()
        total = [sum(pair) for pair in zip(total, vector, strict=True)]
        if not spec.preemptible:
            continue
        key = (attempt.job, attempt.element)
        one = found.setdefault(key, Element(*key, attempt.assigned_at, [0, 0, 0]))
        one.has = [sum(pair) for pair in zip(one.has, vector, strict=True)]
    caps = queue.limit.as_vector()
    over = [0 if cap is None else amount - cap for amount, cap in zip(total, caps, strict=True)]
    return over, list(found.values())


def choose(over: list[int], elements: Iterable[Element], most: int | None = None) -> list[Element]:
    """Return the elements that leave until the limit is kept, at most ``most``."""
    chosen: list[Element] = []
    for element in sorted(elements, key=lambda one: (-one.began_at, one.job, one.element)):
        if len(chosen) == most or all(amount <= 0 for amount in over):
            break
        if any(have > 0 and amount > 0 for have, amount in zip(element.has, over, strict=True)):
            chosen.append(element)
            over = [amount - have for amount, have in zip(over, element.has, strict=True)]
    return chosen


def leaving(
    structure: desired.Structure, running: list[tuple[records.AttemptRecord, desired.Job]]
) -> set[tuple[str, int]]:
    """Return (job, element) of everything that would be evicted in the end."""
    if not is_remedied(structure):
        return set()
    found: set[tuple[str, int]] = set()
    for queue in structure.queues.values():
        if any(cap is not None for cap in queue.limit.as_vector()):
            left = [one for one in running if (one[0].job, one[0].element) not in found]
            found |= {(one.job, one.element) for one in choose(*excess(structure, queue, left))}
    return found


def _below(queues: dict[str, desired.Queue], name: str) -> set[str]:
    """Return a queue and those below it. Parents come before their children."""
    found = {name}
    for queue in queues.values():
        if queue.parent in found:
            found.add(queue.name)
    return found
