"""The brake on health checks: at most a share of a pool leaves service by one check within a time.

A check that fails on many nodes at once tells of itself, or of what all of them use, more than of
the nodes. So beyond the share further nodes stay in service, and a person is told. A brake that
holds is let go by a node that leaves room, by a check that passes, or by a larger share in git.
Once it has held, the nodes that are out count until they are back: neither time nor a moment in
which all others are well lets another share go.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from reconciler.core import cycle_cache
from reconciler.core.cycle import cycle_alarm, cycle_events, cycle_nodes
from reconciler.core.nodes import fitness, flapping
from reconciler.model import desired
from reconciler.model.observed import health_checks
from reconciler.model.state import records
from reconciler.model.values import quantities


@dataclasses.dataclass(slots=True)
class _Count:
    """Nodes of a pool that one check has taken out, and those that stay."""

    out: dict[str, health_checks.CheckBrake] = dataclasses.field(default_factory=dict)
    held: set[str] = dataclasses.field(default_factory=set)


class HealthBrakes:
    """The brakes of all pools in one cycle.

    Args:
        nodes: of this cycle.
        events: of this cycle.
        alarm: set if a node makes room for one that is held, which may have been judged already.
        now: seconds since the epoch.
        absent: provisioned nodes that have no machine now. They count nowhere.
    """

    def __init__(
        self,
        nodes: cycle_nodes.CycleNodes,
        events: cycle_events.CycleEvents,
        alarm: cycle_alarm.CycleAlarm,
        now: float,
        *,
        absent: AbstractSet[str],
    ) -> None:
        self._nodes = nodes
        self._events = events
        self._alarm = alarm
        self._now = now
        self._absent = absent
        self._counts: dict[tuple[str, str], _Count] = {}
        self._sizes: dict[str, int] = {}

    def count(self, names: Iterable[str], pool_of: Mapping[str, str]) -> None:
        """Note which nodes are out by a check, or stay although one fails.

        Those that are out while others stay count from now on however long they are out.

        Args:
            names: all that may be.
            pool_of: pools by node, as git has them.
        """
        for name in names:
            node = self._nodes.get(name)
            if name in self._absent or name not in pool_of:
                continue
            if node is not None and node.brake is not None:
                self._note(name, pool_of[name], node.brake)
        for (pool, _), count in self._counts.items():
            for name, brake in count.out.items() if count.held else ():
                node = self._nodes.get(name)
                if node is not None and not brake.counts:
                    counts = msgspec.structs.replace(brake, counts=True)
                    self._nodes.renew(node, brake=counts)
                    self._note(name, pool, counts)

    def look(
        self, node: records.NodeRecord, pool: desired.Pool | None, *, drained: bool
    ) -> records.NodeRecord:
        """Decide if a node on which a check fails leaves service by it, and note that.

        A drained node leaves anyway, and still counts if it was out by the check before. A node
        leaves too on which a check fails that each task waits for.
        """
        before = node.brake
        checks = [] if pool is None else _failing(node, pool)
        after = None
        if pool is None or not _are_braked(pool, checks):
            pass
        elif drained:
            after = before if before is not None and not before.held else None
        elif pool.checks is not None and any(check in pool.checks.before for check in checks):
            pass
        else:
            self._forget(node.name, pool.name, before)
            after = self._decide(node, pool, checks)
            self._note(node.name, pool.name, after)
        if after == before:
            return node
        if before is not None and not before.held and pool is not None:
            self._forget(node.name, pool.name, before)
            if self._count(pool.name, before.check).held:
                self._alarm.wake(self._now)
        return self._nodes.renew(node, brake=after)

    def _decide(
        self, node: records.NodeRecord, pool: desired.Pool, checks: list[str]
    ) -> health_checks.CheckBrake:
        was = node.brake
        out = was is not None and not was.held
        for check in checks:
            if was is not None and out and was.check == check:
                return was
        for check in checks:
            if self._lets(pool, check):
                return health_checks.CheckBrake(check, self._now)
        first = checks[0]
        if was is not None and was.held and was.check == first:
            return was
        if not self._count(pool.name, first).held:
            self._events.add("HealthBrake", self._engaged(pool, first), node=node.name)
        return health_checks.CheckBrake(first, self._now, held=True)

    def _lets(self, pool: desired.Pool, check: str) -> bool:
        """Return True if one more node may leave by a check."""
        count, rule = self._count(pool.name, check), pool.brake
        since = self._now - rule.window_s
        counted = sum(one.counts or one.since > since for one in count.out.values())
        return counted < rule.nodes_max(self._size(pool))

    def _engaged(self, pool: desired.Pool, check: str) -> str:
        count, size = self._count(pool.name, check), self._size(pool)
        window = quantities.format_duration(pool.brake.window_s)
        return (
            f"check {check} fails on more than {pool.brake.share:.0%} of pool {pool.name} within "
            f"{window}: {len(count.out)} of {quantities.counted(size, 'node')} are out by it, and "
            "the others stay in service. To fix: correct the check or what it found, or drain "
            "nodes, or raise health.brake.share"
        )

    def _size(self, pool: desired.Pool) -> int:
        """Return how many nodes of a pool have ever reported."""
        if pool.name not in self._sizes:
            there = (name for name in pool.nodes if name not in self._absent)
            self._sizes[pool.name] = sum(self._nodes.get(name) is not None for name in there)
        return self._sizes[pool.name]

    def _count(self, pool: str, check: str) -> _Count:
        return self._counts.setdefault((pool, check), _Count())

    def _note(self, name: str, pool: str, brake: health_checks.CheckBrake) -> None:
        count = self._count(pool, brake.check)
        if brake.held:
            count.held.add(name)
        else:
            count.out[name] = brake

    def _forget(self, name: str, pool: str, brake: health_checks.CheckBrake | None) -> None:
        if brake is not None:
            count = self._count(pool, brake.check)
            count.held.discard(name)
            count.out.pop(name, None)


def foresee(
    known: Mapping[str, records.NodeRecord],
    pools: Iterable[desired.Pool],
    now: float,
    *,
    absent: AbstractSet[str],
) -> cycle_nodes.CycleNodes:
    """Return nodes with what the brakes of pools will decide of them once these are in force."""
    events = cycle_events.CycleEvents(now)
    nodes = cycle_nodes.CycleNodes(known, cycle_cache.Names(()), events)
    brakes = HealthBrakes(nodes, events, cycle_alarm.CycleAlarm(), now, absent=absent)
    pool_of = {name: pool for pool in pools for name in pool.nodes}
    brakes.count(pool_of, {name: pool.name for name, pool in pool_of.items()})
    for name in sorted(pool_of):
        node, pool = nodes.get(name), pool_of[name]
        if node is not None:
            by_override = node.drain is not None and node.drain.until is not None
            brakes.look(node, pool, drained=by_override or name in pool.drains)
    return nodes


def message(node: records.NodeRecord) -> str:
    """Return why a node on which a check fails stays in service; without figures, which change."""
    check = node.brake.check if node.brake is not None else ""
    failed = next((one for one in node.inventory.checks if one.name == check), None)
    told = fitness.failure(failed) if failed is not None else f"check {check} comes and goes"
    return (
        f"{told}; it stays in service, because the check takes out no more of the pool "
        "(health.brake)"
    )


def _are_braked(pool: desired.Pool, checks: Collection[str]) -> bool:
    """Return True if checks that fail may take out no more than a share of their pool.

    In a pool without checks of its own only the commands around jobs do: a full disk starts
    nothing.
    """
    if pool.checks is not None:
        return bool(checks)
    return bool(checks) and pool.job_commands.checks.keys() >= set(checks)


def _failing(node: records.NodeRecord, pool: desired.Pool) -> list[str]:
    """Return the checks for which a node is out of service, or would be."""
    failed = fitness.failed_checks(node.inventory, pool)
    if failed:
        return [one.name for one in failed]
    return [node.flapping.check] if flapping.keeps_out(node, pool) else []
