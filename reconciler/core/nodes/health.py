"""Third phase: decides which nodes may take work, and when the work of a silent node is given up.

A silent node is ``Unknown`` at once, but its tasks may still run. They are given up only after
their lease, their grace and a margin since the last answer that could renew the lease,
or if somebody confirms that the node is gone. An undeclared node is ``Gone`` only when
nothing of its work can run there.
"""

from collections.abc import Mapping

from reconciler.core import cycle_cache, cycle_context
from reconciler.core.nodes import flapping, mismatches, node_reports
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason, NodeState
from reconciler.model.values import quantities, times

#: Added to lease and grace before work is started elsewhere, because a node needs a moment to stop.
LEASE_MARGIN_S = 2.0
#: Message of a node none of whose reports can be processed.
UNHEARD = (
    f"{desired.INTERNAL_ERROR} prevents all its reports from being processed: it gets no new work, "
    "and its tasks are started elsewhere once their leases have ended; the controller's log has "
    "the trace"
)
_AWAY = (NodeState.UNKNOWN, NodeState.GONE)


class _Ready(cycle_cache.CachePart):
    """A cache of ready nodes, and until when each stays so without news."""

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self.until = cycle_cache.Moments()
        self.others: set[str] = set(cache.nodes.known)
        self.pool_of: dict[str, str] = {}
        self._made_for: tuple[desired.Structure, float] | None = None

    def begin(self, context: cycle_context.CycleContext) -> None:
        """Forget everything if the structure or the leader changed."""
        structure, since = context.desired.structure, context.observed.leader_since
        if self._made_for is None or self._made_for[1] != since:
            _forget_the_future(context)
        if self._made_for is not None and self._made_for[0] is structure:
            if self._made_for[1] == since:
                return
        else:
            self.pool_of = structure.pool_of_node()
        self._made_for = (structure, since)
        self.until.clear()
        self.others = set(context.nodes.names())

    def look(self, context: cycle_context.CycleContext) -> list[str]:
        """Return the names of nodes whose state may change, sorted."""
        if context.override_drains:
            self.others |= context.override_drains.keys() & set(context.nodes.names())
        self.others.update(
            name for name in context.observed.unheard if context.nodes.get(name) is not None
        )
        changed = self.take_nodes(context.nodes.renewed)
        self.others |= changed
        self.others.update(self.until.over(context.now))
        for name in changed:
            self.until.drop(name)
        return sorted(self.others)


def _forget_the_future(context: cycle_context.CycleContext) -> None:
    """Set contacts that lie in the future to now, because the clock was set back.

    Otherwise their nodes would count as ready, however silent, until the clock has caught up.
    """
    for name in context.nodes.names():
        node = context.nodes.get(name)
        if node is not None and last_contact(node) > context.now:
            context.nodes.renew(
                node,
                last_report_at=min(node.last_report_at, context.now),
                last_answer_at=min(node.last_answer_at, context.now),
            )


def pool_of_node(context: cycle_context.CycleContext) -> Mapping[str, str]:
    """Return pool names by node name, as git has them."""
    part = context.cache.part(_Ready)
    part.begin(context)
    return part.pool_of


def out_of_service(context: cycle_context.CycleContext) -> list[str]:
    """Return the names of nodes that may get no new work, and of some that may, sorted."""
    return sorted(context.cache.part(_Ready).others)


def watch(context: cycle_context.CycleContext) -> None:
    """Update every node's state, and give up work whose lease has ended."""
    structure = context.desired.structure
    pool_of, ready = pool_of_node(context), context.cache.part(_Ready)
    for name in ready.look(context):
        node = context.nodes.get(name)
        if node is None:
            ready.others.discard(name)
            continue
        pool = structure.pools.get(pool_of.get(name, ""))
        node = _renew_state(context, node, pool)
        if node.state is NodeState.UNKNOWN:
            _doubt_attempts(context, node)
            if _expire_leases(context, node):
                _renew_state(context, node, pool)
        elif node.state is NodeState.GONE:
            _give_up(context, node)
        elif node.state is NodeState.READY and name not in context.nodes.renewed:
            ready.until.put(name, _silent_at(context, node))
            ready.others.discard(name)
    soonest = ready.until.first()
    if soonest is not None:
        context.alarm.wake(soonest)


