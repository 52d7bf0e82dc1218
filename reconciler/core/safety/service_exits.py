"""The nodes that a change takes out of service although their pool keeps them, and why.

Two structures and the records come in. A node leaves if what it reports fits its pool before the
change and not after it, or if the change keeps work away from it: by a taint, by a reservation, or
because it takes away a volume that running jobs of the pool use.
Nodes that report nothing are taken as fit, and those that are unfit on both sides as in service:
what is broken for a moment must not make a change look smaller than it is. What a brake holds in
service is fit, and leaves if the brake of the changed pool lets it go.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec

from reconciler.core.safety import capacity
from reconciler.model import desired
from reconciler.model.observed import health_checks
from reconciler.model.rules import recurrence
from reconciler.model.state import records
from reconciler.model.values import times

#: Why a node leaves: its report does not fit, a taint, a reservation, or a volume that jobs use.
Cause = Literal["unfit", "taint", "reservation", "volume"]
#: Nodes with GPUs, by pool.
NodesByPool = Mapping[str, Mapping[str, int]]


class ServiceExit(msgspec.Struct, frozen=True):
    """A node that its pool keeps and that takes no work after a change, or less.

    Attributes:
        node: name.
        pool: after the change.
        gpus: GPUs that the pool declares of it.
        cause: kind of reason.
        why: the reason, in words.
        taints: new taints; jobs that tolerate them are not concerned.
        reservation: name of the reservation; jobs that may use it are not concerned.
        volumes: volumes that it loses; jobs that use none of them are not concerned.
        former: its pool before the change, which loses it.
    """

    node: str
    pool: str
    gpus: int
    cause: Cause
    why: str
    taints: tuple[desired.Taint, ...] = ()
    reservation: str = ""
    former: str = ""
    volumes: tuple[str, ...] = ()

    def concerns(self, spec: desired.Job, after: desired.Structure) -> bool:
        """Return True if a job could not start there after the change."""
        if self.cause == "taint":
            return not all(spec.tolerates(taint) for taint in self.taints)
        if self.cause == "volume":
            return not set(self.volumes).isdisjoint(spec.storage)
        if self.cause == "reservation":
            above = desired.path_to_root(after.queues, spec.queue)
            one = after.reservations[self.reservation]
            return not one.lets_in(spec.owner, spec.reservation, above)
        return True


class ExitGroup(msgspec.Struct, frozen=True):
    """Nodes of a pool that leave service for the same reason, in order of name."""

    pool: str
    why: str
    nodes: tuple[str, ...]
    gpus: int


def group(exits: Iterable[ServiceExit]) -> list[ExitGroup]:
    """Return exits by pool and reason, those with the most GPUs first."""
    alike: dict[tuple[str, str], list[ServiceExit]] = {}
    for one in exits:
        alike.setdefault((one.pool, one.why), []).append(one)
    found = [
        ExitGroup(pool, why, tuple(sorted(one.node for one in of)), sum(one.gpus for one in of))
        for (pool, why), of in alike.items()
    ]
    return sorted(found, key=lambda one: (-one.gpus, one.pool, one.why))


class CheckRisk(msgspec.Struct, frozen=True):
    """Nodes of a pool that may leave service because checks are new or ask for more.

    Nobody knows what such checks find. ``nodes`` and ``gpus`` are the most that leave before it is
    known: the node that tries them first or, with older agents, what the pool's brake lets go.
    ``trial``: it is the node that tries them first, and others are beside it. ``former`` is the
    pool of the nodes before the change, which loses them.
    """

    pool: str
    checks: tuple[str, ...]
    nodes: int
    gpus: int
    trial: bool = False
    former: str = ""


class InService(msgspec.Struct, frozen=True):
    """Nodes in service before and after a change, by pool, with the GPUs that each declares.

    ``exits`` are nodes, by name, that leave service although their pool keeps them; ``risks`` say
    how many more may. ``managed`` are the GPUs of each pool before the change, those of nodes that
    are drained or in maintenance too.
    """

    before: dict[str, dict[str, int]] = {}
    after: dict[str, dict[str, int]] = {}
    managed: dict[str, int] = {}
    exits: dict[str, ServiceExit] = {}
    risks: tuple[CheckRisk, ...] = ()


def concerns_nodes(before: desired.Structure, after: desired.Structure) -> bool:
    """Return True if a change may take nodes out of service that their pools keep."""
    if before.reservations != after.reservations or _loses_volumes(before, after):
        return True
    pool_of: dict[str, str] | None = None
    for name, pool in after.pools.items():
        was = before.pools.get(name)
        if was is not None and not _asks_alike(was, pool):
            return True
        if was is None or was.nodes != pool.nodes:
            pool_of = before.pool_of_node() if pool_of is None else pool_of
            if any(pool_of.get(node, name) != name for node in pool.nodes):
                return True
    return False


def _asks_alike(old: desired.Pool, new: desired.Pool) -> bool:
    """Return True if pools differ at most in what nodes they have, and in who drained which."""
    if old is new:
        return True
    bare = msgspec.structs.replace(new, nodes=old.nodes, drains=old.drains, domains=old.domains)
    return msgspec.structs.replace(bare, name=old.name) == old


def compare(
    before: desired.Structure, after: desired.Structure, observed: records.Observed, now: float
) -> InService:
    """Return which nodes are in service before and after a change.

    Nodes that a change adds enter service only if their reports fit. Nodes whose reports fit after
    the change, and not before it, enter service by it.
    """
    managed, old = _not_drained(before, observed)
    _, new = _not_drained(after, observed)
    closed = maintenance_now(before, now)
    old, new = _without(old, closed), _without(new, closed & maintenance_now(after, now))
    sizes = {pool: sum(nodes.values()) for pool, nodes in managed.items()}
    if not concerns_nodes(before, after):
        return InService(old, new, sizes)
    pool_of = {node: pool for pool, nodes in old.items() for node in nodes}
    will_be = _foresee(before, after, new, observed, now)
    exits: dict[str, ServiceExit] = {}
    out_before, out_after = set(), set()
    for name, nodes in new.items():
        pool = after.pools[name]
        alike = {old for old, was in before.pools.items() if _asks_alike(was, pool)}
        for node, gpus in nodes.items():
            former = pool_of.get(node, "")
            if former in alike:
                continue
            was = before.pools.get(former)
            why, why_before = _unfit(will_be.get(node), pool), _unfit(observed.nodes.get(node), was)
            if why and was is None:
                out_after.add(node)
            elif why and not why_before:
                exits[node] = ServiceExit(node, name, gpus, "unfit", why, former=former)
            elif why_before and not why:
                out_before.add(node)
            taints = _new_taints(was, pool)
            if taints and node not in exits:
                text = ", ".join(taint.text() for taint in taints)
                why = f"new taint {text}: only for jobs that tolerate it"
                exits[node] = ServiceExit(node, name, gpus, "taint", why, taints, former=former)
    for one in _without_volumes(before, after, (pool_of, new), observed):
        exits.setdefault(one.node, one)
    for one in _reserved(before, after, (old, new), now):
        former = pool_of[one.node]
        exits.setdefault(one.node, msgspec.structs.replace(one, former=former))
    left = _without(new, out_after | exits.keys())
    risks = tuple(_risks(before, after, pool_of, left, observed))
    return InService(_without(old, out_before), left, sizes, exits, risks)


def _not_drained(
    structure: desired.Structure, observed: records.Observed
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """Return all nodes of pools, and those that are not drained, with their GPUs."""
    found = {name: capacity.managed(pool, observed) for name, pool in structure.pools.items()}
    left = {
        name: capacity.not_drained(structure.pools[name], nodes) for name, nodes in found.items()
    }
    return found, left


def _without(nodes_by_pool: NodesByPool, left_out: AbstractSet[str]) -> dict[str, dict[str, int]]:
    return {
        pool: {node: gpus for node, gpus in nodes.items() if node not in left_out}
        for pool, nodes in nodes_by_pool.items()
    }


def _risks(
    before: desired.Structure,
    after: desired.Structure,
    pool_of: Mapping[str, str],
    left: NodesByPool,
    observed: records.Observed,
) -> Iterator[CheckRisk]:
    """Yield what checks of which no result is known may take out, by former and new pool of nodes.

    One node tries them first, unless agents are too old to say what they have checked. A pool that
    gets another name, or is split, is judged as its nodes' former pool is.
    """
    manned = set(pool_of.values())
    for name, pool in after.pools.items():
        staying: dict[str, dict[str, int]] = {}
        for node, gpus in left[name].items():
            if node in pool_of:
                staying.setdefault(pool_of[node], {})[node] = gpus
        for former, nodes in sorted(staying.items()):
            checks, runs = _untried(before.pools[former], pool)
            if former != name and name in manned:  # what its own nodes do already is not new
                also = _untried(before.pools[name], pool)
                checks, runs = (
                    tuple(one for one in found if one in others)
                    for found, others in zip((checks, runs), also, strict=True)
                )
            if not checks and not runs:
                continue
            most, is_trial = _most_out(pool, nodes, checks, runs, observed)
            most = min(len(nodes), most)
            if most:
                gpus = sum(sorted(nodes.values(), reverse=True)[:most])
                is_trial = is_trial and sum(map(len, staying.values())) > 1
                yield CheckRisk(name, (*checks, *runs), most, gpus, is_trial, former)


def _untried(old: desired.Pool, new: desired.Pool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return checks and commands around jobs that are new in a pool, or ask for more."""
    return (
        health_checks.untried(old.checks, new.checks),
        old.job_commands.untried(new.job_commands),
    )


