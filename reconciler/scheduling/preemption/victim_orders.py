"""Other orders in which to take victims, where the cheapest used up all that may be taken.

Who is owed a guarantee may take from a queue only as long as that has more than its own. Taken one
by one, the cheapest units may use that up where they make no room together: a share of one device
here, a spare task there. Then others begin in turn, each with what shares a device with it next,
then a node. Where that finds nobody either, those that hold certain whole devices go, the least
first: all but the last of them have to leave their queue more than it is guaranteed. Units go in,
the same units in other orders come out.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.arrays import WHOLE
from reconciler.scheduling.preemption import victims

#: Units that are looked at for another order.
UNITS_MAX = 64
#: So many of them begin in turn.
STARTS_MAX = 8
#: Sets of devices of one node that are compared, places for one task that are gone on with, sets
#: of places for all tasks that are compared, and of these that are tried.
SETS_MAX = 256
PLACES_MAX = 24
GANGS_MAX = 1024
TRIES_MAX = 12


def orders(
    units: Sequence[victims.Victim], taken: Collection[tuple[int, int]]
) -> Iterator[list[victims.Victim]]:
    """Units in orders that begin with another one each: with one left out first, then with others.

    None where nobody was left out, because then no order finds anybody.

    Args:
        units: in the order in which they were taken.
        taken: keys of those that were taken in vain.
    """
    left_out = [unit for unit in units if unit.key not in taken]
    if not left_out:
        return
    again = [unit for unit in units if unit.key in taken]
    for first in (left_out + again)[:STARTS_MAX]:
        others = [unit for unit in units if unit is not first]
        yield [first, *sorted(others, key=_distance(first))]


def _distance(of: victims.Victim) -> Callable[[victims.Victim], int]:
    """0 for units that share a device with one, 1 for those of its nodes, else 2."""
    nodes = {task.node for task in of.tasks}
    devices = {(task.node, device) for task in of.tasks for device in task.devices}

    def distance(unit: victims.Victim) -> int:
        if any((task.node, device) in devices for task in unit.tasks for device in task.devices):
            return 0
        return 1 if any(task.node in nodes for task in unit.tasks) else 2

    return distance


class _Place(NamedTuple):
    """Devices of one node for one task, and by number the units that have to leave them."""

    devices: frozenset[tuple[int, int]]
    units: frozenset[int]


def by_devices(
    units: Sequence[victims.Victim],
    idle: snapshots.Amounts,
    usable: snapshots.Mask,
    wanted: tuple[int, int],
) -> Iterator[list[victims.Victim]]:
    """The units that hold as many whole devices as are wanted, those first that hold least in all.

    Args:
        units: that may be told to leave.
        idle: (n, d) milli-GPUs of each device that come free without them, -1: no such device.
        usable: (n,) nodes on which devices are wanted.
        wanted: devices of one task, all of one node, and how many such tasks.
    """
    each, tasks = wanted
    gpus = [sum(task.amounts[2] for task in unit.tasks) for unit in units]

    def cost(place: _Place) -> tuple[int, int]:
        return (sum(gpus[number] for number in place.units), len(place.units))

    places: list[_Place] = []
    for node, there in _held(units, usable).items():
        free = _could_be_free(there, units, idle, node)
        sets = itertools.islice(itertools.combinations(sorted(free), each), SETS_MAX)
        places += [
            _Place(
                frozenset((node, device) for device in chosen),
                frozenset().union(*[free[device] for device in chosen]),
            )
            for chosen in sets
        ]
    places = sorted(places, key=cost)[:PLACES_MAX]
    gangs = [
        _Place(frozenset().union(*[one.devices for one in some]), held)
        for some in itertools.islice(itertools.combinations(places, tasks), GANGS_MAX)
        if (held := frozenset().union(*[one.units for one in some]))
        and sum(len(one.devices) for one in some)
        == len(frozenset().union(*[one.devices for one in some]))
    ]
    found = dict.fromkeys(one.units for one in sorted(gangs, key=cost))
    for held in itertools.islice(found, TRIES_MAX):
        yield [units[number] for number in sorted(held, key=lambda number: (gpus[number], number))]


def _held(
    units: Sequence[victims.Victim], usable: snapshots.Mask
) -> dict[int, dict[int, set[int]]]:
    """By node and device the numbers of units that hold some of it."""
    found: dict[int, dict[int, set[int]]] = {}
    for number, unit in enumerate(units):
        for task in unit.tasks:
            if usable[task.node]:
                for device in task.devices:
                    found.setdefault(task.node, {}).setdefault(device, set()).add(number)
    return found


def _could_be_free(
    there: dict[int, set[int]], units: Sequence[victims.Victim], idle: snapshots.Amounts, node: int
) -> dict[int, frozenset[int]]:
    """Devices of a node that are whole once units have left them, with the numbers of these."""
    found: dict[int, frozenset[int]] = {}
    for device in np.flatnonzero(idle[node] >= 0).tolist():
        numbers = there.get(device, set())
        back = sum(
            task.share
            for number in numbers
            for task in units[number].tasks
            if task.node == node and device in task.devices
        )
        if int(idle[node, device]) + back >= WHOLE:
            found[device] = frozenset(numbers)
    return found
