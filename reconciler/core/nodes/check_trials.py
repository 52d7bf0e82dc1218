"""Trials of changed checks: one node of a pool tries them, the others keep what they have.

A plan of checks that is new to a pool, and of which results of the former plan say nothing, goes
to one node first. Once that node has reported that it has made these checks and that none fails,
all nodes get the plan. A node keeps the trial until it is drained or leaves the pool, however
silent: what silenced it may be the check. Records of nodes keep what each was given, over restarts.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

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

    def is_busy(node: records.NodeRecord) -> bool:
        return bool(context.attempts.of_node(node.name))

    for name in part.look(structure, context.nodes):
        pool = structure.pools.get(name)
        members = _members(context.nodes, pool, context.absent) if pool is not None else []
        behind = [node for node in members if pool and _is_behind(node, _plan_of(pool))]
        if pool is None or not behind:
            part.names.discard(name)
            continue
        for node, given in _decide(pool, members, behind, context.events, is_busy).items():
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


def _tries(node: records.NodeRecord) -> bool:
    """Return True if a node was given checks on trial, of the plan that is wanted or of another."""
    return node.given is not None and bool(node.given.trial)


def _has(node: records.NodeRecord, plan: health_checks.CheckPlan) -> bool:
    return node.given is not None and node.given.plan == plan


def _members(
    nodes: cycle_nodes.CycleNodes, pool: desired.Pool, absent: AbstractSet[str]
) -> list[records.NodeRecord]:
    """Return the nodes of a pool that have a machine."""
    found = (nodes.get(name) for name in pool.nodes if name not in absent)
    return [node for node in found if node is not None and node.pool == pool.name]


def _decide(
    pool: desired.Pool,
    members: list[records.NodeRecord],
    behind: Iterable[records.NodeRecord],
    events: cycle_events.CycleEvents,
    is_busy: Callable[[records.NodeRecord], bool],
) -> dict[str, GivenChecks]:
    """Return the checks that nodes are given, by name of the node."""
    want = _plan_of(pool)
    former = Counter(
        node.given.plan
        for node in members
        if node.given is not None and not _tries(node) and not _has(node, want)
    )
    passed = [node.name for node in members if _passes(node, pool, want)]
    if passed or not _needs_trial(members, former, want):
        if passed:
            events.add(
                "CheckTrialPassed", f"all of pool {pool.name} gets its checks", node=passed[0]
            )
        return {node.name: GivenChecks(want) for node in behind}
    # whoever joins while all others try has no former checks, and the plan is known to be bad
    kept = former.most_common(1)[0][0] if former else health_checks.FULL_DISK
    found = {node.name: GivenChecks(kept) for node in behind if node.given is None}
    first = _first(members, want, is_busy)
    if first is None or (_tries(first) and _has(first, want)):
        return found
    names = health_checks.untried(kept, want)
    text = f"it is the first of pool {pool.name} to try {', '.join(names)}"
    events.add("CheckTrial", text, node=first.name)
    return found | {first.name: GivenChecks(want, names)}


def _needs_trial(
    members: list[records.NodeRecord],
    former: Counter[health_checks.CheckPlan],
    want: health_checks.CheckPlan,
) -> bool:
    """Return True if nobody knows yet what comes of a plan, and others are there to keep theirs."""
    if len(members) < 2 or any(_has(node, want) and not _tries(node) for node in members):
        return False
    if former and not any(health_checks.untried(plan, want) for plan in former):
        return False
    if any(_tries(node) for node in members):
        return True
    # agents of earlier versions can't say what they have checked: no trial would ever end
    asked = [node for node in members if _is_there(node)] or members
    return bool(former) and any(_tells(node) for node in asked)


def _is_there(node: records.NodeRecord) -> bool:
    return node.state not in _AWAY and node.drain is None


def _tells(node: records.NodeRecord) -> bool:
    """Return True if a node's agent says by which plan it has checked."""
    return node.inventory.checked is not None


def _first(
    members: list[records.NodeRecord],
    want: health_checks.CheckPlan,
    is_busy: Callable[[records.NodeRecord], bool],
) -> records.NodeRecord | None:
    """Return the node that tries a plan; None if none can.

    Whoever has a trial keeps it, and tries the next plan too, rather than a second node. A drain
    passes it on, but not to the last node that is there with the former checks. Otherwise it is an
    idle node before a busy one, which may be full for weeks, and one that is well before others.
    """
    tried = [node for node in members if _tries(node)]
    there = [node for node in members if _is_there(node) and not _tries(node)]
    keeps = [node for node in tried if node.drain is None]
    if not keeps and len(there) < 2:
        keeps = tried
    if keeps:
        return min(keeps, key=lambda node: (not _has(node, want), node.name))
    able = [node for node in there if _tells(node)]
    return min(
        able,
        key=lambda node: (is_busy(node), node.state is not NodeState.READY, node.name),
        default=None,
    )


def _passes(node: records.NodeRecord, pool: desired.Pool, want: health_checks.CheckPlan) -> bool:
    """Return True if a node has made all checks of a plan, and none that it tries has failed."""
    inventory = node.inventory
    if node.given is None or not _tries(node) or not _has(node, want):
        return False
    if inventory.unchecked or inventory.checked != health_checks.digest(want):
        return False
    failed = fitness.failed_checks(inventory, pool)
    return not any(one.name in node.given.trial for one in failed)
