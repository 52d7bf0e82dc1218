"""Checks amounts by pool: against the pools, and over the tree of queues.

Normalised queues, quotas and pools come in; faults by kind and name go out.
"""

from collections.abc import Iterator, Mapping

from reconciler.desired.checks import cross_references
from reconciler.desired.documents.faults import Fault, unknown_name
from reconciler.model import desired
from reconciler.model.values import found_values, quantities, resources

_FORMATS = (quantities.format_cpu, quantities.format_memory, quantities.format_gpu)


def check(
    queues: Mapping[str, desired.Queue],
    quotas: Mapping[str, desired.Quota],
    pools: Mapping[str, desired.Pool],
) -> Iterator[tuple[str, str, Fault]]:
    """Return unknown pools, pools named twice, and guarantees and limits that do not add up."""
    for quota in quotas.values():
        if quota.pool and quota.pool not in pools:
            place = ("spec", "subject", "pool")
            yield "Quota", quota.name, unknown_name("pool", quota.pool, place, pools)
    for queue in queues.values():
        for fault in _names(queue, pools):
            yield "Queue", queue.name, fault
        for fault in _in_all(queue):
            yield "Queue", queue.name, fault
    if any(q.parent is not None and q.parent not in queues for q in queues.values()):
        return  # the tree is refused already
    named = sorted({flavor.pool for queue in queues.values() for flavor in queue.flavors})
    for pool in named:
        for name, fault in _tree(queues, pool, pools.get(pool)):
            yield "Queue", name, fault


def _names(queue: desired.Queue, pools: Mapping[str, desired.Pool]) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, flavor in enumerate(queue.flavors):
        place = ("spec", "flavors", index, "pool")
        if flavor.pool not in pools:
            yield unknown_name("pool", flavor.pool, place, pools)
        if flavor.pool in seen:
            yield Fault(
                "duplicate-pool",
                "the queue has amounts of this pool already: put both into one entry",
                place,
                found=found_values.quote(flavor.pool),
            )
        seen.add(flavor.pool)


def _in_all(queue: desired.Queue) -> Iterator[Fault]:
    """Check that guarantees by pool fit in the guarantee in the cluster, if there is one."""
    in_all, most = queue.guaranteed.as_vector(), queue.limit.as_vector()
    rows = [flavor.guaranteed.as_vector() for flavor in queue.flavors]
    for position, resource in enumerate(resources.RESOURCE_NAMES):
        by_pool = sum(row[position] or 0 for row in rows)
        for field, bound in (("guaranteed", in_all[position]), ("limit", most[position])):
            if bound is not None and by_pool > bound:
                text = _FORMATS[position]
                yield Fault(
                    "pools-exceed-cluster",
                    f"the queue is guaranteed more {resource} by pool than its {field} of the "
                    f"cluster: raise it{', or leave it out' if field == 'guaranteed' else ''}",
                    ("spec", field, resource),
                    found=f"{text(bound)} here, {text(by_pool)} by pool",
                )


def _tree(
    queues: Mapping[str, desired.Queue], pool: str, there: desired.Pool | None
) -> Iterator[tuple[str, Fault]]:
    """Check guarantees against the parent's and the pool, and limits against guarantees."""
    whole = _of(there)
    owed = {name: [0, 0, 0] for name in queues}
    roots = [0, 0, 0]
    over: set[int] = set()
    for queue in reversed(cross_references.parents_first(queues).values()):
        index, flavor = next(
            ((i, one) for i, one in enumerate(queue.flavors) if one.pool == pool),
            (-1, desired.QueueFlavor(pool)),
        )
        guaranteed, limit = flavor.guaranteed.as_vector(), flavor.limit.as_vector()
        for position, resource in enumerate(resources.RESOURCE_NAMES):
            below, own, cap = owed[queue.name][position], guaranteed[position], limit[position]
            text = _FORMATS[position]
            place = ("spec", "flavors", index)
            if own is not None and below > own:
                yield (
                    queue.name,
                    Fault(
                        "guarantees-exceed-parent",
                        f"the queues below it are guaranteed more {resource} in pool {pool} than "
                        "it is: raise it or lower theirs",
                        (*place, "guaranteed", resource),
                        found=f"{text(own)} here, {text(below)} below",
                    ),
                )
            due = below if own is None else own
            if cap is not None and cap < due:
                yield (
                    queue.name,
                    Fault(
                        "limit-below-guaranteed",
                        f"the limit of {resource} in pool {pool} is lower than what is guaranteed",
                        (*place, "limit", resource),
                        found=text(cap),
                        expected=f"at least {text(due)}",
                    ),
                )
            above = roots if queue.parent is None else owed.get(queue.parent, roots)
            above[position] += due
            full = above is roots and whole is not None and roots[position] > whole[position]
            if full and whole is not None and due and position not in over:
                over.add(position)
                at = (*place, "guaranteed", resource) if index >= 0 else ("spec",)
                yield (
                    queue.name,
                    Fault(
                        "guarantees-exceed-pool",
                        f"queues are guaranteed more {resource} in pool {pool} than all its "
                        "nodes have: lower what they are guaranteed, or add nodes",
                        at,
                        found=f"at least {text(roots[position])} guaranteed",
                        expected=f"at most {text(whole[position])}",
                    ),
                )


def _of(pool: desired.Pool | None) -> tuple[int, int, int] | None:
    """Return the capacity of a pool with as many nodes as it may have."""
    if pool is None:
        return None
    nodes = len(pool.nodes)
    cpu, memory, gpu = pool.promised().as_vector()
    return (cpu * nodes, memory * nodes, gpu * nodes)
