"""Checks that need several objects at once, as pure functions over normalised objects.

They find unknown names, trees with cycles, guarantees that do not add up, and jobs that no pool
could ever hold. They return faults; the caller decides what a fault refuses.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec

from reconciler.desired.checks import job_names
from reconciler.desired.documents.faults import Fault, unknown_name
from reconciler.desired.normalise import volumes
from reconciler.model import desired
from reconciler.model.observed.devices import INNER_LEVELS
from reconciler.model.policy import access
from reconciler.model.values import found_values, hostlists, quantities, resources

_FORMATS: tuple[Callable[[int], str], ...] = (
    quantities.format_cpu,
    quantities.format_memory,
    quantities.format_gpu,
)


def duplicate(path: str, line: int, note: str = "") -> Fault:
    """Return the fault that another object of this kind and name is at ``path``."""
    place = f"{path}:{line}" if line else path
    return Fault(
        "duplicate-name",
        f"this name is taken by the object in {place}{note}: rename or remove this one",
        path=("metadata", "name"),
        expected="a name that no other object of this kind has",
    )


# --- queues ---------------------------------------------------------------------------------


def queue_tree(queues: Mapping[str, desired.Queue]) -> Iterator[tuple[str, Fault]]:
    """Return unknown parents, cycles, and guarantees and limits that do not add up, by queue."""
    cyclic = False
    for queue in queues.values():
        if queue.parent is None:
            continue
        if queue.parent not in queues and queue.parent != "default":
            cyclic = True
            yield (
                queue.name,
                Fault(
                    "unknown-parent",
                    "unknown queue: add it or name another parent",
                    ("spec", "parent"),
                    found=found_values.quote(queue.parent),
                ),
            )
        elif (cycle := _ancestors_cycle(queues, queue.name)) is not None:
            cyclic = True
            yield (
                queue.name,
                Fault(
                    "parent-cycle",
                    f"the queue is its own ancestor: {' → '.join(cycle)}",
                    ("spec", "parent"),
                    found=found_values.quote(queue.parent),
                ),
            )
    if not cyclic:
        yield from _amounts(queues)


def _ancestors_cycle(queues: Mapping[str, desired.Queue], name: str) -> list[str] | None:
    chain = [name]
    current = queues[name].parent
    while current is not None and current in queues and len(chain) <= len(queues):
        chain.append(current)
        if current == name:
            return chain
        current = queues[current].parent
    return None


def parents_first(queues: Mapping[str, desired.Queue]) -> dict[str, desired.Queue]:
    """Return the queues of an acyclic tree, parents before children, otherwise by name."""

    def depth(name: str) -> int:
        parent, steps = queues[name].parent, 0
        while parent is not None:
            parent, steps = queues[parent].parent if parent in queues else None, steps + 1
        return steps

    ordered = sorted(queues, key=lambda name: (depth(name), name))
    return {name: queues[name] for name in ordered}


def _amounts(queues: Mapping[str, desired.Queue]) -> Iterator[tuple[str, Fault]]:
    """Check children's guarantees against the parent's, and limits against guarantees."""
    sums = {name: [0, 0, 0] for name in queues}
    for queue in reversed(parents_first(queues).values()):
        own, limit = queue.guaranteed.as_vector(), queue.limit.as_vector()
        by_pool = queue.guaranteed_by_pool()
        for index, resource in enumerate(resources.RESOURCE_NAMES):
            amount, below, cap = own[index], sums[queue.name][index], limit[index]
            text = _FORMATS[index]
            if amount is not None and below > amount:
                yield (
                    queue.name,
                    Fault(
                        "guarantees-exceed-parent",
                        f"the queues below it are guaranteed more {resource} than it is: "
                        "raise it or lower theirs",
                        ("spec", "guaranteed", resource),
                        found=f"{text(amount)} here, {text(below)} below",
                    ),
                )
            total = max(below, by_pool[index]) if amount is None else amount
            if cap is not None and cap < total:
                yield (
                    queue.name,
                    Fault(
                        "limit-below-guaranteed",
                        f"the limit of {resource} is lower than what is guaranteed",
                        ("spec", "limit", resource),
                        found=text(cap),
                        expected=f"at least {text(total)}",
                    ),
                )
            if queue.parent in sums:
                sums[queue.parent][index] += total


# --- pools ----------------------------------------------------------------------------------


def shared_hosts(pools: Mapping[str, desired.Pool], nodes_max: int) -> Iterator[tuple[str, Fault]]:
    """Return hosts in two pools, and nodes beyond Muster's maximum, by pool name."""
    owner: dict[str, str] = {}
    for pool in pools.values():
        field = "hosts" if pool.provisioner == "static" else "count"
        shared: dict[str, list[str]] = {}
        for node in pool.nodes:
            first = owner.setdefault(node, pool.name)
            if first != pool.name:
                shared.setdefault(first, []).append(node)
        for other, nodes in shared.items():
            yield (
                pool.name,
                Fault(
                    "host-in-two-pools",
                    f"these nodes are in NodePool/{other} too: remove them from one of the two",
                    ("spec", field),
                    found=found_values.quote(hostlists.fold(nodes)),
                ),
            )
        if len(owner) > nodes_max:
            yield (
                pool.name,
                Fault("too-many-nodes", f"more than {nodes_max} nodes in all", ("spec", field)),
            )
            return


