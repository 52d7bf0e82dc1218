"""The devices of a node that are near each other: at one NUMA node, or joined by NVLink.

A pool's declaration counts; without one, the agent's report does. The numbers of domains mean
nothing outside of their node.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reconciler.model import desired
from reconciler.model.state import records

#: Locality that is not known.
UNKNOWN = -1
_Domains = tuple[tuple[int, ...], ...]


def declared(pool: desired.Pool, width: int) -> tuple[NDArray[np.int8] | None, ...]:
    """Return declared (width,) domains for each of ``devices.INNER_LEVELS``, or None."""
    found: list[NDArray[np.int8] | None] = []
    for domains in (pool.numa, pool.nvlink):
        row = np.full(width, UNKNOWN, dtype=np.int8)
        for number, members in enumerate(domains):
            row[[index for index in members if index < width]] = number
        found.append(row if domains else None)
    return tuple(found)


def reported(gpus: Sequence[records.Gpu], width: int) -> tuple[NDArray[np.int8], ...]:
    """Return the same as an agent reports it."""
    found = []
    for domains in (numa(gpus), nvlink(gpus)):
        row = np.full(width, UNKNOWN, dtype=np.int8)
        for number, members in enumerate(domains):
            row[[index for index in members if index < width]] = number
        found.append(row)
    return tuple(found)


def numa(gpus: Sequence[records.Gpu]) -> _Domains:
    """Return devices by NUMA node, as far as the agent knows."""
    there: dict[int, list[int]] = {}
    for gpu in gpus:
        if gpu.numa_node is not None and gpu.numa_node >= 0:
            there.setdefault(gpu.numa_node, []).append(gpu.index)
    return tuple(tuple(sorted(there[node])) for node in sorted(there))


def nvlink(gpus: Sequence[records.Gpu]) -> _Domains:
    """Return groups of devices that NVLinks join, directly or by a switch.

    Single ones are in none.
    """
    names = {gpu.pci_address: number for number, gpu in enumerate(gpus) if gpu.pci_address}
    parent = list(range(len(gpus)))

    def root(of: int) -> int:
        while parent[of] != of:
            parent[of] = of = parent[parent[of]]
        return of

    switched: int | None = None
    for number, gpu in enumerate(gpus):
        for link in gpu.nvlinks:
            other = names.get(link.pci_address)
            if link.kind == "switch":  # all switches of a node form one fabric
                other = switched = number if switched is None else switched
            if other is not None:
                parent[root(number)] = root(other)
    there: dict[int, list[int]] = {}
    for number, gpu in enumerate(gpus):
        there.setdefault(root(number), []).append(gpu.index)
    joined = [tuple(sorted(members)) for members in there.values() if len(members) > 1]
    return tuple(sorted(joined))
