"""Which devices of a node a task gets.

The free devices of a node are a tuple of milli-GPUs (-1: no such device); what a task asks of
them is a number of devices and a share of each. Answers are pure functions of these and are
remembered, because a cluster has few distinct tuples and asks for them a hundred thousand times.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs.snapshots import WHOLE

Free = tuple[int, ...]
#: Of each device the domain within its node at one level, -1 where nobody knows.
Layout = tuple[int, ...]
#: Distinct answers remembered, of each function.
REMEMBERED_MAX = 200_000


def count_within(free: Free, devices: int, layout: Layout) -> int:
    """How many tasks of so many whole devices fit, the devices of each in one domain."""
    idle: dict[int, int] = {}
    for amount, domain in zip(free, layout, strict=True):
        if amount == WHOLE and domain >= 0:
            idle[domain] = idle.get(domain, 0) + 1
    return sum(count // devices for count in idle.values())


def counts_within(
    free: NDArray[np.int64], devices: int, layouts: NDArray[np.int8]
) -> NDArray[np.int64]:
    """(n,) the same for the devices of many nodes at once, (n, d) free and domains."""
    found = np.zeros(len(free), dtype=np.int64)
    idle = free == WHOLE
    for domain in range(int(layouts.max(initial=-1)) + 1):
        found += (idle & (layouts == domain)).sum(axis=1) // devices
    return found


def most_within(free: NDArray[np.int64], layouts: NDArray[np.int8]) -> NDArray[np.int64]:
    """(n,) the most idle devices of one domain that each node has."""
    found = np.zeros(len(free), dtype=np.int64)
    idle = free == WHOLE
    for domain in range(int(layouts.max(initial=-1)) + 1):
        np.maximum(found, (idle & (layouts == domain)).sum(axis=1), out=found)
    return found


@lru_cache(maxsize=REMEMBERED_MAX)
def give_within(free: Free, devices: int, layout: Layout) -> tuple[Free, Free] | None:
    """As ``give``, whole devices of one domain: of that with fewest idle ones; None: none has.

    In the domain they are chosen as of a node that has nothing else.
    """
    members: dict[int, list[int]] = {}
    for index, (amount, domain) in enumerate(zip(free, layout, strict=True)):
        if amount == WHOLE and domain >= 0:
            members.setdefault(domain, []).append(index)
    enough = [(len(there), domain) for domain, there in members.items() if len(there) >= devices]
    if not enough:
        return None
    _, best = min(enough)
    inside = tuple(
        amount if domain == best else -1 for amount, domain in zip(free, layout, strict=True)
    )
    chosen = _whole(inside, devices)
    left = list(free)
    for index in chosen:
        left[index] = 0
    return chosen, tuple(left)


class Option(NamedTuple):
    """One way to take devices of a node, told by how much is free on them, not by which.

    Attributes:
        values: what is free on each device before it is taken from, ascending.
        after: the free amounts of the node's devices afterwards, ascending.
    """

    values: Free
    after: Free


def count_fits(free: Free, devices: int, share: int) -> int:
    """How many tasks of ``devices`` x ``share`` fit together on the devices of one node."""
    if share >= WHOLE:
        return free.count(WHOLE) // devices
    holds = [amount // share for amount in free if amount >= share]
    if devices == 1:
        return sum(holds)
    # t tasks fit when each device takes part in at most t of them and all get enough devices.
    low, high = 0, sum(holds) // devices
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(hold, middle) for hold in holds) >= middle * devices:
            low = middle
        else:
            high = middle - 1
    return low


@lru_cache(maxsize=REMEMBERED_MAX)
def options(ascending: Free, devices: int, share: int) -> tuple[Option, ...]:
    """The distinct ways to place one task, the tightest devices first; none: no room."""
    if share >= WHOLE:
        if ascending.count(WHOLE) < devices:
            return ()
        kept = len(ascending) - devices
        after = tuple(sorted((*ascending[:kept], *(0,) * devices)))
        return (Option((WHOLE,) * devices, after),)
    found: dict[Free, Option] = {}
    for start in range(len(ascending) - devices + 1):
        values = ascending[start : start + devices]
        if values[0] < share or values in found:
            continue
        rest = (*ascending[:start], *ascending[start + devices :])
        found[values] = Option(values, tuple(sorted((*rest, *(v - share for v in values)))))
    return tuple(found.values())


@lru_cache(maxsize=REMEMBERED_MAX)
def give(free: Free, devices: int, share: int, values: Free) -> tuple[Free, Free]:
    """(indexes of the devices given, what is free afterwards).

    ``values`` says what has to be free on the devices, as in ``Option``; empty: for one device
    the tightest, for several those with most room, which is what lets most tasks follow.

    Raises:
        ValueError: the node has no such devices.
    """
    if share >= WHOLE:
        chosen = _whole(free, devices)
    elif values:
        chosen = _with_values(free, values)
    elif devices == 1:
        fitting = [(amount, index) for index, amount in enumerate(free) if amount >= share]
        chosen = (min(fitting)[1],) if fitting else ()
    else:
        roomy = sorted((-(amount // share), amount, i) for i, amount in enumerate(free))
        chosen = tuple(sorted(i for fits, _, i in roomy[:devices] if fits < 0 <= free[i]))
    if len(chosen) < devices:
        raise ValueError(
            f"{devices} devices with {share} milli-GPUs each are asked of a node that has "
            f"{list(free)}: the plan is not of this room"
        )
    left = list(free)
    for index in chosen:
        left[index] -= share
    return chosen, tuple(left)


def _with_values(free: Free, values: Free) -> Free:
    wanted = list(values)
    chosen = []
    for index, amount in enumerate(free):
        if amount in wanted:
            wanted.remove(amount)
            chosen.append(index)
    return () if wanted else tuple(chosen)


def _whole(free: Free, devices: int) -> Free:
    """Idle devices that keep blocks of two, four, eight together, as buddies in memory do.

    Devices that are near each other in a node have neighbouring indexes; a block that is partly
    taken is used up before one that is whole.
    """
    idle = [index for index, amount in enumerate(free) if amount == WHOLE]
    if len(idle) <= devices:
        return tuple(idle) if len(idle) == devices else ()
    size = 1
    while size < devices:
        size *= 2
    blocks: dict[int, list[int]] = {}
    for index in idle:
        blocks.setdefault(index // size, []).append(index)
    enough = [block for block, members in blocks.items() if len(members) >= devices]
    if enough:
        best = min(enough, key=lambda block: (*_around(idle, block, size, len(free)), block))
        return tuple(blocks[best][:devices])
    # Neighbours as far as they go: the run of idle devices that spans the least.
    runs = range(len(idle) - devices + 1)
    start = min(runs, key=lambda at: (idle[at + devices - 1] - idle[at], at))
    return tuple(idle[start : start + devices])


def _around(idle: list[int], block: int, size: int, count: int) -> tuple[int, ...]:
    """Idle devices in the block itself, in that twice as large, and so on: fewer is better."""
    found = []
    while size < 2 * count:
        found.append(sum(1 for index in idle if index // size == block))
        block, size = block // 2, size * 2
    return tuple(found)