def _silent_at(context: cycle_context.CycleContext, node: records.NodeRecord) -> float:
    """Return when the node counts as silent unless it is heard."""
    silence_s = context.desired.structure.settings.node_silence_s
    return max(last_contact(node), context.observed.leader_since) + silence_s


def last_contact(node: records.NodeRecord) -> float:
    """Return when the node was last heard or answered."""
    return max(node.last_report_at, node.last_answer_at)


def given_up_at(attempt: records.AttemptRecord, renewed_at: float) -> float | None:
    """Return when a task of a silent node is started elsewhere; None if it has no lease.

    Args:
        renewed_at: the last answer that can have renewed the lease, seconds since the epoch.
    """
    if attempt.lease_s is None:
        return None
    grace_s = max(attempt.grace_s, attempt.stop.grace_s if attempt.stop else 0)
    return renewed_at + attempt.lease_s + grace_s + LEASE_MARGIN_S


def black_hole_message(node: records.NodeRecord) -> str:
    """Return why a node on which tasks fail is out, and until when."""
    until = times.format_time(node.out_until)
    return (
        f"tasks of {len(node.failures)} owners failed here soon after they started and none "
        f"succeeded: Muster keeps it out until {until}"
    )


def _look_into_hole(
    context: cycle_context.CycleContext, node: records.NodeRecord, pool: desired.Pool | None
) -> records.NodeRecord:
    """Take out a node on which tasks of different owners fail quickly, or let it back in."""
    hole = pool.black_hole if pool else None
    if hole is None:
        return node
    if node.out_until > context.now:  # the clock was set back
        return context.nodes.renew(node, out_until=min(node.out_until, context.now + hole.out_s))
    if node.out_until:
        return context.nodes.renew(node, failures=(), out_until=0.0)
    quick = [
        one
        for one in node.failures
        if one.ran_s <= hole.quick_s and one.at > context.now - hole.window_s
    ]
    if len(quick) < hole.owners:
        return node
    node = context.nodes.renew(node, failures=tuple(quick), out_until=context.now + hole.out_s)
    context.events.add("NodeBlackHole", black_hole_message(node), node=node.name)
    return node


def _renew_state(
    context: cycle_context.CycleContext, node: records.NodeRecord, pool: desired.Pool | None
) -> records.NodeRecord:
    node = _look_into_hole(context, node, pool)
    drain = pool.drains.get(node.name) if pool else None
    drain = drain or context.override_drains.get(node.name)
    node = flapping.look(context, node, pool, drained=drain is not None)
    state, message = _state_of(context, node, pool, drain)
    if drain is not None and state is NodeState.UNHEALTHY:
        message = f"{message}; drained: {drain_message(drain)}"
    leave = node.leave if pool is None else pool.leaving
    # whatever else is wrong: a node is often drained because it is unhealthy, and a flapping check
    # or a silence must not restart the drain's time
    leaves = leave is not None and (drain is not None or pool is None)
    return context.nodes.renew(
        node,
        state=state,
        message=message,
        drain=drain,
        pool=pool.name if pool else "",
        leave=leave,
        drain_since=(node.drain_since or context.now) if leaves else 0.0,
    )