def topologies(pools: Mapping[str, desired.Pool]) -> Iterator[tuple[str, Fault]]:
    """Return pools that order the same levels differently from pools before them, by pool name."""
    order: list[str] = []
    for pool in pools.values():
        merged = desired.merge_levels(order, pool.levels)
        if merged is None:
            yield (
                pool.name,
                Fault(
                    "topology-levels",
                    "other pools have these levels in another order: use one order everywhere",
                    ("spec", "topology", "levels"),
                    found=found_values.quote_all(pool.levels),
                    expected=f"an order that goes with {', '.join(order)}",
                ),
            )
        else:
            order = merged


def names(
    pools: Mapping[str, desired.Pool],
    queues: Mapping[str, desired.Queue],
    volumes: Mapping[str, desired.Volume],
    quotas: Mapping[str, desired.Quota],
    people: access.Access,
) -> Iterator[tuple[str, str, Fault]]:
    """Return unknown pools, queues and groups in volumes and quotas, by kind and name."""
    groups = {group for one in people.identities.values() for group in one.groups}
    for volume in volumes.values():
        for index, pool in enumerate(volume.pools):
            if pool not in pools:
                yield (
                    "Volume",
                    volume.name,
                    unknown_name("pool", pool, ("spec", "pools", index), pools),
                )
    for quota in quotas.values():
        if quota.queue and quota.queue not in queues and quota.queue != "default":
            place = ("spec", "subject", "queue")
            yield "Quota", quota.name, unknown_name("queue", quota.queue, place, queues)
        if quota.group and quota.group not in groups:
            yield (
                "Quota",
                quota.name,
                unknown_name("group", quota.group, ("spec", "subject", "group"), groups),
            )


# --- jobs -----------------------------------------------------------------------------------


def of_job(job: desired.Job, structure: desired.Structure) -> list[Fault]:
    """Check volumes and levels of a job whose names are all known, and the maxima of its queue."""
    storage = volumes.of_job(job, structure.volumes) if job.storage else None
    if storage is not None:
        return [storage]
    bounds = _unknown_level(job, structure) or _beyond_queue(job, structure.queues[job.queue])
    return [] if bounds is None else [bounds]


def _unknown_level(job: desired.Job, structure: desired.Structure) -> Fault | None:
    wanted = [(level, place) for level, place in _levels_of(job) if level]
    if not wanted:
        return None
    known = {level for pool in structure.pools.values() for level in pool.levels}
    for level, place in wanted:
        if level not in known:
            fault = unknown_name("level", level, place, known)
            if level in INNER_LEVELS:
                message = f"{fault.message}; GPUs of one task that are near: topology.gpus"
                fault = msgspec.structs.replace(fault, message=message)
            return fault
    return None