def _most_out(
    pool: desired.Pool,
    nodes: Mapping[str, int],
    checks: tuple[str, ...],
    runs: tuple[str, ...],
    observed: records.Observed,
) -> tuple[int, bool]:
    """Return how many nodes untried checks may take out at most, and if that is a trial's node."""
    most, is_trial = 0, False
    if checks and pool.checks is not None:
        if not any(_says_nothing(observed, node) for node in nodes):
            most, is_trial = 1, not runs
        elif any(check in pool.checks.before for check in checks):
            most = len(nodes)
        else:
            most = len(checks) * pool.brake.nodes_max(len(nodes))
    # commands around jobs have no trial: without a job there is nothing to try
    return most + len(runs) * pool.brake.nodes_max(len(nodes)), is_trial


def _says_nothing(observed: records.Observed, node: str) -> bool:
    """Return True if a node's agent does not say by which plan it has checked."""
    record = observed.nodes.get(node)
    return record is not None and bool(record.last_report_at) and record.inventory.checked is None


def _foresee(
    before: desired.Structure,
    after: desired.Structure,
    declared: NodesByPool,
    observed: records.Observed,
    now: float,
) -> Mapping[str, records.NodeRecord]:
    """Return the records of nodes, with what the brakes of changed pools will decide of them."""
    if not any(record.brake or record.inventory.checks for record in observed.nodes.values()):
        return observed.nodes
    from reconciler.core.nodes import health_brake  # noqa: PLC0415 - with numpy, if it is needed

    changed = [
        pool
        for name, pool in after.pools.items()
        if name not in before.pools or before.pools[name] != pool
    ]
    there = {node for nodes in declared.values() for node in nodes}
    absent = {
        node
        for pool in changed
        for node in pool.nodes
        if node not in there and node not in pool.drains
    }
    found = health_brake.foresee(observed.nodes, changed, now, absent=absent)
    return {**observed.nodes, **found.renewed}


