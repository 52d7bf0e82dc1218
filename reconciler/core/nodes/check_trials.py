"""Trials of changed checks: one node of a pool tries them, the others keep what they have.

A plan of checks that is new to a pool, and of which results of the former plan say nothing, goes
to one node first. Once that node has reported that it has made these checks and that none fails,
all nodes get the plan. The records of nodes keep what each was given, over restarts too.
"""

from collections import Counter
from collections.abc import Iterable

from reconciler.core import cycle_cache, cycle_context
from reconciler.core.cycle import cycle_events, cycle_nodes
from reconciler.core.nodes import fitness
from reconciler.model import desired
from reconciler.model.observed import health_checks
from reconciler.model.observed.health_checks import GivenChecks
from reconciler.model.state import outcome, records
from reconciler.model.state.states import NodeState

_AWAY = (NodeState.UNKNOWN, NodeState.GONE)


class _OpenPools(cycle_cache.CachePart):
    """A cache of the pools of which some nodes may have to be given other checks."""

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self.names: set[str] = set()
        self._made_for: desired.Structure | None = None

    def look(self, structure: desired.Structure, nodes: cycle_nodes.CycleNodes) -> list[str]:
        """Return names of pools to look at, sorted."""
        changed = self.take_nodes(nodes.renewed)
        if self._made_for is not structure:
            self._made_for = structure
            self.names = set(structure.pools)
        for name in changed:
            node = nodes.get(name)
            pool = structure.pools.get(node.pool) if node is not None else None
            if pool is not None and node is not None and _is_behind(node, _plan_of(pool)):
                self.names.add(pool.name)
        return sorted(self.names)


def apply(context: cycle_context.CycleContext, structure: desired.Structure) -> None:
    """Decide which checks each node is given, and tell nodes of changes."""
    part = context.cache.part(_OpenPools)
    for name in part.look(structure, context.nodes):
        pool = structure.pools.get(name)
        members = _members(context.nodes, pool) if pool is not None else []
        behind = [node for node in members if pool and _is_behind(node, _plan_of(pool))]
        if pool is None or not behind:
            part.names.discard(name)
            continue
        for node, given in _decide(pool, members, behind, context.events).items():
            known = context.nodes.get(node)
            if known is None or known.given == given:
                continue
            context.nodes.renew(known, given=given)
            # without a record of them, a node has the checks of its pool
            if known.given is not None or given != GivenChecks(_plan_of(pool)):
                context.actions.append(outcome.TellChecks(node))


def _plan_of(pool: desired.Pool) -> health_checks.CheckPlan:
    return pool.checks or health_checks.FULL_DISK


def _is_behind(node: records.NodeRecord, want: health_checks.CheckPlan) -> bool:
    return node.given is None or bool(node.given.trial) or node.given.plan != want


def _members(nodes: cycle_nodes.CycleNodes, pool: desired.Pool) -> list[records.NodeRecord]:
    found = (nodes.get(name) for name in pool.nodes)
    return [node for node in found if node is not None and node.pool == pool.name]


def _decide(
    pool: desired.Pool,
    members: list[records.NodeRecord],
    behind: Iterable[records.NodeRecord],
    events: cycle_events.CycleEvents,
) -> dict[str, GivenChecks]:
    """Return the checks that nodes are given, by name of the node."""
    want = _plan_of(pool)
    tried = [node for node in members if node.given is not None and node.given.trial]
    trying = [node for node in tried if node.given is not None and node.given.plan == want]
    former = Counter(
        node.given.plan
        for node in members
        if node.given is not None and not node.given.trial and node.given.plan != want
    )
    passed = [node.name for node in trying if _passes(node, pool, want)]
    if passed or not _needs_trial(members, former, want):
        if passed:
            events.add(
                "CheckTrialPassed", f"all of pool {pool.name} gets its checks", node=passed[0]
            )
        return {node.name: GivenChecks(want) for node in behind}
    ((kept, _),) = former.most_common(1)
    # whoever tried an earlier plan tries this one too, rather than a second node
    first = _first(trying) or _first(_tells(tried)) or _first(_tells(members))
    found = {node.name: GivenChecks(kept) for node in behind if node.given is None}
    if first is None:
        return found
    names = health_checks.untried(kept, want)
    if first not in trying:
        text = f"it is the first of pool {pool.name} to try {', '.join(names)}"
        events.add("CheckTrial", text, node=first.name)
    return found | {first.name: GivenChecks(want, names)}


def _needs_trial(
    members: list[records.NodeRecord],
    former: Counter[health_checks.CheckPlan],
    want: health_checks.CheckPlan,
) -> bool:
    """Return True if nobody knows yet what comes of a plan, and others are there to keep theirs."""
    established = any(
        node.given is not None and not node.given.trial and node.given.plan == want
        for node in members
    )
    if established or len(members) < 2 or not _tells(members):
        return False
    return any(health_checks.untried(plan, want) for plan in former)


def _tells(members: list[records.NodeRecord]) -> list[records.NodeRecord]:
    """Return nodes whose agents say by which plan they have checked."""
    return [node for node in members if node.inventory.checked is not None]


def _first(nodes: list[records.NodeRecord]) -> records.NodeRecord | None:
    """Return the first node that can try checks, if possible one that takes work."""
    there = [node for node in nodes if node.state not in _AWAY and node.drain is None]
    ready = [node for node in there if node.state is NodeState.READY]
    return min(ready or there, key=lambda node: node.name, default=None)


def _passes(node: records.NodeRecord, pool: desired.Pool, want: health_checks.CheckPlan) -> bool:
    """Return True if a node has made all checks of a plan, and none that it tries has failed."""
    inventory = node.inventory
    names = node.given.trial if node.given is not None else ()
    if inventory.unchecked or inventory.checked != health_checks.digest(want):
        return False
    return not any(one.name in names for one in fitness.failed_checks(inventory, pool))