def _state_of(
    context: cycle_context.CycleContext,
    node: records.NodeRecord,
    pool: desired.Pool | None,
    drain: desired.NodeDrain | None,
) -> tuple[NodeState, str]:
    silence_s = context.desired.structure.settings.node_silence_s
    heard_at = max(last_contact(node), context.observed.leader_since)
    never_heard = node.last_report_at == 0.0
    busy = bool(context.attempts.of_node(node.name))
    if never_heard or heard_at + silence_s <= context.now:
        if drain is not None and drain.gone:
            return NodeState.GONE, f"{drain.reason}{_who(drain)}"
        if pool is None:
            return _undeclared(context, node)
        return NodeState.UNKNOWN, "not heard of"
    context.alarm.wake(heard_at + silence_s)
    if node.state in _AWAY and not _heard_again(context, node):
        return node.state, node.message
    if pool is None:
        return NodeState.DRAINING if busy else NodeState.DRAINED, "no pool declares it"
    missing = lacks(node.inventory, pool)
    if missing:
        return NodeState.UNHEALTHY, missing
    if node.name in context.observed.unheard:
        return NodeState.UNHEALTHY, UNHEARD
    if node.undecided:
        return NodeState.UNHEALTHY, node.undecided
    for one in node.inventory.checks if pool.checks is not None else ():
        if one.verdict == "failed":
            later = flapping.outlook(node, pool)
            return NodeState.UNHEALTHY, f"check {one.name} failed: {one.message}{later}"
    remedy = context.remedies.open_on(node.name)
    if remedy is not None:
        return NodeState.UNHEALTHY, f"{remedy.verb} is in progress: nothing starts until it ends"
    if flapping.keeps_out(node, pool):
        context.alarm.wake(node.flapping.until)
        return NodeState.UNHEALTHY, flapping.message(node, pool)
    if node.out_until > context.now and pool.black_hole is not None:
        context.alarm.wake(node.out_until)
        return NodeState.UNHEALTHY, black_hole_message(node)
    if node.unwanted:
        first = node.unwanted[0]
        return (
            NodeState.UNHEALTHY,
            f"{len(node.unwanted)} abandoned tasks still run, such as {first}",
        )
    if drain is not None:
        state = NodeState.DRAINING if busy else NodeState.DRAINED
        return state, drain_message(drain)
    return NodeState.READY, ""


def _heard_again(context: cycle_context.CycleContext, node: records.NodeRecord) -> bool:
    """Return True if a silent node has been heard since.

    Nothing else ends the silence, neither a new leader nor a longer allowed silence.
    """
    before = context.nodes.known.get(node.name)
    return before is None or last_contact(node) > last_contact(before)


def drain_message(drain: desired.NodeDrain) -> str:
    """Return why a node is drained, by whom, and until when."""
    until = f", an override until {times.format_time(drain.until)}" if drain.until else ""
    return f"{drain.reason}{_who(drain)}{until}"


def _who(drain: desired.NodeDrain) -> str:
    return f" ({drain.owner})" if drain.owner else ""


def _undeclared(
    context: cycle_context.CycleContext, node: records.NodeRecord
) -> tuple[NodeState, str]:
    """Return the state of a silent node in no pool: gone once nothing can run there."""
    attempts = context.attempts.of_node(node.name)
    if not attempts:
        return NodeState.GONE, "silent, and no pool declares it"
    message = "not heard of, and no pool declares it"
    endless = sum(attempt.lease_s is None for attempt in attempts)
    if endless:
        waits, them = ("waits", "it") if endless == 1 else ("wait", "them")
        message += (
            f"; {quantities.counted(endless, 'task')} without a lease {waits} for it: an "
            f"override with `gone: true` in a pool that has it gives {them} up"
        )
    return NodeState.UNKNOWN, message


def lacks(inventory: records.Inventory, pool: desired.Pool) -> str:
    """Return what a node has less of than its pool declares; empty if nothing."""
    return "; ".join(one.message for one in mismatches.find_mismatches(inventory, pool))


def _doubt_attempts(context: cycle_context.CycleContext, node: records.NodeRecord) -> None:
    for attempt in context.attempts.of_node(node.name):
        if attempt.state is not AttemptState.UNKNOWN:
            context.attempts.renew(attempt, state=AttemptState.UNKNOWN)


def _give_up(context: cycle_context.CycleContext, node: records.NodeRecord) -> None:
    """End all attempts on a node that is known to be gone."""
    for attempt in context.attempts.of_node(node.name):
        node_reports.lose(context, attempt, EndReason.NODE_LOST, f"{node.name} is gone")


def _expire_leases(context: cycle_context.CycleContext, node: records.NodeRecord) -> bool:
    """Give up attempts on a silent node whose lease has ended. Return True if there were any."""
    renewed_at = max(last_contact(node), context.observed.leader_since)
    lost = False
    for attempt in context.attempts.of_node(node.name):
        ends_at = given_up_at(attempt, renewed_at)
        if ends_at is None:
            continue
        if ends_at <= context.now:
            message = f"{node.name} was not heard of for {context.now - last_contact(node):.0f} s"
            node_reports.lose(context, attempt, EndReason.NODE_LOST, message)
            lost = True
        else:
            context.alarm.wake(ends_at)
    return lost