def _unfit(record: records.NodeRecord | None, pool: desired.Pool | None) -> str:
    """Return why the last report of a node does not fit a pool; empty if it fits, or is unknown."""
    if pool is None or record is None or not record.last_report_at:
        return ""
    if record.inventory.virtual and pool.provisioner == "virtual":
        return ""  # it is started anew as its pool declares it
    from reconciler.core.nodes import fitness  # noqa: PLC0415 - with numpy, for changed pools alone

    return fitness.unfit(record, pool)


def _new_taints(old: desired.Pool | None, new: desired.Pool) -> tuple[desired.Taint, ...]:
    """Return hard taints that a node did not have before; none for a node without a pool."""
    if old is None:
        return ()
    return tuple(taint for taint in new.taints if taint.hard and taint not in old.taints)


# --- volumes ------------------------------------------------------------------------------------


def _has(structure: desired.Structure, volume: str, pool: str) -> bool:
    """Return True if a volume is on the nodes of a pool, as declared."""
    found = structure.volumes.get(volume)
    return found is not None and (not found.pools or pool in found.pools)


def _loses_volumes(before: desired.Structure, after: desired.Structure) -> bool:
    """Return True if a pool that stays loses a volume."""
    if before.volumes == after.volumes:
        return False
    return any(
        _has(before, volume, pool) and not _has(after, volume, pool)
        for volume in before.volumes
        for pool in before.pools.keys() & after.pools.keys()
    )


