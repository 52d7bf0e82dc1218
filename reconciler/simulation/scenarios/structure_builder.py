"""The pools and queues of a scenario, as the controller would have them from git.

Nodes and queues of a document come in, a structure goes out. Only names and amounts are checked.
"""

from typing import Any

import msgspec

from reconciler.model import desired
from reconciler.model.values.resources import Resources
from reconciler.simulation.scenarios import policy_settings, schema

#: What a node has that does not say how much; and a guarantee without a bound.
PLENTY, UNBOUNDED = 2**50, 2**62
#: What the format has of these where a document does not name them.
_WITHOUT_WAITS = {"minRuntime": 0, "staleGangGrace": 0}


def build_structure(scenario: schema.Scenario, missing: dict[str, None]) -> desired.Structure:
    """Return pools, queues and settings of a document; unknown names go to ``missing``.

    Raises:
        schema.ScenarioError: an amount is invalid, a name is unknown, or queues form a loop.
    """
    pools: dict[str, desired.Pool] = {}
    for name, node in scenario.nodes.items():
        where = f"nodes.{name}"
        own = node.pool or name
        pool = desired.Pool(
            name=own,
            nodes=(name,),
            node_resources=Resources(
                PLENTY if node.cpu is None else schema.amount("cpu", node.cpu, where),
                PLENTY if node.memory is None else schema.amount("memory", node.memory, where),
                schema.amount("gpu", node.gpu, where),
            ),
            labels={key: str(value) for key, value in node.labels.items()},
            runs_unmapped=True,
            grace_s=0,
        )
        known = pools.get(own)
        if known is not None:
            if msgspec.structs.replace(known, nodes=pool.nodes) != pool:
                raise schema.ScenarioError(f"nodes of pool {own} have to be alike", where)
            pool = msgspec.structs.replace(known, nodes=(*known.nodes, name))
        pools[own] = pool
    queues = {
        queue.name: _queue(queue, f"queues[{number}]")
        for number, queue in enumerate(scenario.queues)
    }
    for number, queue in enumerate(scenario.queues):
        if queue.parent is not None and queue.parent not in queues:
            where = f"queues[{number}].parent"
            raise schema.ScenarioError(f"there is no Queue/{queue.parent}", where)
    return desired.Structure(
        settings=_policy(scenario, missing),
        pools=pools,
        queues=_parents_first(queues),
    )


def _policy(scenario: schema.Scenario, missing: dict[str, None]) -> desired.ClusterSettings:
    """Return the policy of a document, with the format's defaults."""
    try:
        return policy_settings.settings_of(_WITHOUT_WAITS | scenario.policy, missing)
    except schema.ScenarioError as error:
        raise schema.ScenarioError(error.message, f"policy.{error.where}") from error


def _parents_first(queues: dict[str, desired.Queue]) -> dict[str, desired.Queue]:
    found: dict[str, desired.Queue] = {}
    for _ in range(len(queues) + 1):
        for name, queue in queues.items():
            if name not in found and (queue.parent is None or queue.parent in found):
                found[name] = queue
        if len(found) == len(queues):
            return found
    loop = next(name for name in queues if name not in found)
    raise schema.ScenarioError(f"queue {loop} is its own ancestor", "queues")


def _amounts(written: schema.ScenarioAmounts, where: str) -> desired.QuotaAmounts:
    return desired.QuotaAmounts(
        cpu_milli=None if written.cpu is None else schema.amount("cpu", written.cpu, where),
        memory_bytes=None
        if written.memory is None
        else schema.amount("memory", written.memory, where),
        gpu_milli=None if written.gpu is None else schema.amount("gpu", written.gpu, where),
    )


def _queue(queue: schema.ScenarioQueue, where: str) -> desired.Queue:
    unbounded = desired.QuotaAmounts(UNBOUNDED, UNBOUNDED, UNBOUNDED)
    values: dict[str, Any] = {
        "name": queue.name,
        "parent": queue.parent,
        "guaranteed": unbounded
        if queue.guaranteed is None
        else _amounts(queue.guaranteed, f"{where}.guaranteed"),
        "limit": desired.QuotaAmounts()
        if queue.limit is None
        else _amounts(queue.limit, f"{where}.limit"),
    }
    optional = {
        "weight": queue.weight,
        "priority": queue.priority,
        "lending_limit": None
        if queue.lending_limit is None
        else _amounts(queue.lending_limit, f"{where}.lendingLimit"),
    }
    values.update({field: value for field, value in optional.items() if value is not None})
    values["flavors"] = tuple(
        _flavor(flavor, f"{where}.flavors[{number}]") for number, flavor in enumerate(queue.flavors)
    )
    return desired.Queue(**values)


def _flavor(flavor: schema.ScenarioFlavor, where: str) -> desired.QueueFlavor:
    guaranteed, limit, lent = (
        desired.QuotaAmounts() if one is None else _amounts(one, where)
        for one in (flavor.guaranteed, flavor.limit, flavor.lending_limit)
    )
    return desired.QueueFlavor(flavor.pool, guaranteed, limit, lent, flavor.weight)