def _levels_of(job: desired.Job) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    place: tuple[str | int, ...] = ("spec", "topology")
    yield job.topology.required, (*place, "required")
    yield job.topology.preferred, (*place, "preferred")
    for index, group in enumerate(job.groups):
        if group.topology is not desired.ANYWHERE:
            single = group.name == "main" and len(job.groups) == 1
            place = ("spec", "topology") if single else ("spec", "groups", index, "topology")
            yield group.topology.required, (*place, "required")
            yield group.topology.preferred, (*place, "preferred")
            yield group.topology.slice_level, (*place, "slices", "level")
    for affinity in job.affinities:
        yield affinity.level, ("spec", "affinity")


def _beyond_queue(job: desired.Job, queue: desired.Queue) -> Fault | None:
    """Check that a job asks for no more than its queue's maxima."""
    most_s = queue.time_limit_max_s
    if most_s is not None and (job.time_limit_s is None or job.time_limit_s > most_s):
        has = "none" if job.time_limit_s is None else quantities.format_duration(job.time_limit_s)
        return Fault(
            "beyond-queue",
            f"jobs of queue {queue.name} have a time limit, and no longer one than this",
            ("spec", "timeLimit"),
            found=has,
            expected=f"at most {quantities.format_duration(most_s)}",
        )
    if queue.gpu_milli_max is not None:
        gpu = sum(group.resources.gpu_milli * group.count for group in job.groups)
        if gpu > queue.gpu_milli_max:
            return Fault(
                "beyond-queue",
                f"one job of queue {queue.name} takes no more GPUs at once than this",
                ("spec", "resources", "gpu"),
                found=quantities.format_gpu(gpu),
                expected=f"at most {quantities.format_gpu(queue.gpu_milli_max)}",
            )
    return None


def dependencies(
    job: desired.Job, find: Callable[[str], desired.Job | None], refused: Callable[[str], bool]
) -> Iterator[Fault]:
    """Return unknown dependencies, and ``perElement`` over arrays of different size."""
    for index, dependency in enumerate(job.depends_on):
        other = find(dependency.job)
        if other is None:
            details = (
                ("is refused as it stands", "it is accepted") if refused(dependency.job) else ()
            )
            yield job_names.missing_dependency(dependency.job, index, *details)
        elif dependency.per_element and (
            other.array_count is None or other.array_indexes_all != job.array_indexes_all
        ):
            other_count = len(other.array_indexes_all)
            have = "no array" if other.array_count is None else f"{other_count} elements"
            yield Fault(
                "per-element",
                f"perElement needs arrays of equal indexes, and {dependency.job} has {have}",
                ("spec", "dependsOn", index, "perElement"),
                found=f"{len(job.array_indexes_all)} elements here",
            )


def dependency_cycles(
    starts: Iterable[str], edges: Callable[[str], Iterable[str]]
) -> list[tuple[str, ...]]:
    """Return the cycles reachable from ``starts``, each once (Tarjan, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    cycles: list[tuple[str, ...]] = []
    for start in starts:
        if start in index:
            continue
        work = [(start, iter(edges(start)))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            name, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(edges(other))))
                    break
                if other in on_stack:
                    low[name] = min(low[name], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    members = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        members.append(member)
                        if member == name:
                            break
                    if len(members) > 1:
                        cycles.append(tuple(reversed(members)))
    return cycles


def cycle(members: tuple[str, ...]) -> Fault:
    """Return the fault that a job depends on itself through others."""
    listed = " → ".join(members[:8]) + (" → …" if len(members) > 8 else f" → {members[0]}")
    return Fault(
        "dependency-cycle",
        f"these jobs depend on each other: {listed}; remove one dependency",
        ("spec", "dependsOn"),
    )


def nobody_signs(known: access.Access, labels: Collection[str]) -> Fault | None:
    """Return the fault that signatures are required and nobody could ever change that again.

    Args:
        known: access rules.
        labels: of the ``Cluster`` and the documents of ``Access``.
    """
    signing = {one.acts for one in known.identities.values() if one.keys}
    people = [
        email
        for email, one in known.identities.items()
        if "author" in signing or (one.keys and one.acts == "self")
    ]
    if any(
        access.of_object(known, email, "change", label).allowed
        for email in people
        for label in labels
    ):
        return None
    return Fault(
        "nobody-signs",
        "every commit would have to be signed, and nobody with a key in Access may change the "
        "Cluster or Access: no commit could take that back. Commit the keys and roles of people "
        "who may first",
        path=("spec", "verification", "mode"),
    )