def _without_volumes(
    before: desired.Structure,
    after: desired.Structure,
    places: tuple[Mapping[str, str], NodesByPool],
    observed: records.Observed,
) -> Iterator[ServiceExit]:
    """Yield nodes that lose volumes which running jobs of their pool use.

    ``places`` are the pools of nodes before the change, and the nodes of pools after it.
    """
    if not before.volumes:
        return
    used: dict[str, set[str]] = {}
    for attempt in observed.attempts.values():
        record = observed.jobs.get(attempt.job)
        if record is not None and not record.finished and not record.removed:
            used.setdefault(places[0].get(attempt.node, ""), set()).update(record.spec.storage)
    for name, nodes in sorted(places[1].items()):
        for node, gpus in nodes.items():
            former = places[0].get(node, "")
            lost = tuple(
                sorted(
                    volume
                    for volume in used.get(former, ())
                    if _has(before, volume, former) and not _has(after, volume, name)
                )
            )
            if lost:
                labels = ", ".join(f"Volume/{volume}" for volume in lost)
                why = f"loses {labels}, which running jobs use"
                yield ServiceExit(node, name, gpus, "volume", why, former=former, volumes=lost)


# --- reservations -----------------------------------------------------------------------------


def _reserved(
    before: desired.Structure,
    after: desired.Structure,
    declared: tuple[NodesByPool, NodesByPool],
    now: float,
) -> Iterator[ServiceExit]:
    """Yield nodes that a new or larger reservation keeps for some, or for nobody."""
    served = {node for nodes in declared[0].values() for node in nodes}
    places = {node: (pool, gpus) for pool, of in declared[1].items() for node, gpus in of.items()}
    for name, one in sorted(after.reservations.items()):
        old = before.reservations.get(name)
        is_over = not one.schedule and one.ends_at <= now
        if is_over or (old is not None and _is_same(old, one)):
            continue
        kept = set(_kept(one, after, places))
        if old is not None and _covers(old, one):
            kept -= set(_kept(old, before, served))
        for node in sorted(kept & served):
            pool, gpus = places[node]
            yield ServiceExit(node, pool, gpus, "reservation", _window(one), reservation=name)


def maintenance_now(structure: desired.Structure, now: float) -> frozenset[str]:
    """Return the nodes that maintenance keeps from all work at this moment."""
    found: set[str] = set()
    for one in structure.reservations.values():
        if one.maintenance and _is_open(one, now):
            found.update(_kept(one, structure, structure.pool_of_node()))
    return frozenset(found)


def _is_open(one: desired.Reservation, now: float) -> bool:
    if not one.schedule:
        return one.starts_at <= now < one.ends_at
    spans = recurrence.spans(one.schedule, one.duration_s, now)
    return any(begin <= now < end for begin, end in spans)


def _is_same(old: desired.Reservation, new: desired.Reservation) -> bool:
    """Return True if a reservation keeps as much as before, on whichever nodes there are."""
    if new.amounts == desired.QuotaAmounts():
        return old == new
    return old == msgspec.structs.replace(new, nodes=old.nodes)


def _kept(
    one: desired.Reservation, structure: desired.Structure, served: Iterable[str]
) -> Iterator[str]:
    """Yield nodes that a reservation keeps: in order of name as many as have its amounts."""
    named = sorted(set(one.nodes).intersection(served))
    if one.amounts == desired.QuotaAmounts():
        yield from named
        return
    pool_of = structure.pool_of_node()
    missing = [amount or 0 for amount in one.amounts.as_vector()]
    for node in named:
        if all(amount <= 0 for amount in missing):
            return
        yield node
        has = structure.pools[pool_of[node]].node_resources.as_vector()
        missing = [left - there for left, there in zip(missing, has, strict=True)]


def _covers(old: desired.Reservation, new: desired.Reservation) -> bool:
    """Return True if a reservation keeps nobody away who was not kept away before."""
    if old.schedule or new.schedule:
        in_time = old.schedule == new.schedule and new.duration_s <= old.duration_s
    else:
        in_time = old.starts_at <= new.starts_at and new.ends_at <= old.ends_at
    return in_time and (old.maintenance or _admits(old, new))


def _admits(old: desired.Reservation, new: desired.Reservation) -> bool:
    """Return True if a reservation lets in everybody whom an earlier one let in."""
    if new.maintenance:
        return False
    if old.users or old.queues:
        return set(old.users) <= set(new.users) and set(old.queues) <= set(new.queues)
    return not (new.users or new.queues)


def _window(one: desired.Reservation) -> str:
    """Return which reservation it is, for whom, and when."""
    what = "maintenance" if one.maintenance else "reserved"
    if one.schedule:
        return f"Reservation/{one.name}: {what}, again and again"
    begin, end = times.format_time(one.starts_at), times.format_time(one.ends_at)
    return f"Reservation/{one.name}: {what} from {begin} to {end}"
