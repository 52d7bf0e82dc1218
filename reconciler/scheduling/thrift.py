"""Other orders in which to take victims, where the cheapest used up all that may be taken.

Who is owed a guarantee may take from a queue only as long as that has more than its own. Taken one
by one, the cheapest units may use that up where they make no room together: a share of one device
here, a spare task there. Then others begin in turn, each with what shares a device with it next,
then a node. Units go in, the same units in other orders come out.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from reconciler.scheduling import victims as pools

#: Units that are looked at for another order.
UNITS_MAX = 64
#: So many of them begin in turn.
STARTS_MAX = 8


def orders(
    units: Sequence[pools.Unit], taken: Collection[tuple[int, int]]
) -> Iterator[list[pools.Unit]]:
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


def _distance(of: pools.Unit) -> Callable[[pools.Unit], int]:
    """0 for units that share a device with one, 1 for those of its nodes, else 2."""
    nodes = {task.node for task in of.tasks}
    devices = {(task.node, device) for task in of.tasks for device in task.devices}

    def distance(unit: pools.Unit) -> int:
        if any((task.node, device) in devices for task in unit.tasks for device in task.devices):
            return 0
        return 1 if any(task.node in nodes for task in unit.tasks) else 2

    return distance
