"""The nodes of a pool in service, for everything that compares GPUs of two states."""

import itertools
from collections.abc import Iterable, Mapping

from reconciler.model import desired
from reconciler.model.state import instance_records, records
from reconciler.model.state.states import NodeState

_SILENT = (NodeState.UNKNOWN, NodeState.GONE)


def managed(pool: desired.Pool, observed: records.Observed) -> dict[str, int]:
    """Return the nodes of a pool that there are, drained ones too, with the GPUs that each
    declares.
    """
    if pool.observe_only:
        return {}
    each = pool.node_resources.gpu_milli // 1000
    return dict.fromkeys(_machines(pool, observed), each)


def not_drained(pool: desired.Pool, nodes: Mapping[str, int]) -> dict[str, int]:
    """Return those nodes of a pool that may get work."""
    return {node: gpus for node, gpus in nodes.items() if node not in pool.drains}


def _machines(pool: desired.Pool, observed: records.Observed) -> Iterable[str]:
    """Return the names of nodes that have a machine, or have to have one."""
    if pool.provisioning is None:
        return pool.nodes
    provision = observed.provisions.get(pool.name)
    if provision is None:  # it becomes a provisioned pool: nodes that report are adopted
        taken = {
            name
            for name in pool.nodes
            if (node := observed.nodes.get(name)) is not None and node.state not in _SILENT
        }
        there = taken
    else:
        taken = set(provision.instances)
        there = {
            n for n, one in provision.instances.items() if one.state in instance_records.STAYING
        }
    found = [name for name in pool.nodes if name in there]
    free = (name for name in pool.nodes if name not in taken)
    lacking = max(0, pool.provisioning.minimum - len(found))
    return [*found, *itertools.islice(free, lacking)]
